"""Flight: one computation per key, and every way in which one can end."""

from __future__ import annotations

import asyncio
import linecache
import logging
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcache import flight as flight_module
from mmcache.errors import BadArgument
from mmcache.flight import Flight, Landed, computing, inside_computation

PATIENCE = 30.0  # of the tests themselves, in seconds: what takes longer hangs


class Store:
    """A tier and a processor: remembers what was published, counts what was computed."""

    def __init__(self) -> None:
        self.values: dict[bytes, object] = {}
        self.computed: Counter[bytes] = Counter()

    def look_up(self, keys: Sequence[bytes]) -> list[object | None]:
        return [self.values.get(key) for key in keys]

    def compute(self, key: bytes) -> object:
        self.computed[key] += 1
        return ("value of", key)

    def publish(self, key: bytes, value: object) -> None:
        self.values[key] = value

    def fly(
        self, flight: Flight[object], keys: Sequence[bytes], **other: Callable[..., Any]
    ) -> dict[bytes, Landed[object]]:
        steps: dict[str, Callable[..., Any]] = {
            "look_up": self.look_up,
            "compute": self.compute,
            "publish": self.publish,
        }
        return flight.fly(keys, **(steps | other))

    async def afly(
        self, flight: Flight[object], keys: Sequence[bytes], **other: Callable[..., Any]
    ) -> dict[bytes, Landed[object]]:
        async def compute(key: bytes) -> object:
            await asyncio.sleep(0)
            return self.compute(key)

        steps: dict[str, Callable[..., Any]] = {"look_up": self.look_up, "compute": compute, "publish": self.publish}
        return await flight.afly(keys, **(steps | other))


def hows(landed: dict[bytes, Landed[object]]) -> list[str]:
    return [outcome.how for outcome in landed.values()]


class Gate:
    """A computation that stands still until the test lets it go on."""

    def __init__(self, answer: Callable[[bytes], object]) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        self._answer = answer

    def __call__(self, key: bytes) -> object:
        self.entered.set()
        assert self.go_on.wait(PATIENCE)
        return self._answer(key)


