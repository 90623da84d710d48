"""The memory tier: what it keeps, what goes first, and what is counted."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from mmcache.errors import BadArgument
from mmcache.tiers import memory
from mmcache.tiers.memory import ENTRY_OVERHEAD, MemoryTier


class Item:
    """An item that says when it is freed."""

    def __init__(self, serial: int, nbytes: int, freed: Callable[[int], None]) -> None:
        self.serial, self.nbytes, self._freed = serial, nbytes, freed

    def __del__(self) -> None:
        self._freed(self.serial)


@dataclass
class Plain:
    """An item and nothing else."""

    nbytes: int = 1000
    name: str = ""


@dataclass
class Model:
    """What the tier is to do, with plain dicts: (serial, size) of each key, least recently used first."""

    max_bytes: int
    lru: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    pinned: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    pins: dict[bytes, int] = field(default_factory=dict)
    held: int = 0
    evictions: int = 0
    refused: int = 0
    epoch: int = 0
    gone: list[int] = field(default_factory=list)

    def bytes_in(self, store: dict[bytes, tuple[int, int]]) -> int:
        return sum(size for _, size in store.values())

    def trim(self, nbytes: int = 0) -> None:
        while self.lru and self.bytes_in(self.lru) + self.bytes_in(self.pinned) + self.held + nbytes > self.max_bytes:
            self.gone.append(self.lru.pop(next(iter(self.lru)))[0])
            self.evictions += 1

    def get(self, key: bytes) -> int | None:
        if key in self.lru:
            self.lru[key] = self.lru.pop(key)
        found = self.lru.get(key) or self.pinned.get(key)
        return found[0] if found else None

    def put(self, key: bytes, serial: int, nbytes: int, epoch: int | None) -> bool:
        size = nbytes + ENTRY_OVERHEAD
        fits = size + self.held + self.bytes_in({k: v for k, v in self.pinned.items() if k != key}) <= self.max_bytes
        right_epoch = epoch is None or epoch == self.epoch
        if not fits or not right_epoch:
            self.refused += right_epoch
            self.gone.append(serial)
            return False
        self.delete(key)
        self.trim(size)
        (self.pinned if self.pins.get(key) else self.lru)[key] = (serial, size)
        return True

    def delete(self, key: bytes) -> None:
        for store in (self.lru, self.pinned):
            if key in store:
                self.gone.append(store.pop(key)[0])

    def pin(self, key: bytes) -> None:
        self.pins[key] = self.pins.get(key, 0) + 1
        if key in self.lru:
            self.pinned[key] = self.lru.pop(key)

    def unpin(self, key: bytes) -> None:
        self.pins[key] = max(0, self.pins.get(key, 0) - 1)
        if not self.pins[key] and key in self.pinned:
            self.lru[key] = self.pinned.pop(key)
            self.trim()

    def hold(self, nbytes: int) -> None:
        self.held += nbytes
        self.trim()

    def release(self, nbytes: int) -> None:
        self.held = max(0, self.held - nbytes)

    def clear(self) -> None:
        self.gone += [serial for serial, _ in [*self.lru.values(), *self.pinned.values()]]
        self.lru, self.pinned, self.epoch = {}, {}, self.epoch + 1


class Twins:
    """A tier and its model, driven alike; after each step every number and every freed item is compared."""

    def __init__(self, max_bytes: int) -> None:
        self.tier: MemoryTier[Item] = MemoryTier(max_bytes)
        self.model = Model(max_bytes)
        self.freed: list[int] = []
        self._serial = 0

    def get(self, keys: list[bytes]) -> None:
        got = self.tier.get_many(keys)
        assert [item and item.serial for item in got] == [self.model.get(key) for key in keys]

    def put(self, key: bytes, nbytes: int, epochs_ago: int | None) -> None:
        self._serial += 1
        epoch = None if epochs_ago is None else self.model.epoch - epochs_ago
        kept = self.tier.put(key, Item(self._serial, nbytes, self.freed.append), epoch=epoch)
        assert kept == self.model.put(key, self._serial, nbytes, epoch)

    def each(self, step: str, *arguments: bytes | int) -> None:
        getattr(self.tier, step)(*arguments)
        getattr(self.model, {"unpin_later": "unpin", "touch": "get"}.get(step, step))(*arguments)

    def touch(self, key: bytes) -> None:
        self.tier.touch([key])
        self.model.get(key)

    def compare(self) -> None:
        info, model = self.tier.info(), self.model
        assert info.items == len(model.lru) + len(model.pinned)
        assert info.currsize == model.bytes_in(model.lru) + model.bytes_in(model.pinned) + model.held
        assert (info.pinned, info.held) == (model.bytes_in(model.pinned), model.held)
        assert (info.evictions, info.refused, self.tier.epoch) == (model.evictions, model.refused, model.epoch)
        assert info.currsize <= info.max_bytes or not model.lru

        # As sets: of several that go in one step all are freed, in an order that means nothing.
        assert sorted(self.freed) == sorted(model.gone)
        self.freed.clear()
        model.gone.clear()


KEYS = [bytes([n]) * 16 for n in range(8)]
SIZES = st.one_of(st.integers(0, 6000), st.sampled_from([0, 30_000, 40_000 - ENTRY_OVERHEAD, 40_000]))


@settings(deadline=None, max_examples=150, stateful_step_count=60)
class Lives(RuleBasedStateMachine):
    """Any sequence of operations."""

    @initialize()
    def start(self) -> None:
        self.twins = Twins(40_000)

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=4))
    def get(self, keys: list[bytes]) -> None:
        self.twins.get(keys)
        self.twins.compare()

    @rule(key=st.sampled_from(KEYS), nbytes=SIZES, epochs_ago=st.sampled_from([None, 0, 1]))
    def put(self, key: bytes, nbytes: int, epochs_ago: int | None) -> None:
        self.twins.put(key, nbytes, epochs_ago)
        self.twins.compare()

    @rule(step=st.sampled_from(["delete", "pin", "unpin", "unpin_later"]), key=st.sampled_from(KEYS))
    def with_key(self, step: str, key: bytes) -> None:
        self.twins.each(step, key)
        self.twins.compare()

    @rule(key=st.sampled_from(KEYS))
    def touch(self, key: bytes) -> None:
        self.twins.touch(key)
        self.twins.compare()

    @rule(step=st.sampled_from(["hold", "release"]), nbytes=SIZES)
    def with_bytes(self, step: str, nbytes: int) -> None:
        self.twins.each(step, nbytes)
        self.twins.compare()

    @rule()
    def clear(self) -> None:
        self.twins.each("clear")
        self.twins.compare()


test_any_sequence_of_operations_does_what_plain_dicts_would_do = Lives.TestCase


def tier_for(entries: int, nbytes: int = 1000) -> MemoryTier[Plain]:
    """Make a tier with room for exactly so many entries of so many bytes."""
    return MemoryTier(entries * (nbytes + ENTRY_OVERHEAD))


def kept(tier: MemoryTier[Plain], keys: list[bytes]) -> list[bytes]:
    return [key for key, item in zip(keys, tier.get_many(keys), strict=True) if item is not None]


def test_the_least_recently_used_entry_goes_first() -> None:
    tier = tier_for(3)
    for key in KEYS[:3]:
        tier.put(key, Plain())
    tier.get_many([KEYS[0]])
    tier.touch([KEYS[1]])
    tier.put(KEYS[3], Plain())
    assert kept(tier, KEYS) == [KEYS[0], KEYS[1], KEYS[3]]


def test_an_entry_counts_its_bytes_and_a_constant() -> None:
    tier = tier_for(2)
    tier.put(KEYS[0], Plain(700))
    assert tier.info().currsize == 700 + ENTRY_OVERHEAD
    assert (tier.max_bytes, tier.info().max_bytes) == (2 * (1000 + ENTRY_OVERHEAD),) * 2


def test_the_size_is_taken_once_so_that_an_item_that_grows_leaves_no_bytes_behind() -> None:
    tier, item = tier_for(2), Plain(500)
    tier.put(KEYS[0], item)
    item.nbytes = 900
    tier.pin(KEYS[0])
    assert tier.info().pinned == 500 + ENTRY_OVERHEAD
    tier.unpin(KEYS[0])
    tier.delete(KEYS[0])
    assert tier.info().currsize == 0


def test_an_item_above_the_budget_is_not_kept_and_evicts_nothing() -> None:
    tier = tier_for(2)
    tier.put(KEYS[0], Plain(name="old"))
    tier.put(KEYS[1], Plain())
    assert not tier.put(KEYS[2], Plain(tier.max_bytes))
    assert not tier.put(KEYS[0], Plain(tier.max_bytes, name="new"))
    assert tier.get_many(KEYS[:3]) == [Plain(name="old"), Plain(), None]
    assert (tier.info().refused, tier.info().evictions) == (2, 0)


def test_an_item_as_large_as_the_budget_is_kept() -> None:
    tier = tier_for(1)
    assert tier.put(KEYS[0], Plain(1000))
    assert not tier.put(KEYS[0], Plain(1001))


def test_a_put_in_place_of_another_item_counts_the_new_size_only() -> None:
    tier = tier_for(3)
    tier.put(KEYS[0], Plain(100, "old"))
    tier.put(KEYS[0], Plain(900, "new"))
    assert tier.get_many(KEYS[:1]) == [Plain(900, "new")]
    assert (tier.info().items, tier.info().currsize) == (1, 900 + ENTRY_OVERHEAD)


def test_pinned_items_outlive_any_traffic_and_are_found() -> None:
    tier = tier_for(3)
    tier.put(KEYS[0], Plain(name="pinned"))
    tier.pin(KEYS[0])
    for n in range(100):
        assert tier.put(b"%d" % n, Plain())
    assert tier.get_many(KEYS[:1]) == [Plain(name="pinned")]
    assert tier.info().pinned == 1000 + ENTRY_OVERHEAD


def test_a_put_that_does_not_fit_beside_pinned_items_is_not_kept() -> None:
    tier = tier_for(2)
    for key in KEYS[:2]:
        tier.pin(key)
        assert tier.put(key, Plain())
    assert not tier.put(KEYS[2], Plain())
    tier.unpin(KEYS[0])
    assert tier.put(KEYS[2], Plain())
    assert kept(tier, KEYS) == [KEYS[1], KEYS[2]]


def test_an_item_is_pinned_as_often_as_pin_was_called() -> None:
    tier = tier_for(1)
    tier.put(KEYS[0], Plain())
    for _ in range(3):
        tier.pin(KEYS[0])
    for _ in range(2):
        tier.unpin(KEYS[0])
        assert not tier.put(KEYS[1], Plain())
    tier.unpin(KEYS[0])
    assert tier.put(KEYS[1], Plain())
    assert kept(tier, KEYS) == [KEYS[1]]


def test_an_unpinned_item_is_the_most_recently_used() -> None:
    tier = tier_for(2)
    tier.put(KEYS[0], Plain())
    tier.pin(KEYS[0])
    tier.put(KEYS[1], Plain())
    tier.unpin(KEYS[0])
    tier.put(KEYS[2], Plain())
    assert kept(tier, KEYS) == [KEYS[0], KEYS[2]]


def test_unpinning_what_is_not_pinned_changes_nothing() -> None:
    tier = tier_for(1)
    tier.unpin(KEYS[0])
    tier.pin(KEYS[0])
    tier.put(KEYS[0], Plain())
    assert tier.info().pinned > 0


def test_pins_stay_when_the_item_is_deleted_or_the_tier_cleared() -> None:
    tier = tier_for(2)
    ways: list[Callable[[], None]] = [lambda: tier.delete(KEYS[0]), tier.clear]
    for empty in ways:
        tier.pin(KEYS[0])
        tier.put(KEYS[0], Plain())
        empty()
        assert (tier.info().items, tier.info().pinned) == (0, 0)
        tier.put(KEYS[0], Plain())
        assert tier.info().pinned == 1000 + ENTRY_OVERHEAD


def test_held_bytes_push_entries_out_and_are_never_refused() -> None:
    tier = tier_for(4)
    for key in KEYS[:4]:
        tier.put(key, Plain())
    tier.hold(1)
    assert kept(tier, KEYS) == KEYS[1:4]
    tier.hold(10 * tier.max_bytes)
    assert tier.info().items == 0
    assert not tier.put(KEYS[0], Plain(0))
    tier.release(10 * tier.max_bytes)
    assert tier.put(KEYS[0], Plain())
    assert tier.info().held == 1


def test_an_item_unpinned_while_too_much_is_held_goes_at_once() -> None:
    tier = tier_for(2)
    tier.put(KEYS[0], Plain())
    tier.pin(KEYS[0])
    tier.hold(tier.max_bytes)
    assert tier.info().items == 1
    tier.unpin(KEYS[0])
    assert (tier.info().items, tier.info().currsize) == (0, tier.max_bytes)


def test_more_released_than_held_counts_as_nothing_held() -> None:
    tier = tier_for(2)
    tier.hold(10)
    tier.release(30)
    assert tier.info().held == 0


def test_a_value_of_an_earlier_epoch_is_not_kept() -> None:
    tier = tier_for(2)
    before = tier.epoch
    tier.clear()
    assert tier.epoch == before + 1
    assert not tier.put(KEYS[0], Plain(), epoch=before)
    assert tier.put(KEYS[0], Plain(), epoch=tier.epoch)
    assert tier.info().refused == 0


def test_a_closed_tier_is_empty_and_keeps_nothing() -> None:
    tier = tier_for(2)
    tier.put(KEYS[0], Plain())
    tier.close()
    tier.close()
    assert not tier.put(KEYS[1], Plain())
    assert tier.get_many(KEYS[:2]) == [None, None]
    assert tier.info().currsize == 0


@pytest.mark.parametrize("max_bytes", [0, -1])
def test_a_budget_that_is_none_is_refused(max_bytes: int) -> None:
    with pytest.raises(BadArgument, match=f"max_bytes={max_bytes}: expected a number of bytes above 0"):
        MemoryTier[Plain](max_bytes)


@pytest.mark.parametrize("step", ["hold", "release"])
def test_a_negative_number_of_bytes_is_refused(step: str) -> None:
    tier = tier_for(1)
    with pytest.raises(BadArgument, match="nbytes=-1"):
        getattr(tier, step)(-1)


def leave(step: str, tier: MemoryTier[Item]) -> None:
    """Make the item of the first key leave the tier in one of all ways."""
    steps: dict[str, Callable[[], object]] = {
        "evicted by a put": lambda: tier.put(KEYS[1], Item(1, tier.max_bytes - ENTRY_OVERHEAD, lambda _: None)),
        "evicted by held bytes": lambda: tier.hold(tier.max_bytes),
        "overwritten": lambda: tier.put(KEYS[0], Item(1, 1, lambda _: None)),
        "deleted": lambda: tier.delete(KEYS[0]),
        "cleared": tier.clear,
        "closed": tier.close,
    }
    steps[step]()


WAYS_OUT = ["evicted by a put", "evicted by held bytes", "overwritten", "deleted", "cleared", "closed"]


@pytest.mark.parametrize("step", WAYS_OUT)
def test_an_item_may_call_the_tier_while_it_is_freed(step: str) -> None:
    tier: MemoryTier[Item] = MemoryTier(10_000)
    seen: list[int] = []

    def freed(serial: int) -> None:
        # Would wait for ever if the lock were held; asked in another way first, so that the test fails and not hangs.
        assert not tier._lock.locked()
        tier.get_many(KEYS)
        tier.delete(KEYS[2])
        seen.append(serial)

    tier.put(KEYS[0], Item(7, 100, freed))
    leave(step, tier)
    assert seen == [7]


@pytest.mark.parametrize("step", WAYS_OUT)
def test_nothing_of_an_item_that_left_is_kept_alive(step: str) -> None:
    gc.disable()  # it is to be freed by its last reference, at once
    try:
        tier: MemoryTier[Item] = MemoryTier(10_000)
        freed: list[int] = []
        tier.put(KEYS[0], Item(7, 100, freed.append))
        leave(step, tier)
        assert freed == [7]
    finally:
        gc.enable()


def test_a_pin_given_back_by_a_finalizer_inside_the_lock_counts_from_the_next_operation_on() -> None:
    tier = tier_for(1)
    tier.put(KEYS[0], Plain())
    tier.pin(KEYS[0])
    with tier._lock:  # what a garbage collection in the middle of an operation sees
        tier.unpin_later(KEYS[0])
    assert tier.put(KEYS[1], Plain()), "the pin was given back before the put looked for room"
    assert kept(tier, KEYS) == [KEYS[1]]


@pytest.mark.parametrize("step", ["get_many", "touch", "info", "clear", "close"])
def test_every_operation_gives_late_pins_back(step: str) -> None:
    tier = tier_for(1)
    tier.pin(KEYS[0])
    tier.unpin_later(KEYS[0])
    getattr(tier, step)(*([KEYS[:1]] if step in ("get_many", "touch") else []))
    assert not tier._late
    assert not tier._pins


def test_a_put_and_a_clear_exclude_each_other() -> None:
    """The epoch is compared under the lock that clear() takes: a put that waits for the lock sees the new epoch."""
    tier = tier_for(1)
    at_the_lock, outcome = threading.Event(), list[bool]()

    def put() -> None:
        epoch = tier.epoch
        at_the_lock.set()
        outcome.append(tier.put(KEYS[0], Plain(), epoch=epoch))

    with tier._lock:
        thread = threading.Thread(target=put, daemon=True)
        thread.start()
        assert at_the_lock.wait(30)
        tier._epoch += 1  # what clear() does in here
    thread.join(30)
    assert outcome == [False]
    assert tier.get_many(KEYS[:1]) == [None]


def in_a_child(run: Callable[[], None]) -> None:
    """Fork, run this in the child with a deadline, and require that it went well."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that hangs dies of it
        try:
            run()
        except BaseException:  # noqa: BLE001  the child may only leave by _exit
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Python 3.12 and later warn of every fork of a process with threads, which is what is tried here.
forks_with_threads = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


