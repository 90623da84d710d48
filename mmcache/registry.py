"""The caches of this process: closed at its end, and found again by a name when they come back from a journey."""

import atexit
import weakref
from collections.abc import Hashable
from typing import Protocol


class Closable(Protocol):
    """Something to be closed at the end of the process."""

    def close(self) -> None:
        """Close it; closing twice does nothing."""


_open: "weakref.WeakSet[Closable]" = weakref.WeakSet()
_named: "weakref.WeakValueDictionary[Hashable, Closable]" = weakref.WeakValueDictionary()
_registered: list[bool] = []


def close_at_exit(cache: Closable) -> None:
    """Close a cache at the end of the process, which writes its last line in the log."""
    if not _registered:
        # Here and not at import: importing mmcache changes nothing in the process.
        _registered.append(True)
        atexit.register(_close_all)
    _open.add(cache)


def name(cache: Closable, name: Hashable) -> None:
    """Let a cache be found by a name, for as long as it lives."""
    _named[name] = cache


def find(name: Hashable) -> Closable | None:
    """Return the latest cache of this name that is still alive."""
    return _named.get(name)


def _close_all() -> None:
    for cache in list(_open):
        cache.close()
