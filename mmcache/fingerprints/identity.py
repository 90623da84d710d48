"""The identity of a processor: everything about it, its options and its surroundings that can change its output.

Its own ``to_dict()`` is not one: that hides the backend, the code, and attributes that are None. What counts are the
*effective* options: each option of the call, else the attribute, as the processor itself standardises them, so that
equal spellings are equal. It is computed from live state at each call, since attributes and even sizes can be changed;
while a processor holds the very objects that it held before, its description is known.
"""

import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Mapping
from enum import Enum, IntEnum
from typing import Any

from mmcache.errors import NotEncodable, NotIdentifiable
from mmcache.fingerprints.code import CodeIdentity, package_version
from mmcache.fingerprints.encoding import encode
from mmcache.fingerprints.snapshot import NotFixed, Snapshot, same_objects
from mmcache.structure import is_size_dict, with_sizes

# Book-keeping of transformers that changes no output.
_INERT = frozenset({"_valid_kwargs_names", "_processor_class", "_auto_class", "image_processor_type"})

# What mmcache and Python put on the class of a wrapped processor.
_OWN_MEMBERS = frozenset(
    {
        "preprocess", "__reduce_ex__", "__mmcache_plain__", "__mmcache_cache__", "__slots__", "__module__", "__qualname__", "__doc__",
        "__abstractmethods__", "_abc_impl", "__slotnames__", "__firstlineno__", "__static_attributes__",
    }
)  # fmt: skip

# Packages whose versions decide the bits of a processor's output.
_PACKAGES = ("transformers", "torch", "torchvision", "PIL", "numpy")

_identities: "weakref.WeakKeyDictionary[Any, CodeIdentity]" = weakref.WeakKeyDictionary()


# With limits of its own for each image, every image has another description.
_MOST_DESCRIPTIONS = 256

_UNSET = object()  # a slot without a value


class _Size(Enum):
    """Stands in a structure where a size does."""

    ANY = "any size in pixels"


class RefusedOptions(Exception):
    """The processor itself refuses these options; the plain call will say why."""


class Description:
    """What identifies a processor together with the options of one call; each encoding of it is made once."""

    def __init__(self, parts: tuple[Any, ...]) -> None:
        """``parts`` are what `describe_processor` gives."""
        self._parts = parts

    @functools.cached_property
    def encoded(self) -> bytes:
        """The encoding of all of it; raises `NotEncodable`."""
        return encode(self._parts)

    @functools.cached_property
    def asking_for_lists(self) -> "Description":
        """The same call with ``return_tensors=None``, of a processor without that attribute."""
        code, effective, around = self._parts
        asked = {name: {**value, "return_tensors": None} for name, value in effective.items()}
        asked["state"].pop("return_tensors")
        return Description((code, asked, around))

    def structure(self, form: str) -> bytes:
        """Return the encoding of the structure of calls in a form of ``images``: without sizes."""
        return encode((with_sizes(self._parts, lambda _: _Size.ANY), form))


def described(processor: Any, options: Mapping[str, Any]) -> Description:
    """Return what `describe_processor` gives, or gave before for the very same call; raises what that raises."""
    state = _state_of(processor)
    if state is not None:
        with contextlib.suppress(NotEncodable):  # an option that only the processor makes something plain of
            call = (encode(options), _code_of(type(processor)), surroundings())
            return state.described(processor, options, call)
    return Description(describe_processor(processor, options))


class _State:
    """What a processor held when it was looked at, and the descriptions of its calls since then."""

    def __init__(self, processor: Any) -> None:
        self._attributes = dict(vars(processor))
        self._slots = {name: getattr(processor, name, _UNSET) for name in _slot_names(type(processor))}
        slots = [value for value in self._slots.values() if value is not _UNSET]
        self._inside = Snapshot(*self._attributes.values(), *slots)
        self._descriptions: dict[Any, Description] = {}

    def unchanged(self, processor: Any) -> bool:
        return (
            same_objects(vars(processor), self._attributes)
            and all(getattr(processor, name, _UNSET) is value for name, value in self._slots.items())
            and self._inside.unchanged()
        )

    def described(self, processor: Any, options: Mapping[str, Any], call: Any) -> Description:
        """Return the description of a call; ``call`` is all that it depends on beside the state."""
        known = self._descriptions.get(call)
        if known is None:
            known = Description(describe_processor(processor, options))
            # What was changed meanwhile must not be found under what was there before.
            if self.unchanged(processor):
                if len(self._descriptions) >= _MOST_DESCRIPTIONS:
                    self._descriptions.clear()
                self._descriptions[call] = known
        return known


_states: dict[int, tuple["weakref.ref[Any]", _State]] = {}


def _state_of(processor: Any) -> _State | None:
    """Return the state that a processor is in; None if something in it may change unseen."""
    number = id(processor)
    seen, state = _states.get(number, (None, None))
    if seen is not None and state is not None and seen() is processor and state.unchanged(processor):
        return state
    try:
        state = _State(processor)
        _states[number] = (weakref.ref(processor, lambda _: _states.pop(number, None)), state)
    except (NotFixed, TypeError):  # or an object that no weak reference can be made to
        return None
    return state


