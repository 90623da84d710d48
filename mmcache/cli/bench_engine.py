"""The engine of the benchmark: it takes the two costs of a row in turn and keeps the ratio of each pair.

A machine that is busy, or changes its clock, slows both members of a pair; so what is kept is what each *pair* gave, and
what is shown are the median and the quartiles of that. A row whose outputs differ from what they are compared with, or
whose cache did not serve what it was given, has no figure.
"""

import contextlib
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import mmcache
from mmcache.items import is_tensor
from mmcache.layout.compare import difference

T = TypeVar("T")

# One run of what is measured, and what one run cost: seconds or bytes.
Run = Callable[[], Any]
Cost = Callable[[], float]

# Room for all pictures of a row, so that nothing is evicted by chance: the largest row keeps 400 MB.
_ROOM = 2 << 30


@dataclass(frozen=True)
class Unit:
    """What a pair of costs is made into; ``sign`` follows the number, ``cost`` is the unit of the two costs."""

    of: Callable[[float, float], float]
    sign: str
    cost: str = "s"
    more_is_better: bool = False


TIMES_THE_COST = Unit(lambda ours, other: ours / other, "x")
TIMES_AS_FAST = Unit(lambda ours, other: other / ours, "x faster", more_is_better=True)
MICROSECONDS_MORE = Unit(lambda ours, other: 1e6 * (ours - other), " us")
PER_CENT_MORE = Unit(lambda ours, other: 100 * (ours / other - 1), " %")
TIMES_AS_MANY = Unit(lambda ours, other: other / ours, "x", cost="bytes", more_is_better=True)
BYTES_MORE = Unit(lambda ours, other: ours - other, " B", cost="bytes")
PER_CENT_MORE_BYTES = Unit(PER_CENT_MORE.of, " %", cost="bytes")


@dataclass(frozen=True)
class Pair:
    """Two costs; each call is one measurement. ``other`` is taken first; ``rounds``, if given, are all there are."""

    ours: Cost
    other: Cost
    rounds: int | None = None


@dataclass(frozen=True)
class Row:
    """One line of the benchmark.

    ``make`` builds the pair, for which it gets a `Workbench`; it raises `LeftOut` where it cannot. ``target`` is the most,
    or where more is better the least, that is hoped for with one torch thread.
    """

    section: str
    name: str
    against: str
    make: Callable[["Workbench"], Pair]
    unit: Unit
    target: float | None = None
    threads: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Effort:
    """How much is done: rounds go on for ``seconds``, within the two limits.

    ``threads`` are the torch threads that rows are measured with if they ask for them, ``one_pass`` is the number of
    photographs that pass once, ``small_items`` that of the items in a large store.
    """

    name: str
    seconds: float
    least_rounds: int
    most_rounds: int
    threads: tuple[int, ...]
    one_pass: int
    small_items: int


QUICK = Effort("quick", 0.3, 3, 100, threads=(1,), one_pass=250, small_items=20_000)
FULL = Effort("full", 4.0, 15, 500, threads=(1, 2), one_pass=2_000, small_items=1_000_000)


class LeftOut(Exception):
    """A row that cannot be measured here; the text says why."""


class Failed(Exception):
    """A row whose figure would be worth nothing: a wrong output, or a cache that did not serve."""


class Workbench:
    """What a row is built with: how much is to be done, and caches that are closed after it."""

    def __init__(self, effort: Effort) -> None:
        """Start without a cache."""
        self.effort = effort
        self._open = contextlib.ExitStack()
        self._caches: list[mmcache.Cache] = []
        self._before: list[mmcache.CacheInfo] = []

    def cache(self, max_bytes: int = _ROOM, *, hasher: str = "auto", max_overhead: float | None = 1.0) -> mmcache.Cache:
        """Return a new cache, which is closed after the row, and which has to serve all that it is asked for.

        It looks everything up, since that is what is measured; with ``max_overhead=None`` it may step aside as usual.
        """
        cache = self.closing(new_cache(max_bytes, hasher, max_overhead))
        self._caches.append(cache)
        return cache

    def closing(self, thing: contextlib.AbstractContextManager[T]) -> T:
        """Have something closed after the row."""
        return self._open.enter_context(thing)

    def in_turn(self, ours: Run, other: Run, *, alike: bool = True, before: Run | None = None) -> Pair:
        """Return the pair of two runs, after the trials of both are over.

        With ``alike`` the two must give the same, bit for bit. ``before`` is run before each pair, untimed.
        """
        self.warm_up(ours)
        if before is not None:
            before()
        if alike and (found := difference(other(), ours())):
            raise Failed(f"an output differs: {found}")
        return Pair(timed(ours), timed(other, before=before))

    def warm_up(self, run: Run) -> None:
        """Run once for the trials, wait until they are over, and run once more to have in the cache what can be."""
        run()
        for cache in self._caches:
            cache.settle()
        run()

    def begin(self) -> None:
        """Count from here on what the caches do."""
        self._before = [cache.cache_info() for cache in self._caches]

    def hit_rate(self) -> float | None:
        """Return the share of look-ups since `begin` that needed no computation, None if there were none.

        Raises:
            Failed: something was bypassed, or went wrong inside the cache.
        """
        pairs = [(before, cache.cache_info()) for before, cache in zip(self._before, self._caches, strict=True)]
        for before, after in pairs:
            if after.bypassed > before.bypassed or after.errors > before.errors:
                raise Failed(f"not served by the cache: {', '.join(after.bypass_reasons) or 'a fault inside it'}")
        served = sum(after.hits + after.coalesced - before.hits - before.coalesced for before, after in pairs)
        missed = sum(after.misses - before.misses for before, after in pairs)
        return served / (served + missed) if served + missed else None

    def __enter__(self) -> "Workbench":
        """Return the workbench, to be cleared at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close everything."""
        self._open.close()


