"""Flight under many threads, tasks and loops at once: one computation each, and nobody hangs."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest

from mmcache.flight import Flight, Landed

THREADS = 32
BURSTS = 10
PATIENCE = 60.0  # in seconds: what takes longer hangs


@pytest.fixture(autouse=True)
def many_switches() -> Iterator[None]:
    """Switch threads as often as can be, and show all stacks if something hangs."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    faulthandler.dump_traceback_later(PATIENCE, file=sys.__stderr__ or 2)
    yield
    faulthandler.cancel_dump_traceback_later()
    sys.setswitchinterval(before)


class Store:
    """A tier and a processor: remembers what was published, counts what was computed."""

    def __init__(self) -> None:
        self.values: dict[bytes, object] = {}
        self.computed: Counter[bytes] = Counter()
        self._lock = threading.Lock()

    def look_up(self, keys: Sequence[bytes]) -> list[object | None]:
        return [self.values.get(key) for key in keys]

    def publish(self, key: bytes, value: object) -> None:
        self.values[key] = value

    def compute(self, key: bytes) -> object:
        with self._lock:
            self.computed[key] += 1
        return ("value of", key)

    async def acompute(self, key: bytes) -> object:
        for _ in range(key[-1] % 4):
            await asyncio.sleep(0)
        return self.compute(key)


