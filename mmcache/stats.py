"""What happened: counters, the line in the log, warnings once per cause, and spans in a profiler's trace."""

import logging
import sys
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from mmcache.sizes import format_share

# Named after the package and not this module: it is the name that people look for in their logs.
logger = logging.getLogger("mmcache")

Outcome = Literal["hits", "misses", "coalesced", "bypassed", "verified", "passed"]

# A log that is flooded hides its causes: so many distinct warnings are written, later causes are only counted.
_MAX_CAUSES = 256


@dataclass(frozen=True)
class CacheInfo:
    """How a cache is doing. The first four fields are those of ``functools.lru_cache``.

    ``hits`` … ``bypassed`` count images, and so does ``passed``: those that were processed without being looked up,
    since nothing came back (see `mmcache.budget`). ``errors`` are faults inside mmcache, ``maxsize``, ``currsize`` and ``pinned``
    are bytes, ``verified`` outputs were compared with the plain processor's and ``mismatches`` of them differed,
    ``saved_seconds`` is the processing time that hits and coalesced look-ups did not spend, and
    ``bypass_reasons`` says why images went to the plain processor, and how many.
    """

    hits: int
    misses: int
    maxsize: int
    currsize: int
    coalesced: int
    bypassed: int
    passed: int
    errors: int
    evictions: int
    mismatches: int
    verified: int
    refused: int
    items: int
    pinned: int
    saved_seconds: float
    bypass_reasons: dict[str, int] = field(default_factory=dict)

    @property
    def hit_rate(self) -> float:
        """The share of looked-up images (bypassed ones are not) that needed no computation of their own: 0 to 1."""
        served = self.hits + self.coalesced
        return served / max(1, served + self.misses)


class Stats:
    """The counters of one cache. They are only ever added to; the store's own figures are asked for when needed."""

    def __init__(self, name: str, log_interval: float) -> None:
        """``log_interval`` is the least number of seconds between two lines in the log."""
        self.name = name
        self.log_interval = log_interval
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.saved_seconds = 0.0
        self._warned: set[str] = set()
        self._reported: Counter[str] = Counter()
        self._reported_evictions, self._reported_seconds = 0, 0.0
        self._since = time.monotonic()
        self._lock = threading.Lock()

    def count(self, outcome: Outcome, images: int = 1, saved_seconds: float = 0.0) -> None:
        """Add ``images`` look-ups that ended as ``outcome``."""
        with self._lock:
            self.counts[outcome] += images
            self.saved_seconds += saved_seconds

    def bypass(self, reason: str, images: int) -> None:
        """Add ``images`` that went to the plain processor, and say why once."""
        with self._lock:
            self.counts["bypassed"] += images
            if reason not in self.reasons and len(self.reasons) >= _MAX_CAUSES:
                reason = "other reasons"
            self.reasons[reason] += images
        if self._first(f"bypass: {reason}"):
            logger.info("mmcache[%s] bypass: %s (counted in cache_info, not logged again)", self.name, reason)

    def fault(self, error: BaseException) -> None:
        """Count a fault inside mmcache, and warn once for each cause: the error's type and where it was raised."""
        with self._lock:
            self.counts["errors"] += 1
        with suppress(Exception):  # a log that raises: the counter has it, and there is nobody left to tell
            self._warn_of(error)

    def _warn_of(self, error: BaseException) -> None:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
        if self._first(f"fault: {type(error).__qualname__} {place}"):
            logger.warning(
                "mmcache[%s] a fault inside the cache; the plain output was given: %s: %s",
                self.name, type(error).__name__, error, exc_info=error,
            )  # fmt: skip

    def mismatch(self, what: str) -> None:
        """Count and report an output that was not the plain processor's, which was given instead."""
        with self._lock:
            self.counts["mismatches"] += 1
        logger.error(
            "mmcache[%s] an output differed from the plain processor's, which was given instead; what it belongs to is "
            "cached no longer, and everything was dropped: %s",
            self.name,
            what,
        )

    def passed(self, images: int) -> None:
        """Count images that only passed, and say once what that means."""
        with self._lock:
            first = self.counts["passed"] == 0
            self.counts["passed"] += images
        if first:
            logger.info(
                "mmcache[%s] stepped aside: nothing comes back, so that looking up costs more than it saves; images are "
                "processed plainly until some do (counted as passed in cache_info; max_overhead sets what it may cost)",
                self.name,
            )

    def warn_once(self, cause: str, message: str, *args: object) -> None:
        """Log a warning the first time that ``cause`` comes up in this cache."""
        if self._first(cause):
            logger.warning("mmcache[%s] " + message, self.name, *args)

    def _first(self, cause: str) -> bool:
        with self._lock:
            if cause in self._warned or len(self._warned) >= _MAX_CAUSES:
                return False
            self._warned.add(cause)
            return True

    def after_fork_in_child(self) -> None:
        """Replace the lock: the thread that may hold it is not in the child."""
        self._lock = threading.Lock()

    def due(self) -> bool:
        """Whether an interval has passed since the last line."""
        return time.monotonic() - self._since >= self.log_interval

    def report(self, info: CacheInfo) -> None:
        """Write one INFO line about the interval that ends now, if it saw any image; start the next interval."""
        with self._lock:
            now, counts = time.monotonic(), Counter(self.counts)
            seconds, new = now - self._since, counts - self._reported
            evicted = info.evictions - self._reported_evictions
            saved_seconds = info.saved_seconds - self._reported_seconds
            self._since, self._reported = now, counts
            self._reported_evictions, self._reported_seconds = info.evictions, info.saved_seconds
        images = _images(new)
        if not images or not logger.isEnabledFor(logging.INFO):
            return
        rate, lifetime = _hit_rate(new), _hit_rate(counts)
        values = {
            "cache": self.name, "seconds": round(seconds, 3), "images": images, "hit_rate": rate,
            "lifetime_hit_rate": lifetime, "coalesced": new["coalesced"], "bypassed": new["bypassed"],
            "errors": new["errors"], "evicted": evicted, "items": info.items, "bytes": info.currsize,
            "max_bytes": info.maxsize, "saved_seconds": round(saved_seconds, 3),
        }  # fmt: skip
        logger.info(
            "mmcache[%s] %.0fs: %d images, hit %.1f%% (lifetime %.1f%%), coalesced %d, bypassed %d, evicted %d, "
            "%d items, %s, saved %.1f s",
            self.name, seconds, images, 100 * rate, 100 * lifetime, new["coalesced"],
            new["bypassed"], evicted, info.items, format_share(info.currsize, info.maxsize),
            saved_seconds, extra={"mmcache": values},
        )  # fmt: skip


def debug_lookup(name: str, key: bytes, how: str) -> None:
    """Write one DEBUG line about a look-up, with the first 12 hex digits of its key."""
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("mmcache[%s] %s %s", name, how, key.hex()[:12])


def span(name: str) -> AbstractContextManager[Any]:
    """Return a ``torch.profiler`` span while a profiler runs, else nothing: a span costs 6 µs even if nobody looks."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.autograd._profiler_enabled():
        return nullcontext()
    recorded: AbstractContextManager[Any] = torch.profiler.record_function(name)
    return recorded


def _images(counts: Counter[str]) -> int:
    return counts["hits"] + counts["misses"] + counts["coalesced"] + counts["bypassed"] + counts["passed"]


def _hit_rate(counts: Counter[str]) -> float:
    served = counts["hits"] + counts["coalesced"]
    return served / max(1, served + counts["misses"])
