"""`cached`: a function of one image (or of a batch, with a layout) that remembers what it gave."""

import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from mmcache.cache import Cache
from mmcache.calls import Bypass, Unshared, processors_own
from mmcache.errors import BadArgument, NotEncodable, NotIdentifiable, NotJoinable, UnsupportedSource
from mmcache.fingerprints import UndecodableSource, encode, handling, samples_of, taken_apart
from mmcache.fingerprints.code import CodeIdentity, is_method
from mmcache.fingerprints.identity import RefusedOptions, described, modes, surroundings
from mmcache.items import Item
from mmcache.layout.arrays import is_array
from mmcache.layout.fields import Field, Layout
from mmcache.processwide import default_cache
from mmcache.randomness import RandomStates, random_states
from mmcache.stats import CacheInfo
from mmcache.wrapping import takes_images

P = ParamSpec("P")
R = TypeVar("R")


class CachedCallable(Protocol[P, R]):
    """A cached function: the function itself for callers and type checkers, with its cache beside it."""

    __wrapped__: Callable[P, R]
    """The plain function."""
    cache: Cache
    """The cache that it uses, which others may use too."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Look the image up, or call the function."""
        ...

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., R]:
        """Bind like a plain function."""
        ...

    def cache_info(self) -> CacheInfo:
        """Return the figures of ``cache``."""
        ...

    def cache_clear(self) -> None:
        """Drop every item of ``cache``."""
        ...


@overload
def cached(function: Callable[P, R], /) -> CachedCallable[P, R]: ...
@overload
def cached(
    *,
    cache: Cache | None = None,
    source: str | None = None,
    layout: Mapping[str, Field] | None = None,
    version: str | None = None,
) -> Callable[[Callable[P, R]], CachedCallable[P, R]]: ...
def cached(
    function: Callable[..., Any] | None = None,
    /,
    *,
    cache: Cache | None = None,
    source: str | None = None,
    layout: Mapping[str, Field] | None = None,
    version: str | None = None,
) -> Any:
    """Remember what a function (sync or ``async def``) gives for an image and its other arguments.

    The image is an argument of the function: a PIL image, array, tensor, encoded bytes, a path, a ``file://`` or data
    URL, a base64 text, or a dict of chat content around one of these. What it returns is a tree of tensors, arrays, PIL
    images, numbers, strings and None in dicts, lists, tuples and BatchFeature; callers get copies.

    Args:
        function: the function, where `cached` is used without options.
        cache: where to remember it; None is the process-wide cache.
        source: the name of the argument that is the image; the first one if it is not given.
        layout: for a function of a *list* of images that returns a mapping: the field of each output. The list is then
            looked up image by image, and the function is called with the missing ones, one at a time.
        version: a text that you change whenever the outputs change. Needed where the function's code cannot be
            identified safely; then nothing but this text, its name and its own bytecode stands for it. Of a method, the
            object is left out of the key: the version has to cover it too.

    Raises:
        NotIdentifiable: the function names something that has no identity (a model, a connection), or is a method,
            and there is no ``version``. The message names the culprit.
        BadArgument: not a function, or no such argument.

    >>> @cached
    ... def mean(image):
    ...     return image.mean()
    """
    if function is None:
        return functools.partial(_decorated, cache=cache, source=source, layout=layout, version=version)
    return _decorated(function, cache=cache, source=source, layout=layout, version=version)


def _decorated(
    function: Callable[..., Any],
    *,
    cache: Cache | None,
    source: str | None,
    layout: Mapping[str, Field] | None,
    version: str | None,
) -> Any:
    if version is not None and not isinstance(version, str):
        raise BadArgument("version", version, "a text")
    plan = _Plan(function, source, _checked_layout(layout), version)
    # Made here if there is none yet, so that `.cache` is the cache and not a promise of one.
    used = cache if cache is not None else default_cache()
    if not isinstance(used, Cache):
        raise BadArgument("cache", cache, "an mmcache.Cache, or None for the process-wide one")

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await used.aserve(_FunctionCall(plan, used, args, kwargs))
    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if used.passes(lambda: plan.samples(args, kwargs), 1):
                return used.passed(functools.partial(function, *args, **kwargs))
            return used.serve(_FunctionCall(plan, used, args, kwargs))

    vars(wrapper).update(__mmcache_original__=function, cache=used, cache_info=used.cache_info, cache_clear=used.clear)
    return wrapper


