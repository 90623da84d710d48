"""The memory tier: an LRU by bytes that never keeps more alive than it was given.

What can happen, and why this is right:

*Everything is counted.* Three sums share one budget: entries in the LRU, entries that are pinned, and bytes that others
hold for us (`MemoryTier.hold`). Each change of a sum ends with ``LRU + pinned + held <= max_bytes``, or with an empty
LRU. Pinned entries and held bytes cannot be evicted, so a put has to fit beside them or is not kept; a put that is not
kept changes nothing.

*Nothing is freed under the lock.* Freeing an item may run code of others (``__del__``, weakref callbacks) which may
come back here. What leaves the store is moved to a list, and the list is emptied after the lock was released.

*Finalizers take no lock.* The garbage collector runs them anywhere, so also in the thread that holds our lock. They
append to a deque (`MemoryTier.unpin_later`), which the next operation drains.

*A fork may happen while another thread holds the lock.* That thread does not exist in the child, and what it was
changing may be half changed. The child then starts with a new lock and an empty store. How often each key is pinned and
how much is held stay: these are single values that are always whole, and their owners (tickets) live on in the child.

*Freed is not given back.* Once a large block was freed, glibc's malloc keeps such blocks (up to 32 MB) for reuse; with
items of mixed sizes the process grew to 1.5 times the budget, and stayed there after `MemoryTier.clear`. So each time a
share of the budget was dropped, the tier asks malloc to give free pages back.

Doubt: a *cyclic* item with a ``__del__`` that calls anything here but `MemoryTier.unpin_later` could be collected
inside the lock and wait for itself. The items of this package are not cyclic and have no ``__del__``.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, NamedTuple, Protocol, TypeVar

from cachetools import Cache, LRUCache

from mmcache.errors import BadArgument

# What an entry costs beside its tensors' bytes: the key, its places in dicts and in the order of the LRU, the Python
# and C++ objects of the item. Measured: 1.5 KB of process memory with one tensor, 2.2 KB with three. Without it a store
# of very small items would grow to many times its budget.
ENTRY_OVERHEAD = 2048


# What may be dropped before malloc is asked to give it back: a sixteenth of the budget, so that the process follows the
# budget within 6 %, and not under 16 MiB. One trim took 0.7 ms, for items that took several 100 ms to compute.
TRIM_SHARE = 16
TRIM_MIN_BYTES = 16 << 20


class Sized(Protocol):
    """Whatever knows how many bytes it keeps alive."""

    @property
    def nbytes(self) -> int:
        """Bytes kept alive: whole storages, not views of them."""
        ...


T = TypeVar("T", bound=Sized)


class _Entry(NamedTuple, Generic[T]):
    item: T
    size: int  # taken once, so that what is added when it comes is what is subtracted when it goes


class MemoryInfo(NamedTuple):
    """What a memory tier holds now, and what it did so far."""

    items: int
    """Entries, pinned ones included."""
    currsize: int
    """Bytes of all entries and of what is held."""
    pinned: int
    """Bytes of pinned entries."""
    held: int
    """Bytes that are kept alive elsewhere and accounted for here."""
    max_bytes: int
    """The budget in bytes."""
    evictions: int
    """Entries that had to make room."""
    refused: int
    """Puts that were not kept because of their size."""


class MemoryTier(Generic[T]):
    """An LRU by bytes, with pins, for any number of threads.

    An entry counts ``item.nbytes + ENTRY_OVERHEAD`` bytes.

    Args:
        max_bytes: the budget in bytes, for entries and for what is held.

    Raises:
        BadArgument: the budget is not above 0.
    """

    def __init__(self, max_bytes: int) -> None:
        """Start empty; see the class."""
        if max_bytes <= 0:
            raise BadArgument("max_bytes", max_bytes, "a number of bytes above 0")
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._late: deque[bytes | int] = deque()
        self._pins: dict[bytes, int] = {}
        self._held = 0
        self._epoch = 0
        self._evictions = 0
        self._refused = 0
        self._untrimmed = 0
        self._trim_bytes = max(max_bytes // TRIM_SHARE, TRIM_MIN_BYTES)
        self._closed = False
        self._start_empty()

    def _start_empty(self) -> None:
        # Neither of the two ever evicts by itself: room is made before anything is put in.
        self._lru: LRUCache[bytes, _Entry[T]] = LRUCache(self._max_bytes, getsizeof=_size)
        self._pinned: Cache[bytes, _Entry[T]] = Cache(self._max_bytes, getsizeof=_size)

    @property
    def max_bytes(self) -> int:
        """The budget in bytes."""
        return self._max_bytes

    @property
    def epoch(self) -> int:
        """How often the tier was emptied; a value computed in an earlier epoch is not to be put."""
        return self._epoch

    def get_many(self, keys: Sequence[bytes]) -> list[T | None]:
        """Return the item of each key, or None; what was found becomes most recently used."""
        with self._locked():
            entries = [self._lru.get(key) or self._pinned.get(key) for key in keys]
        return [None if entry is None else entry.item for entry in entries]

    def __contains__(self, key: bytes) -> bool:
        """Whether the item of a key is here; its last use does not change."""
        with self._locked():
            return key in self._lru or key in self._pinned

    def put(self, key: bytes, item: T, *, epoch: int | None = None) -> bool:
        """Keep an item, as most recently used, in place of what the key had before.

        Args:
            key: the item's key.
            item: what to keep.
            epoch: what `epoch` was when the item's computation began; if it is over, the item is not kept.

        Returns:
            Whether it was kept. If not (too large for what pinned and held bytes leave, another epoch, closed), nothing
            changed, and nothing was evicted for it.
        """
        entry = _Entry(item, item.nbytes + ENTRY_OVERHEAD)
        with self._locked() as dropped:
            if self._closed or (epoch is not None and epoch != self._epoch):
                return False
            before = self._pinned.get(key)
            unmovable = self._held + self._pinned.currsize - (before.size if before else 0)
            if unmovable + entry.size > self._max_bytes:
                self._refused += 1
                return False
            self._remove(key, dropped)
            self._make_room(entry.size, dropped)
            store = self._pinned if key in self._pins else self._lru
            store[key] = entry
            return True

    def delete(self, key: bytes) -> None:
        """Drop the item of a key, pinned or not. Its pins stay, for an item that comes later."""
        with self._locked() as dropped:
            self._remove(key, dropped)

    def touch(self, keys: Iterable[bytes]) -> None:
        """Make items most recently used; keys without an item are passed over."""
        with self._locked():
            for key in keys:
                self._lru.get(key)

    def clear(self) -> None:
        """Drop all items, pinned ones too, and begin a new epoch. Pins stay, for items that come later."""
        with self._locked() as dropped:
            self._empty(dropped)

    def close(self) -> None:
        """Clear, and keep nothing any more. May be called again."""
        with self._locked() as dropped:
            self._closed = True
            self._empty(dropped)

    def pin(self, key: bytes) -> None:
        """Keep the item of a key from eviction, now or when it comes, until as many `unpin` as `pin` were called."""
        with self._locked():
            self._pins[key] = self._pins.get(key, 0) + 1
            entry = self._lru.pop(key, None)
            if entry is not None:
                self._pinned[key] = entry

    def unpin(self, key: bytes) -> None:
        """Take back one `pin`; with the last one the item becomes evictable, as most recently used.

        A key that is not pinned is passed over.
        """
        with self._locked() as dropped:
            self._unpin(key, dropped)

    def unpin_later(self, key: bytes) -> None:
        """`unpin` with the next operation of anybody. For finalizers: takes no lock and never fails."""
        self._late.append(key)

    def hold(self, nbytes: int) -> None:
        """Account for bytes that are kept alive elsewhere; evicts to make room, and is never refused.

        Raises:
            BadArgument: a negative number.
        """
        if nbytes < 0:
            raise BadArgument("nbytes", nbytes, "a number of bytes, 0 or more")
        with self._locked() as dropped:
            self._held += nbytes
            self._make_room(0, dropped)

    def release(self, nbytes: int) -> None:
        """Take back a `hold` of as many bytes.

        Raises:
            BadArgument: a negative number.
        """
        if nbytes < 0:
            raise BadArgument("nbytes", nbytes, "a number of bytes, 0 or more")
        with self._locked():
            self._held = max(0, self._held - nbytes)

    def release_later(self, nbytes: int) -> None:
        """`release` with the next operation of anybody. For finalizers: takes no lock and never fails."""
        self._late.append(nbytes)

    def info(self) -> MemoryInfo:
        """Return all numbers, of one moment."""
        with self._locked():
            return MemoryInfo(
                items=len(self._lru) + len(self._pinned),
                currsize=int(self._lru.currsize + self._pinned.currsize) + self._held,
                pinned=int(self._pinned.currsize),
                held=self._held,
                max_bytes=self._max_bytes,
                evictions=self._evictions,
                refused=self._refused,
            )

    def after_fork_in_child(self) -> None:
        """Replace a lock that is not free, and what it guarded; to be called in a forked child before anything else."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
            return
        self._lock = threading.Lock()
        self._epoch += 1
        self._start_empty()

    @contextmanager
    def _locked(self) -> Iterator[list[object]]:
        """Hold the lock, late unpins done. What is put into the list is freed after the lock was released."""
        dropped: list[object] = []
        with self._lock:
            while self._late:
                self._make_up_for(self._late.popleft(), dropped)
            yield dropped
            if trim := self._untrimmed >= self._trim_bytes:
                self._untrimmed = 0
        dropped.clear()
        if trim:
            _give_free_pages_back()

    # The following are called with the lock held.

    def _make_up_for(self, late: bytes | int, dropped: list[object]) -> None:
        """Do what a finalizer left behind: a key to unpin, or a number of held bytes to release."""
        if isinstance(late, int):
            self._held = max(0, self._held - late)
        else:
            self._unpin(late, dropped)

    def _unpin(self, key: bytes, dropped: list[object]) -> None:
        left = self._pins.pop(key, 0) - 1
        if left > 0:
            self._pins[key] = left
            return
        entry = self._pinned.pop(key, None)
        if entry is not None:
            # Fits without an eviction by cachetools: the total does not change, and where it is above the budget (held
            # bytes are never refused) the LRU is empty. Then the item may have to go at once.
            self._lru[key] = entry
            self._make_room(0, dropped)

    def _remove(self, key: bytes, dropped: list[object]) -> None:
        for entry in (self._lru.pop(key, None), self._pinned.pop(key, None)):
            if entry is not None:
                self._drop(entry, dropped)

    def _make_room(self, nbytes: int, dropped: list[object]) -> None:
        most = self._max_bytes - self._held - self._pinned.currsize - nbytes
        while self._lru and self._lru.currsize > most:
            self._drop(self._lru.popitem()[1], dropped)
            self._evictions += 1

    def _drop(self, entry: _Entry[T], dropped: list[object]) -> None:
        self._untrimmed += entry.size
        dropped.append(entry)

    def _empty(self, dropped: list[object]) -> None:
        self._epoch += 1
        self._untrimmed += int(self._lru.currsize + self._pinned.currsize)
        dropped += [self._lru, self._pinned]
        self._start_empty()


def _size(entry: _Entry[T]) -> int:
    return entry.size


def _give_free_pages_back() -> None:
    # glibc's; other C libraries have none, and give large blocks back by themselves.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(ctypes.c_size_t(0))