class Waits:
    """How many waits have begun, and how long each was to last at most."""

    def __init__(self) -> None:
        self._begun = threading.Semaphore(0)
        self.seconds: list[float] = []

    def note(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self._begun.release()

    def expect(self, number: int = 1) -> None:
        for _ in range(number):
            assert self._begun.acquire(timeout=PATIENCE), "nobody waits"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    noted, real = Waits(), flight_module._wait

    def wait(step: flight_module._Wait[object]) -> Landed[object] | None:
        noted.note(step.seconds)
        return real(step)

    monkeypatch.setattr(flight_module, "_wait", wait)
    return noted


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as threads:
        yield threads


@pytest.fixture
def store() -> Store:
    return Store()


def raising(error: BaseException) -> Callable[[bytes], object]:
    def compute(_key: bytes) -> object:
        raise error

    return compute


def result(future: Future[dict[bytes, Landed[object]]]) -> dict[bytes, Landed[object]]:
    return future.result(PATIENCE)


# One caller


def test_what_is_found_is_neither_claimed_nor_computed(store: Store) -> None:
    flight: Flight[object] = Flight()
    store.values[b"a"] = "found"
    assert store.fly(flight, [b"a"], compute=raising(AssertionError())) == {b"a": Landed("hit", "found")}


def test_what_is_not_found_is_computed_once_and_found_from_then_on(store: Store) -> None:
    flight: Flight[object] = Flight()
    assert store.fly(flight, [b"a"]) == {b"a": Landed("miss", ("value of", b"a"), own=True)}
    assert store.fly(flight, [b"a"]) == {b"a": Landed("hit", ("value of", b"a"))}
    assert store.computed == {b"a": 1}
    assert flight.in_flight() == 0


def test_the_result_is_in_the_order_of_the_keys(store: Store) -> None:
    store.values[b"b"] = "found"
    landed = store.fly(Flight(), [b"c", b"b", b"a"])
    assert list(landed) == [b"c", b"b", b"a"]
    assert hows(landed) == ["miss", "hit", "miss"]


def test_no_keys_land_nowhere(store: Store) -> None:
    assert store.fly(Flight(), []) == {}


def test_all_free_keys_are_claimed_at_once_and_each_until_it_is_published(store: Store) -> None:
    flight: Flight[object] = Flight()
    seen: list[tuple[str, int]] = []

    def compute(key: bytes) -> object:
        seen.append(("compute", flight.in_flight()))
        return key

    store.fly(flight, [b"a", b"b"], compute=compute, publish=lambda *_: seen.append(("publish", flight.in_flight())))
    assert seen == [("compute", 2), ("publish", 2), ("compute", 1), ("publish", 1)]


def test_no_lock_is_held_while_anything_of_the_caller_runs(store: Store) -> None:
    flight: Flight[object] = Flight()
    held: list[bool] = []

    def noting(step: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: object) -> object:
            held.append(flight._lock.locked())
            return step(*arguments)

        return noted

    store.fly(
        flight,
        [b"a", b"b"],
        look_up=noting(store.look_up),
        compute=noting(store.compute),
        publish=noting(store.publish),
    )
    assert held == [False] * 6


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_deadline_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(BadArgument, match="wait_seconds"):
        Flight[object](wait_seconds=seconds)


# Several callers


def test_who_comes_later_takes_the_value_of_who_computes_now(
    store: Store, waits: Waits, pool: ThreadPoolExecutor
) -> None:
    flight, gate = Flight[object](), Gate(store.compute)
    leader = pool.submit(store.fly, flight, [b"a"], compute=gate)
    assert gate.entered.wait(PATIENCE)
    others = [pool.submit(store.fly, flight, [b"a"]) for _ in range(5)]
    waits.expect(5)
    gate.go_on.set()
    assert hows(result(leader)) == ["miss"]
    for other in others:
        landed = result(other)[b"a"]
        assert landed == Landed("coalesced", ("value of", b"a"))
        assert landed.value is result(leader)[b"a"].value
    assert store.computed == {b"a": 1}


def test_a_batch_publishes_all_its_own_before_it_waits(store: Store, waits: Waits, pool: ThreadPoolExecutor) -> None:
    flight, gate = Flight[object](), Gate(store.compute)
    leader = pool.submit(store.fly, flight, [b"a"], compute=gate)
    assert gate.entered.wait(PATIENCE)
    other = pool.submit(store.fly, flight, [b"a", b"b", b"c"])
    waits.expect()
    assert set(store.values) == {b"b", b"c"}
    assert flight.in_flight() == 1
    gate.go_on.set()
    result(leader)
    assert hows(result(other)) == ["coalesced", "miss", "miss"]


def test_what_was_published_between_look_up_and_claim_is_a_hit_for_the_leader_and_all_that_wait(
    store: Store, waits: Waits, pool: ThreadPoolExecutor
) -> None:
    flight = Flight[object]()
    claimed, go_on = threading.Event(), threading.Event()
    answers = iter([None, "published meanwhile"])

    def look_up(_keys: Sequence[bytes]) -> list[object | None]:
        if flight.in_flight():
            claimed.set()
            assert go_on.wait(PATIENCE)
        return [next(answers)]

    leader = pool.submit(store.fly, flight, [b"a"], look_up=look_up)
    assert claimed.wait(PATIENCE)
    other = pool.submit(store.fly, flight, [b"a"])
    waits.expect()
    go_on.set()
    assert result(leader) == {b"a": Landed("hit", "published meanwhile")}
    assert result(other) == {b"a": Landed("coalesced", "published meanwhile")}
    assert not store.computed
    assert flight.in_flight() == 0


def test_only_what_is_still_missing_after_the_claim_is_computed(store: Store) -> None:
    flight = Flight[object]()

    def look_up(keys: Sequence[bytes]) -> list[object | None]:
        return ["late" if key == b"b" and flight.in_flight() else None for key in keys]

    landed = store.fly(flight, [b"a", b"b", b"c"], look_up=look_up)
    assert hows(landed) == ["miss", "hit", "miss"]
    assert flight.in_flight() == 0


# Failures


def test_an_error_reaches_all_that_wait_as_the_very_object_and_the_next_call_tries_again(
    store: Store, waits: Waits, pool: ThreadPoolExecutor
) -> None:
    error = ValueError("truncated picture")
    flight, gate = Flight[object](), Gate(raising(error))
    leader = pool.submit(store.fly, flight, [b"a"], compute=gate)
    assert gate.entered.wait(PATIENCE)
    others = [pool.submit(store.fly, flight, [b"a"]) for _ in range(5)]
    waits.expect(5)
    gate.go_on.set()
    assert result(leader) == {b"a": Landed("failed", error=error, own=True)}
    for other in others:
        assert result(other) == {b"a": Landed("failed", error=error)}
        assert result(other)[b"a"].error is error
    assert not store.values
    assert not store.computed
    assert hows(store.fly(flight, [b"a"])) == ["miss"]


@pytest.mark.parametrize("error", [None, ValueError(), KeyboardInterrupt()])
def test_a_key_is_free_before_those_who_wait_are_told(store: Store, error: BaseException | None) -> None:
    """Else one that is told of a failure and tries again at once would be given the old failure."""
    flight, free = Flight[object](), list[bool]()

    def compute(key: bytes) -> object:
        flight._claims[key].add_done_callback(lambda _: free.append(flight.in_flight() == 0))
        return raising(error)(key) if error else key

    with suppress(KeyboardInterrupt):
        store.fly(flight, [b"a"], compute=compute)
    assert free == [True]


@pytest.mark.parametrize("error", [StopIteration(), TimeoutError(), RuntimeError(), OSError()])
def test_any_exception_is_an_answer_even_one_that_python_or_we_use_ourselves(store: Store, error: Exception) -> None:
    assert store.fly(Flight(), [b"a"], compute=raising(error))[b"a"].error is error


def test_a_batch_ends_at_its_first_failure_and_gives_the_rest_up(
    store: Store, waits: Waits, pool: ThreadPoolExecutor
) -> None:
    flight, error = Flight[object](), ValueError()
    gate = Gate(raising(error))
    batch = pool.submit(
        store.fly, flight, [b"a", b"bad", b"c"], compute=lambda key: gate(key) if key == b"bad" else store.compute(key)
    )
    assert gate.entered.wait(PATIENCE)
    other = pool.submit(store.fly, flight, [b"c"])
    waits.expect()
    gate.go_on.set()
    landed = result(batch)
    assert list(landed) == [b"a", b"bad"]
    assert hows(landed) == ["miss", "failed"]
    assert hows(result(other)) == ["miss"], "took over what the batch gave up"
    assert store.computed == {b"a": 1, b"c": 1}
    assert flight.in_flight() == 0


def test_a_batch_ends_at_the_failure_of_another_too(store: Store, waits: Waits, pool: ThreadPoolExecutor) -> None:
    flight, gate, stays = Flight[object](), Gate(raising(ValueError())), Gate(store.compute)
    bad = pool.submit(store.fly, flight, [b"bad"], compute=gate)
    slow = pool.submit(store.fly, flight, [b"slow"], compute=stays)
    assert gate.entered.wait(PATIENCE)
    assert stays.entered.wait(PATIENCE)
    batch = pool.submit(store.fly, flight, [b"bad", b"slow"])
    waits.expect()
    gate.go_on.set()
    assert hows(result(batch)) == ["failed"], "and did not wait for the slow one"
    stays.go_on.set()
    result(slow)
    result(bad)


INTERRUPTIONS = [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError]


@pytest.mark.parametrize("interruption", INTERRUPTIONS)
def test_an_interrupted_leader_gives_up_and_one_waiter_takes_over(
    store: Store, waits: Waits, pool: ThreadPoolExecutor, interruption: type[BaseException]
) -> None:
    flight, gate = Flight[object](), Gate(raising(interruption()))

    def lead() -> str:
        try:
            store.fly(flight, [b"a", b"b"], compute=lambda key: store.compute(key) if key == b"a" else gate(key))
        except interruption:
            return "interrupted"
        return "went on"

    leader = pool.submit(lead)
    assert gate.entered.wait(PATIENCE)
    others = [pool.submit(store.fly, flight, [b"b"]) for _ in range(4)]
    waits.expect(4)
    gate.go_on.set()
    assert leader.result(PATIENCE) == "interrupted"
    assert Counter(how for other in others for how in hows(result(other)))["miss"] == 1
    assert store.computed == {b"a": 1, b"b": 1}, "what was published before stays"
    assert flight.in_flight() == 0


def test_a_waiter_that_takes_over_takes_all_that_is_free_by_then(
    store: Store, waits: Waits, pool: ThreadPoolExecutor
) -> None:
    flight, gate = Flight[object](), Gate(raising(KeyboardInterrupt()))
    leader = pool.submit(store.fly, flight, [b"a", b"b", b"c"], compute=gate)
    assert gate.entered.wait(PATIENCE)
    other = pool.submit(store.fly, flight, [b"c", b"a", b"b"])
    waits.expect()
    gate.go_on.set()
    assert isinstance(leader.exception(PATIENCE), KeyboardInterrupt)
    assert hows(result(other)) == ["miss"] * 3
    assert len(waits.seconds) == 1


@pytest.mark.parametrize("failing", ["look_up", "publish"])
def test_an_interrupted_tier_loses_no_claim(store: Store, failing: str) -> None:
    flight = Flight[object]()

    def interrupted(*_: object) -> list[object | None]:
        if flight.in_flight():
            raise KeyboardInterrupt
        return [None, None]

    with pytest.raises(KeyboardInterrupt):
        store.fly(flight, [b"a", b"b"], **{failing: interrupted})
    assert flight.in_flight() == 0


def test_an_interruption_at_any_line_loses_no_claim() -> None:
    """Interrupt a batch at its first line, at its second and so on: afterwards each key is free or found at once."""
    lines = 0
    for place in range(1, 1000):
        flight, store = Flight[object](), Store()
        if not interrupted_at(place, flight, store):
            break
        lines += 1
        assert flight.in_flight() == 0, f"a claim is lost when interrupted at line event {place}"
        assert not inside_computation(), f"left inside when interrupted at line event {place}"
        assert set(store.fly(flight, [b"a", b"b"])) == {b"a", b"b"}
    assert lines > 60, "every line of a batch was tried"


# Python looks for interruptions after calls and before jumps back, so never between the last step of a block and what
# ends it (the release of its lock, its "finally"); a trace function is called there too.
NEVER_INTERRUPTED = ("with self._lock:", "_inside.set(before)")


def interrupted_at(place: int, flight: Flight[object], store: Store) -> bool:
    """Run a batch that is interrupted at the n-th line of the module; False if it has fewer lines."""
    seen = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename != flight_module.__file__:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not any(part in line for part in NEVER_INTERRUPTED):
            seen += 1
            if seen == place:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        store.fly(flight, [b"a", b"b"])
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_fault_of_the_first_look_up_reaches_the_caller(store: Store) -> None:
    flight = Flight[object]()
    with pytest.raises(OSError, match="dead"):
        store.fly(flight, [b"a"], look_up=raising(OSError("dead")))
    assert flight.in_flight() == 0


def test_a_fault_of_the_second_look_up_reaches_the_caller_and_a_waiter_takes_over(
    store: Store, waits: Waits, pool: ThreadPoolExecutor
) -> None:
    flight, gate = Flight[object](), Gate(raising(OSError("dead")))
    leader = pool.submit(
        store.fly, flight, [b"a"], look_up=lambda keys: gate(keys) if flight.in_flight() else store.look_up(keys)
    )
    assert gate.entered.wait(PATIENCE)
    other = pool.submit(store.fly, flight, [b"a"])
    waits.expect()
    gate.go_on.set()
    assert str(leader.exception(PATIENCE)) == "dead"
    assert hows(result(other)) == ["miss"]


def test_a_look_up_that_gives_too_few_values_is_a_fault_and_no_wrong_hit(store: Store) -> None:
    flight = Flight[object]()
    with pytest.raises(ValueError, match="shorter"):
        store.fly(flight, [b"a", b"b"], look_up=lambda _: ["of which key?"])
    assert flight.in_flight() == 0


def test_a_value_that_cannot_be_published_is_given_to_all_the_same(
    store: Store, waits: Waits, pool: ThreadPoolExecutor
) -> None:
    fault, faults = OSError("disk full"), list[Exception]()
    flight, gate = Flight[object](on_fault=faults.append), Gate(store.compute)

    def publish(_key: bytes, _value: object) -> None:
        raise fault

    leader = pool.submit(store.fly, flight, [b"a"], compute=gate, publish=publish)
    assert gate.entered.wait(PATIENCE)
    other = pool.submit(store.fly, flight, [b"a"])
    waits.expect()
    gate.go_on.set()
    assert result(leader) == {b"a": Landed("miss", ("value of", b"a"), own=True)}
    assert result(other) == {b"a": Landed("coalesced", ("value of", b"a"))}
    assert faults == [fault]


def test_by_default_the_first_fault_is_logged_and_no_other(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    flight = Flight[object]()

    def publish(_key: bytes, _value: object) -> None:
        raise OSError("disk full")

    with caplog.at_level(logging.WARNING, "mmcache"):
        store.fly(flight, [b"a", b"b"], publish=publish)
        store.fly(flight, [b"c"], publish=publish)
    assert len(caplog.records) == 1
    assert "disk full" in caplog.text


# Deadlines


def test_a_waiter_that_meets_its_deadline_computes_for_itself_and_frees_all_others(
    store: Store, pool: ThreadPoolExecutor
) -> None:
    flight, gate = Flight[object](wait_seconds=0.01), Gate(store.compute)
    leader = pool.submit(store.fly, flight, [b"a"], compute=gate)
    assert gate.entered.wait(PATIENCE)
    patient = flight._claims[b"a"]
    landed = store.fly(flight, [b"a"])
    assert landed == {b"a": Landed("miss", ("value of", b"a"), own=True)}
    assert store.values == {b"a": ("value of", b"a")}
    assert patient.result(0) == landed[b"a"], "who still waits has it now"
    assert flight.in_flight() == 0, "who comes later does not wait for the one that hangs"
    gate.go_on.set()
    assert hows(result(leader)) == ["miss"], "who comes to life again is not disturbed"
    assert store.computed == {b"a": 2}


def test_a_batch_waits_for_one_deadline_and_not_for_one_for_each_key(
    store: Store, waits: Waits, pool: ThreadPoolExecutor
) -> None:
    flight, gate = Flight[object](wait_seconds=0.01), Gate(store.compute)
    keys = [b"a", b"b", b"c"]
    leader = pool.submit(store.fly, flight, keys, compute=gate)
    assert gate.entered.wait(PATIENCE)
    assert hows(store.fly(flight, keys)) == ["miss"] * 3
    assert waits.seconds == [0.01, 0.0, 0.0]
    gate.go_on.set()
    assert hows(result(leader)) == ["miss"] * 3


def test_a_waiter_that_meets_its_deadline_and_fails_leaves_the_others_waiting(
    store: Store, pool: ThreadPoolExecutor
) -> None:
    flight, gate = Flight[object](wait_seconds=0.01), Gate(store.compute)
    leader = pool.submit(store.fly, flight, [b"a"], compute=gate)
    assert gate.entered.wait(PATIENCE)
    assert hows(store.fly(flight, [b"a"], compute=raising(ValueError()))) == ["failed"]
    assert flight.in_flight() == 1
    gate.go_on.set()
    assert hows(result(leader)) == ["miss"]


# Inside a computation


def test_a_computation_that_asks_for_its_own_key_gets_it_computed_plainly(store: Store) -> None:
    flight = Flight[object]()
    nested: list[dict[bytes, Landed[object]]] = []
    store.values[b"known"] = "found"

    def compute(key: bytes) -> object:
        assert inside_computation()
        nested.append(store.fly(flight, [key, b"known", b"other"]))
        assert flight.in_flight() == 1, "nothing was claimed in here"
        return key

    assert not inside_computation()
    assert hows(store.fly(flight, [b"a"], compute=compute)) == ["miss"]
    assert hows(nested[0]) == ["miss", "hit", "miss"]
    assert not inside_computation()


def test_a_nested_call_ends_at_its_first_failure_too(store: Store) -> None:
    with computing():
        landed = store.fly(Flight(), [b"a", b"b"], compute=raising(ValueError()))
    assert hows(landed) == ["failed"]


def test_only_the_thread_that_computes_is_inside(pool: ThreadPoolExecutor) -> None:
    with computing():
        assert not pool.submit(inside_computation).result(PATIENCE)
        with computing():
            pass
        assert inside_computation()
    with pytest.raises(ZeroDivisionError), computing():
        _ = 1 / 0
    assert not inside_computation()


# Clearing and forking


def test_after_forget_those_who_wait_get_their_value_and_who_comes_later_starts_anew(
    store: Store, waits: Waits, pool: ThreadPoolExecutor
) -> None:
    flight, old, new = Flight[object](), Gate(lambda _: "old"), Gate(lambda _: "new")
    leader = pool.submit(store.fly, flight, [b"a"], compute=old, publish=lambda *_: None)
    assert old.entered.wait(PATIENCE)
    early = pool.submit(store.fly, flight, [b"a"])
    waits.expect()
    flight.forget()
    assert flight.in_flight() == 0
    later = pool.submit(store.fly, flight, [b"a"], compute=new)
    assert new.entered.wait(PATIENCE), "did not wait for the forgotten one"
    old.go_on.set()
    assert result(leader)[b"a"].value == result(early)[b"a"].value == "old"
    assert flight.in_flight() == 1, "the forgotten one did not free the claim of the new one"
    last = pool.submit(store.fly, flight, [b"a"])
    waits.expect()
    new.go_on.set()
    assert result(later)[b"a"].value == result(last)[b"a"].value == "new"
    assert store.values == {b"a": "new"}


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("lock_held", [False, True])
def test_a_child_forked_while_others_compute_and_hold_the_lock_works(
    store: Store, pool: ThreadPoolExecutor, lock_held: bool
) -> None:
    flight, gate = Flight[object](), Gate(store.compute)
    leader = pool.submit(store.fly, flight, [b"a"], compute=gate)
    assert gate.entered.wait(PATIENCE)
    holds, let_go = threading.Event(), threading.Event()

    def hold_the_lock() -> None:
        if lock_held:
            with flight._lock:
                holds.set()
                let_go.wait(PATIENCE)
        holds.set()

    holder = pool.submit(hold_the_lock)
    assert holds.wait(PATIENCE)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that hangs dies of it
        flight.after_fork_in_child()
        good = flight.in_flight() == 0 and hows(store.fly(flight, [b"a", b"b"])) == ["miss", "miss"]
        os._exit(0 if good else 1)
    let_go.set()
    gate.go_on.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert hows(result(leader)) == ["miss"]
    holder.result(PATIENCE)


# Tasks


async def turns(number: int = 10) -> None:
    """Let every task go on until it waits for something."""
    for _ in range(number):
        await asyncio.sleep(0)


def run(main: Any) -> None:
    async def guarded() -> None:
        async with asyncio.timeout(PATIENCE):
            await main

    asyncio.run(guarded())


class AsyncGate:
    """A computation of a task that stands still until the test lets it go on."""

    def __init__(self, answer: Callable[[bytes], object]) -> None:
        self.go_on, self.entered = asyncio.Event(), asyncio.Event()
        self._answer = answer

    async def __call__(self, key: bytes) -> object:
        self.entered.set()
        await self.go_on.wait()
        return self._answer(key)


def test_tasks_share_one_computation_and_the_loop_goes_on_meanwhile(store: Store) -> None:
    async def main() -> None:
        flight, gate = Flight[object](), AsyncGate(store.compute)
        tasks = [asyncio.create_task(store.afly(flight, [b"a"], compute=gate)) for _ in range(6)]
        await turns()  # would never come back from a wait that blocks the loop
        gate.go_on.set()
        assert sorted(how for landed in [await task for task in tasks] for how in hows(landed)) == ["coalesced"] * 5 + [
            "miss"
        ]
        assert store.computed == {b"a": 1}
        assert flight.in_flight() == 0

    run(main())


def test_an_error_reaches_every_task_as_the_very_object(store: Store) -> None:
    async def main() -> None:
        error = TimeoutError("of the computation, not of our wait")
        flight, gate = Flight[object](), AsyncGate(raising(error))
        tasks = [asyncio.create_task(store.afly(flight, [b"a"], compute=gate)) for _ in range(4)]
        await turns()
        gate.go_on.set()
        for task in tasks:
            assert (await task)[b"a"].error is error
        assert hows(await store.afly(flight, [b"a"])) == ["miss"]

    run(main())


def test_when_a_leading_task_is_cancelled_another_takes_over(store: Store) -> None:
    async def main() -> None:
        flight, gate = Flight[object](), AsyncGate(store.compute)
        leader = asyncio.create_task(store.afly(flight, [b"a", b"b"], compute=gate))
        await gate.entered.wait()
        others = [asyncio.create_task(store.afly(flight, [b"b", b"a"])) for _ in range(3)]
        await turns()
        leader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leader
        assert (
            sorted(how for landed in [await task for task in others] for how in hows(landed))
            == ["coalesced"] * 4 + ["miss"] * 2
        )
        assert store.computed == {b"a": 1, b"b": 1}
        assert flight.in_flight() == 0

    run(main())


def test_a_cancelled_waiter_cancels_only_itself(store: Store) -> None:
    async def main() -> None:
        flight, gate = Flight[object](), AsyncGate(store.compute)
        leader = asyncio.create_task(store.afly(flight, [b"a"], compute=gate))
        await gate.entered.wait()
        others = [asyncio.create_task(store.afly(flight, [b"a"])) for _ in range(3)]
        await turns()
        others[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await others[1]
        gate.go_on.set()
        assert hows(await leader) == ["miss"]
        assert [hows(await others[n]) for n in (0, 2)] == [["coalesced"]] * 2
        assert store.computed == {b"a": 1}

    run(main())


def test_a_task_that_meets_its_deadline_computes_for_itself_and_frees_all_others(store: Store) -> None:
    async def main() -> None:
        flight, gate = Flight[object](wait_seconds=0.01), AsyncGate(store.compute)
        leader = asyncio.create_task(store.afly(flight, [b"a"], compute=gate))
        await gate.entered.wait()
        assert hows(await store.afly(flight, [b"a"])) == ["miss"]
        assert flight.in_flight() == 0
        gate.go_on.set()
        assert hows(await leader) == ["miss"]

    run(main())


def test_a_nested_call_of_a_task_is_plain_and_other_tasks_are_not_inside(store: Store) -> None:
    async def main() -> None:
        flight, inside, go_on = Flight[object](), asyncio.Event(), asyncio.Event()

        async def compute(key: bytes) -> object:
            inside.set()
            await go_on.wait()
            assert inside_computation()
            return hows(await store.afly(flight, [key]))

        task = asyncio.create_task(store.afly(flight, [b"a"], compute=compute))
        await inside.wait()
        assert not inside_computation()
        go_on.set()
        assert (await task)[b"a"].value == ["miss"]

    run(main())


def test_tasks_of_another_loop_and_threads_wait_for_one_leader_together(
    store: Store, waits: Waits, pool: ThreadPoolExecutor
) -> None:
    flight, gate = Flight[object](), Gate(store.compute)
    leader = pool.submit(store.fly, flight, [b"a"], compute=gate)
    assert gate.entered.wait(PATIENCE)
    thread = pool.submit(store.fly, flight, [b"a"])
    waits.expect()

    async def main() -> None:
        task = asyncio.create_task(store.afly(flight, [b"a"]))
        quitter = asyncio.create_task(store.afly(flight, [b"a"]))
        await turns()
        quitter.cancel()
        await turns()
        gate.go_on.set()
        assert hows(await task) == ["coalesced"]

    run(main())
    assert (hows(result(leader)), hows(result(thread))) == (["miss"], ["coalesced"])
    assert store.computed == {b"a": 1}


# Against a model


NAMES = [bytes([n]) for n in range(6)]
BATCH = st.tuples(
    st.lists(st.sampled_from(NAMES), unique=True, max_size=6), st.sets(st.sampled_from(NAMES), max_size=2)
)


@settings(deadline=None, max_examples=200)
@given(st.lists(BATCH, max_size=12))
def test_batches_with_failures_land_as_one_key_after_the_other_would(
    batches: list[tuple[list[bytes], set[bytes]]],
) -> None:
    """One caller: hits first, then in the order of the keys up to the first that fails."""
    flight, store, known = Flight[object](), Store(), set[bytes]()
    errors = {name: ValueError(name) for name in NAMES}
    for keys, failing in batches:
        expected = {key: "hit" for key in keys if key in known}
        for key in keys:
            if key not in known:
                expected[key] = "failed" if key in failing else "miss"
                if key in failing:
                    break
                known.add(key)

        def compute(key: bytes, failing: set[bytes] = failing) -> object:
            if key in failing:
                raise errors[key]
            return store.compute(key)

        landed = store.fly(flight, keys, compute=compute)
        assert {key: outcome.how for key, outcome in landed.items()} == expected
        assert all(o.error is (errors[k] if o.how == "failed" else None) for k, o in landed.items())
        assert all(o.value == (None if o.how == "failed" else ("value of", k)) for k, o in landed.items())
        assert set(store.values) == known
        assert flight.in_flight() == 0
    assert set(store.computed.values()) <= {1}
