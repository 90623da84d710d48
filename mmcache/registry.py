"""The open caches of this process: closed at its end, and found again by their settings."""

import atexit
import weakref
from collections.abc import Hashable
from typing import Protocol


class Closable(Protocol):
    """Something to be closed at the end of the process."""

    def close(self) -> None:
        """Close it; closing twice does nothing."""


_open: "weakref.WeakSet[Closable]" = weakref.WeakSet()
_by_settings: "weakref.WeakValueDictionary[Hashable, Closable]" = weakref.WeakValueDictionary()
_registered: list[bool] = []


def remember(cache: Closable, settings: Hashable) -> None:
    """Close a cache at the end of the process, which writes its last line in the log; the latest with its settings."""
    if not _registered:
        # Here and not at import: importing mmcache changes nothing in the process.
        _registered.append(True)
        atexit.register(_close_all)
    _open.add(cache)
    _by_settings[settings] = cache


def with_settings(settings: Hashable) -> Closable | None:
    """Return the latest cache with these settings that is still alive."""
    return _by_settings.get(settings)


def _close_all() -> None:
    for cache in list(_open):
        cache.close()
