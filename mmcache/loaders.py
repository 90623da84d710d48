"""Loaders of other packages that `install` covers: functions that fetch, decode and resize a picture of a message.

In evaluation they cost more than the processor. They are cached functions like any other, put where their own package
looks them up, and only in packages that are loaded: nothing is imported for anybody.
"""

import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from mmcache.cache import Cache
from mmcache.errors import BadArgument, NotIdentifiable
from mmcache.forks import renew_in_children
from mmcache.functions import cached


class _Loader(NamedTuple):
    name: str
    modules: tuple[str, ...]
    """Where it stands under its name: first the module that defines it and looks it up."""


_LOADERS = (_Loader("fetch_image", ("qwen_vl_utils.vision_process", "qwen_vl_utils")),)


class _Cover(NamedTuple):
    loader: _Loader
    original: Callable[..., Any]
    cached: Callable[..., Any]


class Loaders:
    """The loaders that an installation has put its cache under."""

    def __init__(self, cache: Cache) -> None:
        """Cover nothing yet."""
        self._cache = cache
        self._lock = threading.Lock()
        self._closed = False
        self._covers: dict[_Loader, _Cover] = {}
        renew_in_children(self)

    def cover(self) -> None:
        """Put the cache under the loaders of packages that were loaded since the last time; cheap if there are none."""
        try:
            for loader in _LOADERS:
                if loader not in self._covers and loader.modules[0] in sys.modules:
                    self._cover(loader)
        except Exception as fault:  # noqa: BLE001 - law 3: this stands in front of somebody's call
            self._cache.stats.fault(fault)

    def _cover(self, loader: _Loader) -> None:
        # A module that is only half imported has no such function yet: the next call will find it.
        original = getattr(sys.modules[loader.modules[0]], loader.name, None)
        if original is None:
            return
        with self._lock:
            if self._closed or loader in self._covers:
                return
            self._covers[loader] = cover = _Cover(loader, original, self._cached(original))
            _exchange(cover.loader, cover.original, cover.cached)

    def _cached(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a loader with the cache in front; as it is where somebody has cached it already."""
        if hasattr(original, "__mmcache_original__"):
            return original
        try:
            with_cache: Callable[..., Any] = cached(cache=self._cache)(original)
        except (NotIdentifiable, BadArgument) as refused:  # somebody patched it
            self._cache.stats.warn_once("loader", "a loader is not cached: %s", refused)
            return original
        return with_cache

    def close(self) -> None:
        """Put back what is still there, and cover nothing any more."""
        with self._lock:
            self._closed = True
            covers, self._covers = self._covers, {}
        for cover in covers.values():
            _exchange(cover.loader, cover.cached, cover.original)

    def after_fork_in_child(self) -> None:
        """Replace a lock that another thread may have held."""
        self._lock = threading.Lock()


def _exchange(loader: _Loader, old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Replace a loader wherever it stands under its name; where something else stands, somebody means it."""
    for module in map(sys.modules.get, loader.modules):
        if isinstance(module, ModuleType) and vars(module).get(loader.name) is old:
            setattr(module, loader.name, new)
