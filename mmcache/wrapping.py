"""Hugging Face processors: `wrap` one, or `install` the cache under all of them.

Both replace ``preprocess``, which every way of calling a processor ends in: `wrap` on a subclass, whose objects keep
their cache in a slot (so that their attributes, dicts and files know nothing of it), `install` on the classes themselves.
"""

import copy
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from mmcache.cache import Cache
from mmcache.errors import BadArgument, InUse
from mmcache.fingerprints import samples_of
from mmcache.fingerprints.identity import plain_class, slots_of
from mmcache.layout.book import PATIENCE_SECONDS
from mmcache.processing import ProcessorCall
from mmcache.processwide import default_cache

ProcessorT = TypeVar("ProcessorT")

# The slot in which the object of a wrapped class has its cache.
_CACHE = "__mmcache_cache__"

_ACCEPTED = "a Hugging Face image processor (an instance), or a Processor with one as .image_processor"


def wrap(processor: ProcessorT, cache: Cache | None = None) -> ProcessorT:
    """Return a copy of a processor that looks every image up before it processes it.

    The copy is of the same class for ``isinstance``, has the same attributes, saves, copies and travels to other
    processes like the original (without items); the original stays as it is. ``cache=None`` is the process-wide cache.

    Raises:
        BadArgument: not a Hugging Face image processor or Processor.

    >>> from transformers import CLIPImageProcessorPil
    >>> processor = wrap(CLIPImageProcessorPil(), Cache("64MiB"))
    >>> isinstance(processor, CLIPImageProcessorPil)
    True
    """
    cache = cache if cache is not None else default_cache()
    if not isinstance(cache, Cache):
        raise BadArgument("cache", cache, "an mmcache.Cache, or None for the process-wide one")
    return _over_parts(processor, lambda part: _wrapped(part, cache))


def unwrap(processor: ProcessorT) -> ProcessorT:
    """Return a copy of a wrapped processor without the cache, with the attributes that it has now.

    A processor that is not wrapped is copied as it is.

    Raises:
        BadArgument: not a Hugging Face image processor or Processor.
    """
    return _over_parts(processor, lambda part: _as_class(part, plain_class(type(part))))


def plain_with_images(processor: ProcessorT) -> ProcessorT:
    """`unwrap`, for what is about images: a bare video processor is refused."""
    plain = unwrap(processor)
    if _takes(type(plain)) == "videos":
        raise BadArgument("processor", type(processor), _ACCEPTED)
    return plain


def takes_images(cls: type) -> bool:
    """Whether a class is an image processor: one of transformers' with a ``preprocess(images, ...)``."""
    return _takes(cls) == "images"


def _takes(cls: type) -> str:
    """Return the name of what a processor class takes first: "images", "videos", or "" if it is no such class."""
    preprocess = getattr(cls, "preprocess", None)
    if not callable(preprocess) or not any(base.__name__ == "ImageProcessingMixin" for base in cls.__mro__):
        return ""
    first = _first_parameter(preprocess)
    return first if first in ("images", "videos") else ""


@functools.lru_cache(maxsize=4096)
def _first_parameter(method: Callable[..., Any]) -> str:
    """Return the name of a method's first parameter beside the object, or ""."""
    return "".join(list(inspect.signature(method).parameters)[1:2])


def _over_parts(processor: ProcessorT, change: Callable[[Any], Any]) -> ProcessorT:
    """Return a copy of a processor that was changed, or of a Processor whose image and video processors were."""
    if _takes(type(processor)):
        changed: ProcessorT = change(processor)
        return changed
    parts = {name: getattr(processor, name, None) for name in ("image_processor", "video_processor")}
    if not _takes(type(parts["image_processor"])):
        raise BadArgument("processor", processor if isinstance(processor, type) else type(processor), _ACCEPTED)
    twin = copy.copy(processor)
    for name, part in parts.items():
        if _takes(type(part)):
            setattr(twin, name, change(part))
    return twin