def new_cache(max_bytes: int = _ROOM, hasher: str = "auto", max_overhead: float | None = 1.0) -> mmcache.Cache:
    """Return a cache that verifies nothing, and logs one line at most."""
    return mmcache.Cache(
        max_bytes, name="bench", hasher=hasher, log_interval=math.inf, verify_rate=0, max_overhead=max_overhead
    )


@dataclass(frozen=True)
class Result:
    """What came out for a row with so many torch threads: the costs of each round, or why there are none."""

    row: Row
    threads: int
    ours: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)
    hit_rate: float | None = None
    left_out: str = ""
    failed: str = ""

    @property
    def values(self) -> list[float]:
        """What each pair gave, in the row's unit."""
        return [self.row.unit.of(ours, other) for ours, other in zip(self.ours, self.other, strict=True)]

    @property
    def median(self) -> float:
        """The median of the pairs."""
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third quartile of the pairs."""
        if len(self.ours) < 2:
            return self.median, self.median
        first, _, third = statistics.quantiles(self.values, n=4, method="inclusive")
        return first, third

    @property
    def met(self) -> bool | None:
        """Whether the median meets the target, which is one for a single torch thread; None if there is none."""
        target, unit = self.row.target, self.row.unit
        if target is None or not self.ours or self.threads != 1:
            return None
        return self.median >= target if unit.more_is_better else self.median <= target


def measure(row: Row, effort: Effort, threads: int) -> Result:
    """Measure one row with so many torch threads."""
    with torch_threads(threads), Workbench(effort) as bench:
        try:
            pair = row.make(bench)
            bench.begin()
            other, ours = repeated((pair.other, pair.ours), effort, pair.rounds)
            return Result(row, threads, ours, other, bench.hit_rate())
        except LeftOut as reason:
            return Result(row, threads, left_out=str(reason))
        except Failed as reason:
            return Result(row, threads, failed=str(reason))
        except Exception as error:  # noqa: BLE001 - processors raise what they like; the other rows have figures all the same
            return Result(row, threads, failed=f"{type(error).__name__}: {error}")


def repeated(costs: Sequence[Cost], effort: Effort, rounds: int | None = None) -> list[list[float]]:
    """Take costs in turn, round after round (so many, or as many as the effort says); return the list of each."""
    least, most = (rounds, rounds) if rounds else (effort.least_rounds, effort.most_rounds)
    taken: list[list[float]] = []
    started = time.monotonic()
    with _no_collection():
        while len(taken) < least or (len(taken) < most and time.monotonic() - started < effort.seconds):
            taken.append([cost() for cost in costs])
    return [list(column) for column in zip(*taken, strict=True)]


def timed(run: Run, *, before: Run | None = None) -> Cost:
    """Return the seconds of one run as a cost, its output read once and not yet freed.

    One run, however short: of many in a row, somebody else's turn on a busy machine would nearly always hit some.
    """

    def cost() -> float:
        if before is not None:
            before()
        started = time.perf_counter()
        output = run()
        read(output)
        return time.perf_counter() - started

    return cost


def read(output: Any) -> None:
    """Read every byte of an output once, as its user will: memory that was only promised has to be there now."""
    import torch

    for tensor in tensors_of(output):
        if tensor.numel():
            tensor.reshape(-1).view(torch.uint8).max()


def tensors_of(output: Any) -> list[Any]:
    """Return the tensors in an output, at any depth."""
    if is_tensor(output):
        return [output]
    children = output.values() if hasattr(output, "values") else output if isinstance(output, list | tuple) else ()
    return [tensor for child in children for tensor in tensors_of(child)]


@contextlib.contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Have torch use so many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from running in the middle of a measurement."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