def _checked_layout(layout: Mapping[str, Field] | None) -> Layout | None:
    if layout is None:
        return None
    fields = layout.values() if isinstance(layout, Mapping) else [layout]
    if not fields or not all(hasattr(field, "join") and not isinstance(field, str | type) for field in fields):
        accepted = 'a field of mmcache.layout for each output, such as {"pixel_values": mmcache.layout.Batched()}'
        raise BadArgument("layout", layout, accepted)
    return Layout(dict(layout))


class _Plan:
    """What is known of a function from the moment it is decorated."""

    def __init__(self, function: Any, source: str | None, layout: Layout | None, version: str | None) -> None:
        if not inspect.isfunction(function) or inspect.isgeneratorfunction(function):
            accepted = "a function (def, async def or lambda, no bound method) that returns its result"
            raise BadArgument("function", type(function), accepted)
        if inspect.isasyncgenfunction(function):
            raise BadArgument("function", "an async generator function", "a function that returns its result")
        self.function, self.layout = function, layout
        self.name = f"{function.__module__}.{function.__qualname__}"
        self.signature = inspect.signature(function)
        self.method = is_method(function)
        names = list(self.signature.parameters)[self.method :]
        if not names or (source is not None and source not in names):
            raise BadArgument("source", source, f"the name of an argument of {self.name}: {names}")
        self.source = source if source is not None else names[0]
        self._code = None if version is not None else self._identified()
        # With a version, that text stands for all that the code names; its own bytecode costs nothing to add.
        self._versioned = ("version", self.name, version, function.__code__.co_code)

    def _identified(self) -> CodeIdentity:
        if self.method:
            raise NotIdentifiable(
                self.name, "it is a method, and its object can be anything (a version has to cover the object too)"
            )
        return CodeIdentity(self.function)

    def samples(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
        first = next(iter(self.signature.parameters)) == self.source
        source = kwargs.get(self.source, args[0] if first and args else None)
        return samples_of(source if self.layout is not None and isinstance(source, list) else [source])

    def identity(self) -> tuple[Any, ...]:
        return self._code.current() if self._code is not None else self._versioned


class _FunctionCall:
    """One call of a cached function, as the cache sees it."""

    def __init__(self, plan: _Plan, cache: Cache, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._plan, self._cache, self._args, self._kwargs = plan, cache, args, kwargs
        self.images, self.single = 1, plan.layout is None

    def plain(self) -> Any:
        return self._plan.function(*self._args, **self._kwargs)

    def keys(self) -> list[bytes]:
        plan = self._plan
        try:
            self._bound = plan.signature.bind(*self._args, **self._kwargs)
        except TypeError:
            raise Bypass("arguments that do not fit the function") from None
        arguments = dict(self._bound.arguments)
        if plan.source not in arguments:
            raise Bypass(f"the image {plan.source!r} is not given")
        self._sources = self._listed(arguments.pop(plan.source))
        self.images = len(self._sources)
        try:
            parts = (plan.identity(), _as_seen(self._others(arguments)), surroundings(), modes())
            self._identity = self._cache.hasher.digest(encode(parts))
            identified = [self._identified(source) for source in self._sources]
        except (NotEncodable, NotIdentifiable, RefusedOptions, UnsupportedSource) as refused:
            raise Bypass(f"{plan.name}: {refused}") from None
        if (verdict := self._cache.trials.known(self._identity)) is not None:
            raise Bypass(f"{plan.name}: {verdict.reason}")
        self._named = [named for _, named in identified]
        return [key for key, _ in identified]

    def stratum(self) -> tuple[tuple[bytes, ...], Hashable | None] | None:
        if self._plan.layout is None or inspect.iscoroutinefunction(self._plan.function):
            return None
        return (self._identity,), self.images

    def compute(self, position: int) -> Any:
        if inspect.iscoroutinefunction(self._plan.function):
            return self._acompute(position)
        before = random_states()
        arguments = self._with(position)
        with processors_own():
            raw = self._plan.function(*arguments.args, **arguments.kwargs)
        return self._checked(raw, position, before)

    async def _acompute(self, position: int) -> Any:
        function: Callable[..., Awaitable[Any]] = self._plan.function
        before = random_states()
        arguments = self._with(position)
        with processors_own():
            raw = await function(*arguments.args, **arguments.kwargs)
        return self._checked(raw, position, before)

    def given(self, raw: Any) -> Any:
        return raw

    def join(self, items: Sequence[Item]) -> Any:
        if self._plan.layout is None:
            return items[0].thaw()
        try:
            return self._plan.layout.join([item.value for item in items])
        except NotJoinable as refused:
            raise Bypass(f"{self._plan.name}: its outputs make no batch: {refused}") from None

    def _listed(self, source: Any) -> list[Any]:
        if self._plan.layout is None:
            return [source]
        if not isinstance(source, list | tuple) or not source:
            raise Bypass("a batch function that was not given a list of images")
        return list(source)

    def _others(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments beside the image, defaults included; an object of a method is the version's business."""
        others = {n: p.default for n, p in self._plan.signature.parameters.items() if p.default is not p.empty}
        others.update(arguments)
        others.pop(self._plan.source, None)
        if self._plan.method:
            others.pop(next(iter(self._plan.signature.parameters)), None)
        return others

    def _key(self, source: Any) -> bytes:
        return self._cache.key(self._identity, source, metadata=True)

    def _identified(self, source: Any) -> tuple[bytes, list[tuple[Any, bytes]]]:
        """Return the key of a source or of chat content, and every name of a file in it with a key of its own."""
        entries, parts = taken_apart(source) if type(source) is dict else (None, [source])
        keys = [self._key(part) for part in parts]
        named = [pair for pair in zip(parts, keys, strict=True) if isinstance(pair[0], str | os.PathLike)]
        if entries is None:
            return keys[0], named
        return self._cache.hasher.digest(encode(("chat content", _as_seen(entries), keys))), named

    def _with(self, position: int) -> inspect.BoundArguments:
        """Return the arguments for one image: in a list of one for a batch function."""
        if self._plan.layout is None:
            return self._bound
        arguments = {**self._bound.arguments, self._plan.source: [self._sources[position]]}
        return inspect.BoundArguments(self._plan.signature, arguments)

    def _checked(self, raw: Any, position: int, before: RandomStates) -> Any:
        """Keep nothing that may be random (other threads and tasks may have drawn: a hit is lost, never wrong).

        Nor what came from a file that was replaced or removed meanwhile: the function opens it by itself.
        """
        if random_states() != before:
            if not self.single:  # the function itself will draw them for the whole batch
                before.restore()
            return Unshared(raw, f"{self._plan.name}: random numbers were drawn while it ran")
        if any(self._key_now(source) != key for source, key in self._named[position]):
            return Unshared(raw, f"{self._plan.name}: the file changed while it was processed")
        return raw

    def _key_now(self, source: Any) -> bytes | None:
        try:
            return self._key(source)
        except (UnsupportedSource, UndecodableSource):
            return None


def _as_seen(value: Any) -> Any:
    """Make all count that a function can see, at any depth: the order of dicts, strides, an image processor's state."""
    if type(value) is dict:
        return ("dict", [(name, _as_seen(member)) for name, member in value.items()])
    if is_array(value):
        return ("array", value, handling(value))
    if takes_images(type(value)):
        return ("image processor", described(value, {}).encoded)
    return type(value)(map(_as_seen, value)) if type(value) in (list, tuple) else value
