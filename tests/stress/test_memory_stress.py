"""The memory tier under many random operations, of one thread against a model and of eight against each other."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from mmcache.tiers.memory import ENTRY_OVERHEAD, MemoryTier
from tests.tiers.test_memory import Twins

OPERATIONS = 100_000
THREADS = 8
KEYS = [bytes([n]) * 16 for n in range(40)]


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Switch threads as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_hundred_thousand_random_operations_do_what_plain_dicts_would_do() -> None:
    rng, twins = random.Random(20), Twins(60_000)
    held: list[int] = []
    happened: Counter[str] = Counter()
    for _ in range(OPERATIONS):
        step = rng.choices(
            ["get", "put", "delete", "pin", "unpin", "unpin_later", "touch", "hold", "release", "clear"],
            [30, 30, 2, 6, 4, 3, 8, 3, 4, 0.05],
        )[0]
        key = rng.choice(KEYS)
        if step == "get":
            twins.get(rng.choices(KEYS, k=rng.randrange(4)))
        elif step == "put":
            twins.put(key, rng.choice([0, rng.randrange(8000), rng.randrange(70_000)]), rng.choice([None, 0, 0, 1]))
        elif step == "touch":
            twins.touch(key)
        elif step == "hold":
            held.append(rng.choice([rng.randrange(9000), rng.randrange(80_000)]))
            twins.each(step, held[-1])
        elif step == "release":
            twins.each(step, held.pop(rng.randrange(len(held))) if held else 0)
        elif step in ("unpin", "unpin_later"):
            pinned = [k for k, n in twins.model.pins.items() if n]
            twins.each(step, rng.choice(pinned) if pinned else key)
        else:
            twins.each(step, *([] if step == "clear" else [key]))
        twins.compare()
        happened[step] += 1
        happened["full"] += twins.model.held > 60_000
        happened["pinned"] += bool(twins.model.pinned)
    assert twins.model.evictions > 5000
    assert twins.model.refused > 1000
    assert min(happened.values()) > 20, "every case came up"


class Stamped:
    """An item that names its key, so that a wrong hit shows."""

    def __init__(self, key: bytes, nbytes: int) -> None:
        self.key, self.nbytes = key, nbytes


class Worker:
    """One thread of random operations that gives back all it pinned and held."""

    def __init__(self, tier: MemoryTier[Stamped], seed: int) -> None:
        self.tier, self.rng = tier, random.Random(seed)
        self.pins: list[bytes] = []
        self.holds: list[int] = []
        self.hits = 0

    def step(self) -> None:
        steps = [self.get, self.put, self.pin, self.unpin, self.hold, self.release, self.check]
        self.rng.choices(steps, [40, 35, 7, 10, 2, 3, 2])[0](self.rng.choice(KEYS))
        if self.rng.random() < 0.02:
            self.tier.delete(self.rng.choice(KEYS))
        if self.rng.random() < 0.0005:
            self.tier.clear()

    def put(self, key: bytes) -> None:
        self.tier.put(key, Stamped(key, self.rng.randrange(12_000)), epoch=self.rng.choice([None, self.tier.epoch]))

    def pin(self, key: bytes) -> None:
        self.tier.pin(key)
        self.pins.append(key)

    def unpin(self, _key: bytes) -> None:
        if self.pins:
            self.rng.choice([self.tier.unpin, self.tier.unpin_later])(self.pins.pop())

    def hold(self, _key: bytes) -> None:
        self.holds.append(self.rng.randrange(10_000))
        self.tier.hold(self.holds[-1])

    def release(self, _key: bytes) -> None:
        if self.holds:
            self.tier.release(self.holds.pop())

    def get(self, key: bytes) -> None:
        keys = [key, *self.rng.sample(KEYS, 2)]
        for wanted, item in zip(keys, self.tier.get_many(keys), strict=True):
            if item is not None:
                assert item.key == wanted
                self.hits += 1

    def check(self, key: bytes) -> None:
        self.tier.touch([key])
        info = self.tier.info()
        assert info.pinned + info.held <= info.currsize
        assert info.currsize <= info.max_bytes or info.currsize == info.pinned + info.held
        assert info.items * ENTRY_OVERHEAD <= info.currsize - info.held

    def finish(self) -> None:
        for key in self.pins:
            self.tier.unpin(key)
        for nbytes in self.holds:
            self.tier.release(nbytes)


@pytest.mark.usefixtures("many_switches")
def test_eight_threads_never_see_a_wrong_item_or_sums_that_do_not_add_up() -> None:
    tier: MemoryTier[Stamped] = MemoryTier(150_000)
    workers = [Worker(tier, seed) for seed in range(THREADS)]
    faults: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def work(worker: Worker) -> None:
        try:
            start.wait(30)
            for _ in range(OPERATIONS // THREADS):
                worker.step()
            worker.finish()
        except BaseException as fault:  # noqa: BLE001  shown by the test's own thread
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not faults
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"

    info = tier.info()
    assert (info.pinned, info.held) == (0, 0)
    assert sum(worker.hits for worker in workers) > 10_000
    assert info.evictions > 1000
    left = [item for item in tier.get_many(KEYS) if item is not None]
    assert len(left) == info.items
    assert sum(item.nbytes + ENTRY_OVERHEAD for item in left) == info.currsize
    tier.clear()
    assert tier.info()[:4] == (0, 0, 0, 0)
