"""The identity of code: what a function or class is made of, followed through everything that it names.

A function is its bytecode with constants and nested code, its defaults, what its closure holds and what its globals
are: values that can be encoded, functions (followed in turn), modules and classes by the version of their package,
and image processors with their state. What has no identity ends in `NotIdentifiable`, which names it.

Bindings change while a program runs (a global is assigned, a method is patched), so each description keeps a list of
what it saw, and is made anew when that no longer holds. Values that can change in place are encoded at each call.
"""

import functools
import hashlib
import importlib.metadata
import logging
import platform
import sys
from collections.abc import Callable, Iterator
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

from mmcache.errors import NotEncodable, NotIdentifiable
from mmcache.fingerprints.bytecode import describe_bytecode, global_names, imports
from mmcache.fingerprints.encoding import encode
from mmcache.fingerprints.snapshot import NotFixed, Snapshot, same_objects


class _Example(NamedTuple):
    field: int


# What slots, fields of named tuples and the methods of C classes are in a class; their names say all about them.
_DESCRIPTORS_OF_C = (
    ClassMethodDescriptorType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType,
    type(vars(_Example)["field"]),
)  # fmt: skip

_EMPTY = object()  # a global or a cell without a value yet


def package_version(module_name: str) -> str | None:
    """Return the version of the package that a module belongs to, or None if it has none (a script, a plain file)."""
    top = module_name.partition(".")[0]
    if top in ("__main__", "__mp_main__", ""):
        return None
    if top in sys.stdlib_module_names:
        return f"python {platform.python_version()}"
    declared = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(declared, str):
        return str(declared)  # torch's is a subclass
    return _installed_version(top, loaded=top in sys.modules)


@functools.cache
def _installed_version(top: str, *, loaded: bool) -> str | None:
    # What is not loaded is also looked for by its modules: PIL is installed by a distribution of another name.
    names = [top] if loaded else [top, *importlib.metadata.packages_distributions().get(top, ())]
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


_Seen = tuple[bytes, list[Callable[[], bool]], list[Callable[[], Any]], bool]


class CodeIdentity:
    """The identity of one function or class, kept up to date."""

    def __init__(self, target: Any) -> None:
        """Describe ``target`` now; raise `NotIdentifiable` with the culprit if that cannot be done safely."""
        self._target = target
        self._name = f"{target.__module__}.{target.__qualname__}"
        self._describe()

    def current(self) -> tuple[Any, ...]:
        """Return what identifies the code as it is now, ready to be encoded."""
        description, watches, live, _ = self._seen
        if not all(watch() for watch in watches):
            description, _, live, _ = self._describe()
        return (description, *[encoded() for encoded in live])

    @property
    def foreign(self) -> bool:
        """Whether code was followed, as of `current`: there is some that comes from no library with a version."""
        return self._seen[3]

    def _describe(self) -> _Seen:
        walk = _Walk(self._name)
        # A digest, since it is encoded and hashed again at each call, and ten kilobytes of it cost 20 µs.
        description = hashlib.sha256(encode(walk.describe(self._target, self._name, follow=True))).digest()
        # One assignment: another thread sees the old description or the new one, never a mixture.
        self._seen = (description, [*walk.watches, walk.values.unchanged], walk.live, walk.foreign)
        return self._seen