@forks_with_threads
def test_a_child_forked_while_another_thread_holds_the_lock_starts_empty_and_works() -> None:
    tier = tier_for(2)
    tier.put(KEYS[0], Plain())
    tier.pin(KEYS[0])
    tier.hold(5)
    inside, leave_it = threading.Event(), threading.Event()

    def hold_the_lock() -> None:
        with tier._lock:
            inside.set()
            leave_it.wait(30)

    def child() -> None:
        before = tier.epoch
        tier.after_fork_in_child()
        assert tier.epoch == before + 1
        assert tier.get_many(KEYS[:1]) == [None]
        assert not tier.put(KEYS[0], Plain(), epoch=before)
        assert tier.put(KEYS[0], Plain(), epoch=before + 1)
        assert (tier.info().pinned, tier.info().held) == (1000 + ENTRY_OVERHEAD, 5), "tickets live on in the child"

    thread = threading.Thread(target=hold_the_lock, daemon=True)
    thread.start()
    assert inside.wait(30)
    try:
        in_a_child(child)
    finally:
        leave_it.set()
        thread.join(30)
    assert tier.get_many(KEYS[:1]) == [Plain()], "the parent keeps what it has"


@forks_with_threads
def test_a_child_forked_while_the_lock_is_free_keeps_what_there_was() -> None:
    tier = tier_for(2)
    tier.put(KEYS[0], Plain(name="kept"))

    def child() -> None:
        tier.after_fork_in_child()
        assert tier.get_many(KEYS[:1]) == [Plain(name="kept")]
        assert tier.epoch == 0

    in_a_child(child)