def in_threads(number: int, work: Callable[[int], None]) -> None:
    """Run this in so many threads; raises the first exception of any, and fails if one does not end."""
    faults: list[BaseException] = []

    def guarded(place: int) -> None:
        try:
            work(place)
        except BaseException as fault:  # noqa: BLE001  raised by the test's own thread
            faults.append(fault)

    threads = [threading.Thread(target=guarded, args=(place,), daemon=True) for place in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    if faults:
        raise faults[0]
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"


def assert_right(keys: Sequence[bytes], landed: dict[bytes, Landed[object]]) -> None:
    assert list(landed) == list(keys)
    assert all(outcome.value == ("value of", key) for key, outcome in landed.items())


@pytest.mark.parametrize("unlike_orders", [False, True])
def test_32_threads_compute_each_key_of_10_cold_bursts_exactly_once(unlike_orders: bool) -> None:
    flight, store = Flight[object](), Store()
    bursts = [[bytes([burst, n]) for n in range(5)] for burst in range(BURSTS)]
    together = threading.Barrier(THREADS)
    how: list[Counter[str]] = [Counter() for _ in range(THREADS)]

    def work(place: int) -> None:
        rng = random.Random(place)
        for keys in bursts:
            mine = rng.sample(keys, len(keys)) if unlike_orders else keys
            together.wait(PATIENCE)
            landed = flight.fly(mine, store.look_up, store.compute, store.publish)
            assert_right(mine, landed)
            how[place].update(outcome.how for outcome in landed.values())

    in_threads(THREADS, work)
    assert store.computed == {key: 1 for keys in bursts for key in keys}
    totals = sum(how, Counter())
    assert totals["miss"] == BURSTS * 5
    assert totals.total() == BURSTS * 5 * THREADS
    assert flight.in_flight() == 0


def test_32_tasks_compute_each_key_of_10_cold_bursts_exactly_once() -> None:
    async def main() -> None:
        flight, store = Flight[object](), Store()
        for burst in range(BURSTS):
            keys = [bytes([burst, n]) for n in range(5)]
            batches = [random.Random(task).sample(keys, 5) for task in range(THREADS)]
            flights = [flight.afly(batch, store.look_up, store.acompute, store.publish) for batch in batches]
            async with asyncio.timeout(PATIENCE):
                for batch, landed in zip(batches, await asyncio.gather(*flights), strict=True):
                    assert_right(batch, landed)
            assert store.computed == {bytes([b, n]): 1 for b in range(burst + 1) for n in range(5)}
            assert flight.in_flight() == 0

    asyncio.run(main())


def test_tasks_of_four_loops_compute_each_key_of_10_cold_bursts_exactly_once() -> None:
    flight, store = Flight[object](), Store()
    together = threading.Barrier(4)

    async def burst(keys: list[bytes], rng: random.Random) -> None:
        batches = [rng.sample(keys, 5) for _ in range(8)]
        flights = [flight.afly(batch, store.look_up, store.acompute, store.publish) for batch in batches]
        async with asyncio.timeout(PATIENCE):
            for batch, landed in zip(batches, await asyncio.gather(*flights), strict=True):
                assert_right(batch, landed)

    def work(place: int) -> None:
        for number in range(BURSTS):
            together.wait(PATIENCE)
            asyncio.run(burst([bytes([number, n]) for n in range(5)], random.Random(place)))

    in_threads(4, work)
    assert store.computed == {bytes([burst, n]): 1 for burst in range(BURSTS) for n in range(5)}
    assert flight.in_flight() == 0


class Fickle:
    """Computations that go well, fail or are interrupted, as the dice of one caller have it."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        self.store, self.rng = store, rng

    def __call__(self, key: bytes) -> object:
        dice = self.rng.random()
        if dice < 0.15:
            raise ValueError(key)
        if dice < 0.25:
            raise self.rng.choice([KeyboardInterrupt, SystemExit])
        os.sched_yield()  # let others in, to wait for this one
        return self.store.compute(key)


def assert_lawful(keys: Sequence[bytes], landed: dict[bytes, Landed[object]]) -> None:
    """Every key that landed is right; keys are absent only after a failure, and errors are the computations' own."""
    failed = [key for key, outcome in landed.items() if outcome.how == "failed"]
    assert set(landed) == set(keys) or len(failed) == 1
    for key, outcome in landed.items():
        if outcome.how == "failed":
            assert isinstance(outcome.error, ValueError)
            assert outcome.error.args == (key,)
        else:
            assert outcome.value == ("value of", key)


def test_700_rounds_of_threads_with_failures_and_interruptions_hang_nobody() -> None:
    rounds, callers = 700, 6
    flight = Flight[object]()
    stores = [Store() for _ in range(rounds)]
    together = threading.Barrier(callers)
    ends: list[Counter[str]] = [Counter() for _ in range(callers)]
    kept: list[list[Landed[object]]] = [[] for _ in range(callers)]

    def work(place: int) -> None:
        rng = random.Random(place)
        for number, store in enumerate(stores):
            keys = rng.sample([b"%d %d" % (number, n) for n in range(6)], rng.randrange(1, 6))
            together.wait(PATIENCE)
            try:
                landed = flight.fly(keys, store.look_up, Fickle(store, rng), store.publish)
            except (KeyboardInterrupt, SystemExit):
                ends[place]["interrupted"] += 1
                continue
            assert_lawful(keys, landed)
            ends[place].update(outcome.how for outcome in landed.values())
            kept[place] += [outcome for outcome in landed.values() if outcome.how == "failed"]

    in_threads(callers, work)
    assert flight.in_flight() == 0
    assert all(set(store.computed.values()) <= {1} for store in stores), "a published key is never computed again"
    totals = sum(ends, Counter())
    assert min(totals[how] for how in ("hit", "miss", "coalesced", "failed", "interrupted")) > 10, totals
    own = {id(outcome.error) for outcomes in kept for outcome in outcomes if outcome.own}
    assert all(id(outcome.error) in own for outcomes in kept for outcome in outcomes), (
        "each error is somebody's very own"
    )


def test_300_rounds_of_tasks_with_failures_and_cancellations_hang_nobody() -> None:
    rng, ends = random.Random(5), Counter[str]()

    async def one_round(number: int) -> None:
        flight, store = Flight[object](), Store()
        batches = [rng.sample([b"%d %d" % (number, n) for n in range(6)], rng.randrange(1, 6)) for _ in range(8)]
        tasks = [
            asyncio.create_task(flight.afly(batch, store.look_up, AsyncFickle(store, rng), store.publish))
            for batch in batches
        ]
        for task in rng.sample(tasks, 3):  # leaders and waiters, at any point of their way
            for _ in range(rng.randrange(5)):
                await asyncio.sleep(0)
            task.cancel()
        async with asyncio.timeout(PATIENCE):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for batch, landed in zip(batches, results, strict=True):
            if isinstance(landed, BaseException):
                assert isinstance(landed, asyncio.CancelledError)
                ends["cancelled"] += 1
                continue
            assert_lawful(batch, landed)
            ends.update(outcome.how for outcome in landed.values())
        assert flight.in_flight() == 0
        assert set(store.computed.values()) <= {1}
        assert set(store.values) == set(store.computed)

    async def main() -> None:
        for number in range(300):
            await one_round(number)

    asyncio.run(main())
    assert min(ends[how] for how in ("miss", "coalesced", "failed", "cancelled")) > 50, ends


class AsyncFickle:
    """Computations of tasks that go well, fail, or end as cancelled by themselves."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        self.store, self.rng = store, rng

    async def __call__(self, key: bytes) -> object:
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)
        dice = self.rng.random()
        if dice < 0.1:
            raise ValueError(key)
        if dice < 0.15:
            raise asyncio.CancelledError
        return self.store.compute(key)


class Clock:
    """A store that is cleared as a cache is: emptied first, then the flight forgets. A value is its computation's time."""

    def __init__(self) -> None:
        self.flight, self.lock = Flight[int](), threading.Lock()
        self.values: dict[bytes, tuple[int, int]] = {}
        self.epoch = 1  # rises when the store is emptied
        self.cleared = 1  # follows when the clear has returned

    def clear(self) -> None:
        with self.lock:
            self.epoch += 1
            epoch = self.epoch
            self.values.clear()
        self.flight.forget()
        with self.lock:
            self.cleared = max(self.cleared, epoch)

    def look_up(self, keys: Sequence[bytes]) -> list[int | None]:
        with self.lock:
            found = [self.values.get(key) for key in keys]
            assert all(entry is None or entry[1] == self.epoch <= entry[0] for entry in found)
        return [None if entry is None else entry[0] for entry in found]

    def call(self, keys: list[bytes]) -> dict[bytes, Landed[int]]:
        cleared, epoch = self.cleared, self.epoch

        def publish(key: bytes, value: int) -> None:
            with self.lock:
                if self.epoch == epoch:
                    self.values[key] = (value, epoch)

        def compute(_key: bytes) -> int:
            began = self.epoch
            os.sched_yield()  # let others in, to clear or to wait for this one
            return began

        landed = self.flight.fly(keys, self.look_up, compute, publish)
        assert all(outcome.value is not None and outcome.value >= cleared for outcome in landed.values())
        return landed


def test_clearing_all_the_time_gives_nobody_a_value_from_before_his_call() -> None:
    clock, callers = Clock(), 7
    together = threading.Barrier(callers)
    how: list[Counter[str]] = [Counter() for _ in range(callers)]

    def work(place: int) -> None:
        rng = random.Random(place)
        together.wait(PATIENCE)
        for _ in range(1500):
            if rng.random() < 0.2:
                clock.clear()
            landed = clock.call(rng.sample([b"a", b"b", b"c", b"d"], 3))
            how[place].update(outcome.how for outcome in landed.values())

    in_threads(callers, work)
    assert clock.flight.in_flight() == 0
    totals = sum(how, Counter())
    assert min(totals[ending] for ending in ("hit", "miss", "coalesced")) > 50, totals