def describe_processor(processor: Any, options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what identifies a processor together with the options of one call, ready to be encoded.

    Raises `NotIdentifiable` for a class whose code cannot be followed, and `RefusedOptions`.
    """
    return (_code_of(type(processor)), _canonical(_effective(processor, options)), surroundings())


def slots_of(processor: Any) -> dict[str, Any]:
    """Return what an object keeps in slots and not in its dict."""
    return {name: getattr(processor, name) for name in _slot_names(type(processor)) if hasattr(processor, name)}


def _slot_names(cls: type) -> list[str]:
    named = [vars(base).get("__slots__", ()) for base in cls.__mro__]
    slots = [name for names in named for name in ((names,) if isinstance(names, str) else names)]
    return [name for name in slots if not name.startswith("__")]


def plain_class(cls: type) -> type:
    """Return the class of a processor without what mmcache put over it."""
    plain: type = vars(cls).get("__mmcache_plain__", cls)
    return plain


def has_foreign_code(cls: type) -> bool:
    """Whether a class has code from outside transformers in it, which may read more of an image than pixels."""
    plain = plain_class(cls)
    named = any(base.__module__.partition(".")[0] != "transformers" for base in plain.__mro__[:-1])
    return named or _identity_of(plain).foreign


def describe_code(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Return what identifies a function's code as it is now, ready to be encoded; raises `NotIdentifiable`."""
    return _identity_of(function).current()


def _code_of(cls: type) -> tuple[Any, ...]:
    """Return what identifies the code of a processor's class, wrapped or not, as it is now."""
    plain = plain_class(cls)
    if cls is not plain and vars(cls).keys() - _OWN_MEMBERS:
        raise NotIdentifiable(
            cls.__qualname__, "methods were put on the class of a wrapped processor; patch its own class"
        )
    return _identity_of(plain).current()


def _identity_of(target: Any) -> CodeIdentity:
    # Without a lock: two threads that meet here make the same identity twice, and either may stay.
    identity = _identities.get(target)
    if identity is None:
        identity = _identities[target] = CodeIdentity(target)
    return identity


def _effective(processor: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as the processor will use them, and the rest of its state."""
    state = {name: value for name, value in vars(processor).items() if name not in _INERT} | slots_of(processor)
    names = getattr(processor, "_valid_kwargs_names", None)
    standardize = getattr(processor, "_standardize_kwargs", None)
    if names is None or standardize is None:
        return {"state": state, "options": dict(options)}
    cls = plain_class(type(processor))
    # An option that is given as None is given: it means off, not the attribute. One that is not given is the attribute,
    # or what the signature says.
    own = _own_defaults(cls)
    unasked = {name: getattr(processor, name, None) for name in names} | own
    try:
        effective = standardize(**{**unasked, **options})
    except Exception as refused:
        raise RefusedOptions(str(refused)) from refused
    # An attribute that differs from the option in its place stays in the state: a few processors read it all the same
    # (in transformers 5.24 PerceptionLM and two of PP-OCR).
    for name in names:
        if (name not in options and name not in own) or _alike(state.get(name), effective.get(name)):
            state.pop(name, None)
    described = {"state": state, "options": effective}
    # Code of others may tell an option that is given from one that is not, and a spelling from another.
    return described | {"given": dict(options)} if has_foreign_code(cls) else described


def _own_defaults(cls: type) -> dict[str, Any]:
    """Return the options that ``preprocess`` has values of its own for, so that an attribute is not asked."""
    own: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if (method := vars(base).get("preprocess")) is not None:
            own.update(_defaults_of(method))
    return {name: default for name, default in own.items() if default is not None}


@functools.lru_cache(maxsize=4096)
def _defaults_of(method: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(method).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}


def _alike(attribute: Any, option: Any) -> bool:
    return encode(_canonical(attribute)) == encode(_canonical(option))


@functools.cache
def _versions(loaded: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name} {package_version(name)}" for name in loaded)


def surroundings() -> tuple[Any, ...]:
    """Return what is outside of all code and options and can still change an output, ready to be encoded."""
    versions = _versions(tuple([name for name in _PACKAGES if name in sys.modules]))
    torch = sys.modules.get("torch")
    if torch is None:
        return versions
    # The thread count changes bits in nine classes of transformers 5.24, always those that resize in float.
    return (*versions, torch.get_default_dtype(), str(torch.get_default_device()), torch.get_num_threads())


def modes() -> tuple[Any, ...]:
    """Return torch's modes that change what a function of tensors gives: grad mode and autocast, ready to be encoded."""
    torch = sys.modules.get("torch")
    if torch is None:
        return ()
    return (torch.is_grad_enabled(), autocast())


def autocast() -> Any:
    """Return the dtype that operations on the CPU are cast to in this thread; False if to none."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")


def _canonical(value: Any) -> Any:
    """Make equal spellings equal: lists as tuples, sizes as dicts, and numbered enums as their numbers."""
    kind = type(value)
    if kind is dict:
        return {name: _canonical(member) for name, member in value.items()}
    if kind is list or kind is tuple:
        return tuple([_canonical(member) for member in value])
    if isinstance(value, IntEnum):
        return int(value)
    if is_size_dict(kind):
        return dict(value)
    return value