def _wrapped(processor: Any, cache: Cache) -> Any:
    wrapped = _as_class(processor, _wrapped_class(plain_class(type(processor))))
    setattr(wrapped, _CACHE, cache)
    return wrapped


def _as_class(processor: ProcessorT, cls: type) -> ProcessorT:
    """Return a shallow copy of an object under another class of the same layout."""
    twin: ProcessorT = object.__new__(cls)
    for name, value in slots_of(processor).items():
        setattr(twin, name, value)
    twin.__dict__.update(vars(processor))
    return twin


def _wrapped_class(plain: type) -> type:
    """Return the subclass that looks images up; by name, module and documentation it is the plain class."""
    subclasses: list[type] = plain.__subclasses__()
    made = next((subclass for subclass in subclasses if _CACHE in vars(subclass)), None)
    wrapped = made if made is not None else _new_wrapped_class(plain)
    _let_datasets_see_the_plain_one(wrapped)
    return wrapped


def _new_wrapped_class(plain: type) -> type:
    def reduce(self: Any, protocol: Any) -> Any:
        # Somebody's subclass of this class is not what `wrap` makes, and travels (or does not) like any other.
        own = _CACHE in vars(type(self))
        return (wrap, (unwrap(self), getattr(self, _CACHE))) if own else object.__reduce_ex__(self, protocol)

    def original(self: Any, *args: Any, **options: Any) -> Any:
        # Looked up now: somebody may patch the plain class at any time, and then means us too.
        return plain.preprocess(self, *args, **options)  # type: ignore[attr-defined]

    refused = _refusal(plain)

    @functools.wraps(plain.preprocess)  # type: ignore[attr-defined]
    def preprocess(self: Any, *args: Any, **options: Any) -> Any:
        cache = getattr(self, _CACHE, None)
        if cache is None:
            return original(self, *args, **options)
        if _passes(cache, args, options):
            return cache.passed(functools.partial(original, self, *args, **options))
        why = refused or _passed_over(self, preprocess)
        return cache.serve(ProcessorCall(cache, self, original, args, options, patience=PATIENCE_SECONDS, refused=why))

    preprocess.__mmcache_original__ = original  # type: ignore[attr-defined]
    members = {
        "preprocess": preprocess,
        "__mmcache_plain__": plain,
        "__slots__": (_CACHE,),
        "__reduce_ex__": reduce,
        "__module__": plain.__module__,
        "__qualname__": plain.__qualname__,
        "__doc__": plain.__doc__,
    }
    return type(plain)(plain.__name__, (plain,), members)


def _let_datasets_see_the_plain_one(wrapped: type) -> None:
    """Have the fingerprints of ``datasets`` be those of the plain processor, so that its caches stay valid.

    They are digests of what its own pickler gives; whoever loads ``datasets`` only after `wrap` gets others.
    """
    picklers = sys.modules.get("datasets.utils._dill")
    if picklers is None or wrapped in picklers.Pickler.dispatch:
        return

    @picklers.pklregister(wrapped)  # type: ignore[untyped-decorator]
    def save(pickler: Any, processor: Any) -> None:
        plain = unwrap(processor)
        pickler.save(plain)
        # Where the processor comes up again, its pickler finds it as it would have found the plain one.
        pickler.memo[id(processor)] = pickler.memo[id(plain)]