class _Walk:
    """One description in the making: what was seen so far, what to watch, and what to encode at each call."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: dict[int, int] = {}
        self.watches: list[Callable[[], bool]] = []
        self.live: list[Callable[[], Any]] = []
        self.values = Snapshot()
        self.foreign = False

    def describe(self, value: Any, where: str, *, follow: bool = False) -> Any:
        """Describe anything that code can name; ``follow`` goes into the code of a package with a version too."""
        value = _undecorated(value)
        if id(value) in self.seen:
            return ("seen", self.seen[id(value)])
        self.seen[id(value)] = len(self.seen)
        if _is(value, FunctionType, type):
            version = None if follow else _library_version(value)
            if version is not None:
                return (type(value).__name__, value.__module__, value.__qualname__, version)
            return self._class(value) if _is(value, type) else self._function(value)
        if _is(value, ModuleType):
            return self._module(value, where)
        return self._object(value, where)

    def _module(self, module: ModuleType, where: str) -> Any:
        version = package_version(module.__name__)
        if version is None:
            raise NotIdentifiable(self.name, f"{where} is the module {module.__name__}, which has no version")
        return ("module", module.__name__, version)

    def _object(self, value: Any, where: str) -> Any:
        if isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, ModuleType | type | None):
            return (
                "builtin",
                value.__module__ or "",
                value.__qualname__,
                package_version(value.__module__ or "") or "",
            )
        if isinstance(value, functools.partial):
            parts = (value.func, *value.args, *value.keywords.values())
            held = dict(value.keywords)
            self.watches.append(lambda: same_objects(value.keywords, held))
            return ("partial", tuple(value.keywords), *[self.describe(part, f"{where}'s part") for part in parts])
        if isinstance(value, logging.Logger):
            return ("logger", value.name)
        if isinstance(value, staticmethod | classmethod):
            return (type(value).__name__, self.describe(value.__func__, where))
        if isinstance(value, functools._lru_cache_wrapper):
            return ("lru_cache", self.describe(value.__wrapped__, where))
        if isinstance(value, property):
            return ("property", *[self.describe(f, where) for f in (value.fget, value.fset, value.fdel)])
        if _is_image_processor(value):
            from mmcache.fingerprints.identity import described

            self.live.append(lambda: described(value, {}).encoded)
            return "an image processor"
        return self._value(value, where)

    def _value(self, value: Any, where: str) -> Any:
        try:
            encoded = encode(value)
        except NotEncodable as refused:
            raise NotIdentifiable(self.name, f"{where} is a {refused.type_name}") from None
        try:
            self.values.add(value)
        except NotFixed:
            self.live.append(lambda: encode(value))
            return "a value that may change unseen"
        return encoded

    def _function(self, function: FunctionType) -> Any:
        self.foreign = True
        code, defaults, keyword = function.__code__, function.__defaults__, function.__kwdefaults__
        self.watches.append(
            lambda: (
                function.__code__ is code and function.__defaults__ is defaults and function.__kwdefaults__ is keyword
            )
        )
        values = dict(keyword or {})
        self.watches.append(lambda: same_objects(function.__kwdefaults__ or {}, values))
        name = f"{function.__module__}.{function.__qualname__}"
        described = [
            self.describe(value, f"a default of {name}") for value in (*(defaults or ()), *(keyword or {}).values())
        ]
        described += [self._cell(cell, n) for n, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)]
        described += [self._global(function.__globals__, n) for n in sorted(set(global_names(code)))]
        described += self._attributes(function)
        described += [self._import(n) for n in sorted(set(imports(code, function.__module__ or "")))]
        return ("function", name, describe_bytecode(code), tuple(keyword or ()), *described)

    def _attributes(self, function: FunctionType) -> Iterator[Any]:
        """Describe what somebody put on a function, which may read it by its own name."""
        held = dict(vars(function))
        self.watches.append(lambda: same_objects(vars(function), held))
        for name in sorted(name for name in held if not name.startswith("__")):
            yield (name, self.describe(held[name], f"{function.__qualname__}.{name}"))

    def _cell(self, cell: Any, name: str) -> Any:
        held = _contents(cell)
        self.watches.append(lambda: _contents(cell) is held)
        return (name, "empty") if held is _EMPTY else (name, self.describe(held, f"the closure's {name!r}"))

    def _global(self, namespace: dict[str, Any], name: str) -> Any:
        held = namespace.get(name, _EMPTY)
        self.watches.append(lambda: namespace.get(name, _EMPTY) is held)
        # Not there: a builtin, identified by Python's version, or a name that is defined later.
        return (name, "absent") if held is _EMPTY else (name, self.describe(held, f"the global {name!r}"))

    def _import(self, module_name: str) -> Any:
        version = package_version(module_name)
        if version is None:
            raise NotIdentifiable(self.name, f"it imports the module {module_name}, which has no version")
        return ("import", module_name, version)

    def _class(self, cls: type) -> Any:
        described: list[Any] = []
        for base in cls.__mro__[:-1]:
            version = package_version(base.__module__)
            described.append((base.__module__, base.__qualname__, version))
            if base.__module__.partition(".")[0] not in sys.stdlib_module_names:  # nobody patches Python's own
                described += self._members(base)
        return ("class", *described)

    def _members(self, cls: type) -> Iterator[Any]:
        """Describe what a class holds, except for what Python itself puts there."""
        held = dict(vars(cls))
        self.watches.append(lambda: same_objects(vars(cls), held))
        for name in sorted(held):
            member = held[name]
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if name.startswith("__") and name.endswith("__") and not _is(function, FunctionType):
                continue  # such as __dict__ and __slotnames__
            if getattr(function, "__module__", "") == "mmcache.wrapping" and _undecorated(function) is function:
                continue  # what an installation put there in place of nothing
            if isinstance(member, _DESCRIPTORS_OF_C):
                yield (name, type(member).__name__, getattr(member, "__qualname__", ""))
            elif name != "_abc_impl":  # the book of who is a subclass
                yield (name, self.describe(member, f"{cls.__qualname__}.{name}"))


def _library_version(value: Any) -> str | None:
    """Return the version of the package that a function or class comes from; None if a part of it comes from none.

    ``functools.wraps`` lends the name of a library's function to anybody's code, and a library's decorator puts its
    own code around anybody's function: so both count, where the code lies and what it says, all the way in.
    """
    homes = [value.__module__]
    chain: list[Any] = []
    while _is(value, FunctionType) and value not in chain:
        chain.append(value)
        homes += [value.__module__, value.__globals__.get("__name__")]
        value = getattr(value, "__wrapped__", None)
    versions = [package_version(home or "") for home in homes]
    return None if None in versions else versions[0]


def _undecorated(value: Any) -> Any:
    """Return what mmcache itself wrapped, so that caching a function or class does not change its identity."""
    return getattr(value, "__mmcache_original__", value) if _is(value, FunctionType) else value


def _is(value: Any, *kinds: type) -> bool:
    """Whether a value really is of one of these types: a mock only says that it is, and ``isinstance`` believes it."""
    return issubclass(type(value), kinds)


def _is_image_processor(value: Any) -> bool:
    return any(
        base.__name__ == "ImageProcessingMixin" and base.__module__.startswith("transformers.")
        for base in type(value).__mro__
    )


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def is_method(function: Any) -> bool:
    """Whether a function belongs to a class, as far as its name and first argument tell, or is bound to an object."""
    if isinstance(function, MethodType):
        return True
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    inner = function.__qualname__.rpartition("<locals>.")[2]
    return "." in inner and arguments[:1] in (("self",), ("cls",))
