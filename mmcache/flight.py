"""Flight: one computation per key, for threads and tasks, and nobody can hang.

A *claim* is a future in a table: whoever puts it there leads, whoever finds it there waits for it. A batch of keys goes
through rounds of three steps, the same for threads and for tasks (`_Batch.course`, a generator, says what is to be done
next; `Flight.fly` and `Flight.afly` do it):

1. claim every key that is free, all at once and without waiting for anything;
2. compute and publish all of one's own;
3. only then wait for the others. When one of them was given up, begin a new round with what is left.

What can happen, and why this is right:

*Two batches over the same keys in opposite order.* Nobody waits while a claim of his own is unpublished, so whoever is
waited for is not waiting himself: there is no cycle of waiters, and so no deadlock, whatever the orders.

*A key is published between our look-up and our claim.* The leader publishes before the claim leaves the table, and we
look up again after claiming. Either we saw the claim, or our second look-up sees the value.

*A computation fails.* An `Exception` is an answer: all that wait get the very object, and the key is free before they
get it, so that whoever tries again does try. A batch ends at its first failure, its own or another's.

*A leader is interrupted* (`KeyboardInterrupt`, `SystemExit`, cancellation, an exception out of a tier). That says
nothing about the key. Its claims are given up, on every way out (``finally``, and `closing` around the generator), and
each one that waits tries to claim in its place: one gets it, the rest wait for that one.

*A waiter is cancelled.* A claim is born running, so `asyncio.wrap_future` cannot cancel it for everybody.

*A leader hangs,* or its thread was killed. Every wait has a deadline. Whoever meets it computes for itself without a
claim, and gives its value to all that still wait. From then on its batch waits for nothing else: so a batch loses one
deadline, not one for each key.

*A computation calls us again.* It would wait for a key that its own batch is to compute, or that a batch waiting for it
is to compute. So inside a computation (a context variable says so) nobody claims or waits: keys are looked up, else
computed plainly.

*Everything is cleared while a computation runs.* `Flight.forget` empties the table. Those who wait hold the future and
get their value, whoever comes later starts anew. That the value of the forgotten computation is not stored is up to
``publish`` (the memory tier's epoch).

*A fork.* The leaders stay behind in the parent, so the child forgets all claims; and the lock, if a thread that does
not exist in the child held it, is replaced.

Doubts that remain. An interruption (`KeyboardInterrupt`) that strikes while claims are being given up leaves the rest of
them to the deadline of those who wait. A computation that hands its work to other *threads* which call us again is not recognised (context
variables do not follow into threads): at worst it meets the deadline. A child forked *by a computation* that returns
into it, where the parent would, settles its copy of the claim, whose inner lock a waiter may have held at the fork. A
waiter in an event loop that is closed without being cancelled makes `concurrent.futures` log that its loop is closed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar, cast

from mmcache.errors import BadArgument

T = TypeVar("T")

# Far above what a leader that lives needs for what it claimed (0.3 s for the slowest image, so 200 of them), and below
# what engines and servers give a request (some minutes): a leader that hangs costs one late answer, not a failed one.
WAIT_SECONDS = 60.0

_inside: ContextVar[bool] = ContextVar("mmcache_inside_computation", default=False)
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Landed(Generic[T]):
    """How one key ended."""

    how: Literal["hit", "miss", "coalesced", "failed"]
    """Found, computed by this caller, taken from another's computation, or a computation raised."""
    value: T | None = None
    """What was found or computed; None if it failed."""
    error: Exception | None = None
    """If it failed: the computation's own exception, the very object that all get who waited for it."""
    own: bool = False
    """Whether this caller ran the computation itself."""


# What a claim ends with: what its leader landed, or None if it was given up.
_Claim: TypeAlias = "Future[Landed[T] | None]"
_LookUp: TypeAlias = Callable[[Sequence[bytes]], Sequence[T | None]]
_Publish: TypeAlias = Callable[[bytes, T], None]


@dataclass(frozen=True, slots=True)
class _Wait(Generic[T]):
    claim: _Claim[T]
    seconds: float


# Asks for a key to be computed, to be answered with how it landed; or for a wait, of which only the end counts (how the
# claim stands is then asked of the claim).
_Steps: TypeAlias = Generator[bytes | _Wait[T], Landed[T] | None, None]


def inside_computation() -> bool:
    """Tell whether this code runs inside a computation, where nobody may claim or wait."""
    return _inside.get()