def _passes(cache: Cache, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether a call is plain since nothing comes back: known before there is anything made for it."""
    images = args[0] if args else options.get("images")
    listed = images if isinstance(images, list | tuple) else [images]
    return cache.passes(functools.partial(samples_of, listed), len(listed))


def _passed_over(processor: Any, called: Callable[..., Any]) -> str:
    """Return why a call is not that which a key stands for: ``super().preprocess``, past the class's own; or ""."""
    own = type(processor).preprocess
    while own is not called:
        own = getattr(own, "__wrapped__", None)  # somebody may have put a decorator over it
        if own is None:
            return "a preprocess that is not that of the object's class"
    return ""


def _refusal(cls: type) -> str:
    """Return why a class is never looked up, or ""."""
    return "videos are not cached" if _takes(cls) == "videos" else ""


def _served(cls: type, original: Callable[..., Any], cache: Cache, each_time: Callable[[], None]) -> Callable[..., Any]:
    """Return ``preprocess`` as it looks with the cache of an installation in front of it: nobody waits for a trial."""
    refused = _refusal(cls)

    @functools.wraps(original)
    def preprocess(self: Any, *args: Any, **options: Any) -> Any:
        each_time()
        if _passes(cache, args, options):
            return cache.passed(functools.partial(original, self, *args, **options))
        why = refused or _passed_over(self, preprocess)
        return cache.serve(ProcessorCall(cache, self, original, args, options, patience=0.0, refused=why))

    preprocess.__mmcache_original__ = original  # type: ignore[attr-defined]
    return preprocess


class Installation:
    """What `install` did, to be undone by `close` or at the end of a ``with`` block."""

    def __init__(self, cache: Cache, mixin: Any) -> None:
        """Patch every image processor class under ``mixin``, those that will be defined, and the known loaders."""
        from mmcache.loaders import Loaders

        self.cache = cache
        # Packages that are imported later are found by the next call of a processor.
        self._loaders = Loaders(cache)
        self._loaders.cover()
        self._mixin = mixin
        self._lock = threading.Lock()
        self._closed = False
        self._patched: dict[type, tuple[Callable[..., Any], Callable[..., Any]]] = {}
        for cls in list(_subclasses(mixin)):
            self._patch(cls)
        installation = self

        def patch_new(cls: Any, **options: Any) -> None:
            super(mixin, cls).__init_subclass__(**options)
            installation._patch(cls)

        mixin.__init_subclass__ = classmethod(patch_new)  # type: ignore[arg-type]

    def _patch(self, cls: type) -> None:
        original = vars(cls).get("preprocess")
        if original is None or "__mmcache_plain__" in vars(cls) or not _takes(cls):
            return
        with self._lock:
            if not self._closed:
                served = _served(cls, original, self.cache, self._loaders.cover)
                self._patched[cls] = (original, served)
                cls.preprocess = served  # type: ignore[attr-defined]

    def close(self) -> None:
        """Put every class back as it was; the cache stays open. Closing twice does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            patched, self._patched = self._patched, {}
        self._loaders.close()
        del self._mixin.__init_subclass__
        del _installed["here"]
        for cls, (original, served) in patched.items():
            if vars(cls).get("preprocess") is served:  # else somebody patched it since, and means to stay
                cls.preprocess = original  # type: ignore[attr-defined]

    def __enter__(self) -> "Installation":
        """Return the installation, to be closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


_installed: dict[str, Installation] = {}


def install(cache: Cache | None = None) -> Installation:
    """Put the cache under every Hugging Face image processor of this process, those made later included.

    Where ``qwen_vl_utils`` is loaded, its ``fetch_image`` (and with it ``process_vision_info``) is a cached function too.
    Trials run in the background while calls go to the plain processor, so that no engine waits for one.
    ``cache=None`` is the process-wide cache, which is made with keyed digests here: in a server others choose the pictures.

    Raises:
        InUse: there is an installation already; close it first.
        BadArgument: not a cache.
    """
    cache = cache if cache is not None else default_cache(exposed=True)
    if not isinstance(cache, Cache):
        raise BadArgument("cache", cache, "an mmcache.Cache, or None for the process-wide one")
    if "here" in _installed:
        raise InUse(f"{_installed['here'].cache} is installed already: close that installation first")
    from transformers.image_processing_base import ImageProcessingMixin

    _installed["here"] = installation = Installation(cache, ImageProcessingMixin)
    return installation


def _subclasses(cls: type) -> Iterator[type]:
    subclasses: list[type] = cls.__subclasses__()
    for subclass in subclasses:
        yield subclass
        yield from _subclasses(subclass)