def test_malloc_is_asked_once_for_each_share_of_the_budget_that_was_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    tier: MemoryTier[Plain] = MemoryTier(160 << 20)
    monkeypatch.setattr(memory, "_give_free_pages_back", lambda: asked.append(tier._lock.locked()))
    for n in range(10 + 33):  # ten fill the budget, then each one pushes one out
        tier.put(b"%d" % n, Plain((16 << 20) - ENTRY_OVERHEAD))
    assert asked == [False] * 33, "each drop of 16 MiB, without the lock"
    tier.clear()
    assert len(asked) == 34


GROW = """
import random, sys, torch
from mmcache.tiers.memory import MemoryTier

class Item:
    def __init__(self, tensor): self.tensor = tensor
    @property
    def nbytes(self): return self.tensor.untyped_storage().nbytes()

def process_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

torch.set_num_threads(1)
torch.ones(1000).sum()
rng, budget = random.Random(int(sys.argv[1])), 400_000_000
before, tier, done, worst, full = process_bytes(), MemoryTier(budget), 0, 0, 0
while done < 10 * budget:
    nbytes = int(100_000 * 240 ** rng.random())  # 0.1 to 24 MB
    tier.put(done.to_bytes(16, "big"), Item(torch.ones(nbytes, dtype=torch.uint8)))
    done += nbytes
    worst = max(worst, process_bytes() - before)
info = tier.info()
assert info.evictions > 500 and info.currsize > 0.9 * budget, info
del info
tier.clear()
print(worst, process_bytes() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm")
def test_the_process_grows_by_the_budget_and_no_more_over_ten_times_its_turnover() -> None:
    done = subprocess.run([sys.executable, "-c", GROW, "1"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    worst, after_clear = map(int, done.stdout.split())
    assert 360e6 < worst < 1.1 * 400e6 + 50e6
    assert after_clear < 50e6
