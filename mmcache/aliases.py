"""Aliases: what content certain bytes have for a certain loader.

Keys, flights and items know content alone, so a PNG and a lossless WebP of one picture share one item; and whoever has
an alias for the bytes needs no pixels until an item is missing.
"""

import threading
from typing import NamedTuple

import cachetools

from mmcache.forks import renew_in_children
from mmcache.layout.probes import Trait

# Half a kilobyte each, so two megabytes in all beside the budget.
_MOST_ALIASES = 4096


class Content(NamedTuple):
    """What a call has to know of a picture, short of its pixels."""

    fingerprint: bytes
    trait: Trait
    size: tuple[int, ...]


class Aliases:
    """The contents of bytes that were loaded lately, for any number of threads."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._contents: cachetools.LRUCache[bytes, Content] = cachetools.LRUCache(_MOST_ALIASES)
        renew_in_children(self)

    def get(self, key: bytes) -> Content | None:
        """Return the content of bytes, by their digest and the loader's."""
        with self._lock:
            return self._contents.get(key)

    def put(self, key: bytes, content: Content) -> None:
        """Remember a content in place of the one that was used least lately."""
        with self._lock:
            self._contents[key] = content

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._contents.clear()

    def after_fork_in_child(self) -> None:
        """Start with a new lock; what another thread was changing may be half changed."""
        self._lock = threading.Lock()
        self._contents = cachetools.LRUCache(_MOST_ALIASES)
