"""What a call is to the cache, and the ways in which it can turn out not to be one for it."""

import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from mmcache.errors import MMCacheError
from mmcache.items import Item


class Bypass(Exception):
    """Raised by a call that cannot be served from the cache; its text is the reason that is counted."""


@dataclass(frozen=True, slots=True)
class Unshared:
    """What a computation gave, where it cannot be kept: its caller gets it as it is (or ``error``), nobody else does."""

    value: Any
    reason: str
    error: MMCacheError | None = None
    nbytes: int = field(default=0, init=False)


class Call(Protocol):
    """One call, as the cache sees it."""

    images: int
    """How many images it is about, for the counters."""
    single: bool
    """Whether it is one computation: then the processor's exception is the caller's, without a second run."""

    def plain(self) -> Any:
        """Run the real processor on everything, as if there were no cache."""

    def keys(self) -> Sequence[bytes]:
        """Return one key for each image, in order. Raises `Bypass`, or `UndecodableSource` for a broken image."""

    def compute(self, position: int) -> Any:
        """Run the real processor on one image, within `processors_own`."""

    def given(self, raw: Any) -> Any:
        """Return what the processor gave for a single image in `compute` as its caller is to have it."""

    def join(self, items: Sequence[Item]) -> Any:
        """Return the output, in fresh memory, from one item for each image."""

    def stratum(self) -> tuple[tuple[bytes, ...], Hashable | None] | None:
        """Return the structures of a call and its stratum for the verification in traffic; None if there is none."""


class ProcessorError(Exception):
    """Carries the processor's own exception past everything that is a fault of mmcache."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


_spent = threading.local()


def processor_seconds() -> float:
    """Return the time of this thread that was spent in real processors, so that the rest can be told from it."""
    seconds: float = getattr(_spent, "seconds", 0.0)
    return seconds


@contextmanager
def processing() -> Iterator[None]:
    """Count the time of this block, which runs the real processor and nothing else."""
    started = time.thread_time()
    try:
        yield
    finally:
        _spent.seconds = processor_seconds() + time.thread_time() - started


@contextmanager
def processors_own() -> Iterator[None]:
    """Mark what is raised in this block, which runs the real processor and nothing else, as the processor's own."""
    with processing():
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the processor's
            raise ProcessorError(error) from None