@contextmanager
def computing() -> Iterator[None]:
    """Mark what runs in this block, and what it awaits, as a computation."""
    before = _inside.get()
    try:  # first, so that an interruption from here on cannot leave the thread inside for ever
        _inside.set(True)
        yield
    finally:
        _inside.set(before)


class Flight(Generic[T]):
    """One computation per key; see the module for what that takes.

    Args:
        wait_seconds: the deadline of every wait, in seconds, after which the waiter computes for itself.
        on_fault: gets each exception that ``publish`` raises (the value is still given to all). Default: the first one
            is logged as a warning.

    Raises:
        BadArgument: ``wait_seconds`` is negative or no number.
    """

    def __init__(
        self, *, wait_seconds: float = WAIT_SECONDS, on_fault: Callable[[Exception], None] | None = None
    ) -> None:
        """Start with nothing in flight; see the class."""
        if not wait_seconds >= 0:
            raise BadArgument("wait_seconds", wait_seconds, "a number of seconds, 0 or more")
        self._wait_seconds = wait_seconds
        self._on_fault = on_fault
        self._logged = False
        self._lock = threading.Lock()
        self._claims: dict[bytes, _Claim[T]] = {}

    def fly(
        self, keys: Sequence[bytes], look_up: _LookUp[T], compute: Callable[[bytes], T], publish: _Publish[T]
    ) -> dict[bytes, Landed[T]]:
        """Bring every key to its value: found, computed here, or taken from whoever computes it now.

        Args:
            keys: distinct keys.
            look_up: gives the value or None for each of some keys. Is called again after claiming.
            compute: computes one key's value. Runs in this thread, without any lock, for one key after the other.
            publish: makes a computed value visible to ``look_up``; is called before waiters get it. Should it raise,
                the value is used all the same.

        Returns:
            How each key landed. With a failure the batch ends: keys that were not reached are absent.

        Raises:
            Exception: what ``look_up`` raised; own claims were given up, as they are for every `BaseException`.
        """
        batch = _Batch(self, keys, look_up, publish)
        with closing(batch.course()) as course:
            answer: Landed[T] | None = None
            while True:
                try:
                    step = course.send(answer)
                except StopIteration:
                    return batch.landed()
                answer = _run(compute, step) if isinstance(step, bytes) else _wait(step)

    async def afly(
        self, keys: Sequence[bytes], look_up: _LookUp[T], compute: Callable[[bytes], Awaitable[T]], publish: _Publish[T]
    ) -> dict[bytes, Landed[T]]:
        """`fly` for a task: ``compute`` is awaited in it, and waiting blocks no event loop.

        Its keys may be shared by tasks of several loops, but not with callers of `fly`: a thread that waits for a task
        of its own loop would wait for itself, up to the deadline.
        """
        batch = _Batch(self, keys, look_up, publish)
        with closing(batch.course()) as course:
            answer: Landed[T] | None = None
            while True:
                try:
                    step = course.send(answer)
                except StopIteration:
                    return batch.landed()
                answer = await _arun(compute, step) if isinstance(step, bytes) else await _await(step)

    def forget(self) -> None:
        """Let later callers start anew; those who wait already still get their value.

        To clear, empty the stores first and forget then: a leader that claims in between finds nothing old to hand on.
        """
        with self._lock:
            self._claims = {}

    def in_flight(self) -> int:
        """Return the number of keys that somebody computes now."""
        return len(self._claims)

    def after_fork_in_child(self) -> None:
        """Forget all claims, and a lock that is not free; to be called in a forked child before anything else."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.Lock()
        self._claims = {}

    # What a batch needs of the table. No lock is held when any of these returns.

    def _claim(self, keys: Sequence[bytes], own: dict[bytes, _Claim[T]]) -> dict[bytes, _Claim[T]]:
        """Claim what is free, into ``own``; return the claims of others on the rest."""
        others: dict[bytes, _Claim[T]] = {}
        with self._lock:
            for key in keys:
                claim = self._claims.get(key)
                if claim is not None:
                    others[key] = claim
                    continue
                own[key] = claim = Future()  # noted first: an interruption from here on gives it up
                claim.set_running_or_notify_cancel()  # from now on no waiter can cancel it
                self._claims[key] = claim
        return others

    def _settle(self, key: bytes, claim: _Claim[T], outcome: Landed[T] | None) -> None:
        """Free the key, then tell all that wait; in this order, so that none of them meets the old claim again."""
        with self._lock:
            if self._claims.get(key) is claim:
                del self._claims[key]
        with suppress(InvalidStateError):  # one that met its deadline may have been faster
            claim.set_result(outcome)

    def _note_fault(self, fault: Exception) -> None:
        if self._on_fault is not None:
            self._on_fault(fault)
        elif not self._logged:
            self._logged = True
            _logger.warning("a computed value could not be published, and is used all the same", exc_info=fault)


class _Batch(Generic[T]):
    """The keys of one call, on their way through the rounds."""

    def __init__(self, flight: Flight[T], keys: Sequence[bytes], look_up: _LookUp[T], publish: _Publish[T]) -> None:
        self._flight = flight
        self._keys = keys
        self._look_up = look_up
        self._publish = publish
        self._patience = flight._wait_seconds
        self._own: dict[bytes, _Claim[T]] = {}
        self._landed: dict[bytes, Landed[T]] = {}
        self._failed = False

    def course(self) -> _Steps[T]:
        """Say what is to be done next, until every key has landed or one has failed."""
        self._land_hits(self._keys)
        try:
            while left := self._left():
                if inside_computation():
                    yield from self._compute_alone(left)
                    break
                others = self._flight._claim(left, self._own)
                yield from self._lead()
                yield from self._follow(others)
        finally:
            for key, claim in self._own.items():
                self._flight._settle(key, claim, None)

    def landed(self) -> dict[bytes, Landed[T]]:
        """Return how each key landed that was reached, in the order of the keys."""
        return {key: self._landed[key] for key in self._keys if key in self._landed}

    def _left(self) -> list[bytes]:
        return [] if self._failed else [key for key in self._keys if key not in self._landed]

    def _lead(self) -> _Steps[T]:
        """Bring all own claims to an end, one after the other."""
        if self._own:
            self._land_hits(list(self._own))
        for key in list(self._own):
            if key not in self._landed:
                yield from self._compute(key)
            # Forgotten here only when it is settled: an interruption in between still gives it up.
            self._flight._settle(key, self._own[key], self._landed[key])
            del self._own[key]
            if self._failed:
                return

    def _follow(self, others: dict[bytes, _Claim[T]]) -> _Steps[T]:
        """Wait for the claims of others; returns early when one was given up, for a new round."""
        for key, claim in others.items():
            if self._failed:
                return
            if not claim.done():
                yield _Wait(claim, self._patience)
            if not claim.done():
                self._patience = 0.0
                yield from self._compute(key)
                if not self._failed:
                    self._flight._settle(key, claim, self._landed[key])
                continue
            outcome = claim.result()
            if outcome is None:
                return
            how: Literal["failed", "coalesced"] = "failed" if outcome.how == "failed" else "coalesced"
            self._land(key, Landed(how, outcome.value, outcome.error))

    def _compute_alone(self, keys: Sequence[bytes]) -> _Steps[T]:
        for key in keys:
            if not self._failed:
                yield from self._compute(key)

    def _compute(self, key: bytes) -> _Steps[T]:
        """Have a key computed, land and publish it."""
        outcome = yield key
        assert outcome is not None, "a key is answered with how it landed"
        self._land(key, outcome)
        if outcome.how == "miss":
            try:
                self._publish(key, cast("T", outcome.value))
            except Exception as fault:  # noqa: BLE001  a tier's fault must not cost the caller a value that is there
                self._flight._note_fault(fault)

    def _land_hits(self, keys: Sequence[bytes]) -> None:
        for key, value in zip(keys, self._look_up(keys), strict=True):
            if value is not None:
                self._land(key, Landed("hit", value))

    def _land(self, key: bytes, outcome: Landed[T]) -> None:
        self._landed[key] = outcome
        self._failed = self._failed or outcome.how == "failed"


def _run(compute: Callable[[bytes], T], key: bytes) -> Landed[T]:
    try:
        with computing():
            return Landed("miss", compute(key), own=True)
    except Exception as error:  # noqa: BLE001  an answer, for all that wait; it is never swallowed
        return Landed("failed", error=error, own=True)


async def _arun(compute: Callable[[bytes], Awaitable[T]], key: bytes) -> Landed[T]:
    try:
        with computing():
            return Landed("miss", await compute(key), own=True)
    except Exception as error:  # noqa: BLE001  an answer, for all that wait; it is never swallowed
        return Landed("failed", error=error, own=True)


def _wait(step: _Wait[T]) -> Landed[T] | None:
    try:
        return step.claim.result(step.seconds)
    except TimeoutError:
        return None


async def _await(step: _Wait[T]) -> Landed[T] | None:
    import asyncio  # where this runs it is there already; the module alone would load it for nothing (35 ms)

    try:
        async with asyncio.timeout(step.seconds):
            return await asyncio.wrap_future(step.claim)
    except TimeoutError:
        return None
