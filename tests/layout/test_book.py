"""The book of verdicts: one trial per structure, and nobody waits longer than he wants to."""

import os
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from mmcache.layout.book import Trials
from mmcache.layout.outcomes import DRAWS, RUNS_TO_BE_SURE
from mmcache.layout.verdict import Verdict


@pytest.fixture
def trials() -> Iterator[Trials]:
    book = Trials()
    yield book
    if book._pool is not None:
        book._pool.shutdown()


class Gate:
    """A trial that says when it began and ends when it may."""

    def __init__(self, reason: str = "") -> None:
        self.began, self.may_end = threading.Event(), threading.Event()
        self.runs = 0
        self.reason = reason

    def prepare(self) -> "Gate":
        return self

    def __call__(self) -> Verdict:
        self.runs += 1
        self.began.set()
        assert self.may_end.wait(30)
        return Verdict(reason=self.reason)


def never() -> Callable[[], Verdict]:
    raise AssertionError("this structure was tried before")


def test_sixteen_threads_make_one_trial(trials: Trials) -> None:
    gate, found = Gate(), list[Verdict | None]()
    barrier = threading.Barrier(17)

    def ask() -> None:
        barrier.wait(30)
        found.append(trials.verdict(b"one", gate.prepare, patience=30))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    barrier.wait(30)
    assert gate.began.wait(30)
    gate.may_end.set()
    for thread in threads:
        thread.join(30)
    assert gate.runs == 1
    assert found == [Verdict()] * 16
    assert len({id(verdict) for verdict in found}) == 1


def test_without_patience_the_answer_comes_while_the_trial_runs(trials: Trials) -> None:
    gate = Gate()
    assert trials.verdict(b"one", gate.prepare, patience=0) is None
    assert gate.began.wait(30)
    assert trials.verdict(b"one", never, patience=0) is None
    assert trials.known(b"one") is None
    gate.may_end.set()
    trials.settle()
    assert trials.known(b"one") == trials.verdict(b"one", never, patience=0) == Verdict()
    assert gate.runs == 1


def test_settle_waits_for_every_trial(trials: Trials) -> None:
    gates = [Gate(str(number)) for number in range(3)]
    for number, gate in enumerate(gates):
        trials.verdict(bytes([number]), gate.prepare, patience=0)
    assert gates[0].began.wait(30)
    assert not gates[1].began.is_set(), "two trials at once"
    settled = threading.Event()

    def settle() -> None:
        trials.settle()
        settled.set()

    thread = threading.Thread(target=settle)
    thread.start()
    for gate in gates:
        assert not settled.is_set()
        gate.may_end.set()
    assert settled.wait(30)
    thread.join(30)
    assert [trials.known(bytes([number])) for number in range(3)] == [Verdict(reason=str(n)) for n in range(3)]


@pytest.mark.parametrize("patience", [0.0, 30.0])
def test_a_trial_that_raises_is_a_verdict_with_its_reason(trials: Trials, patience: float) -> None:
    def broken() -> Verdict:
        raise OSError("disk")

    trials.verdict(b"one", lambda: broken, patience=patience)
    trials.settle()
    verdict = trials.verdict(b"one", never, patience=patience)
    assert verdict is not None
    assert not verdict.served
    assert verdict.reason == "its trial failed: OSError: disk"


def test_who_draws_random_numbers_each_time_needs_no_trial(trials: Trials) -> None:
    for _ in range(RUNS_TO_BE_SURE - 1):
        trials.suspect(b"one")
        trials.suspect(b"other")
    assert trials.known(b"one") is None, "another thread may have drawn"
    assert not trials.begun(b"one")
    trials.suspect(b"one")
    assert trials.verdict(b"one", never, patience=30) == Verdict(reason=DRAWS)
    assert trials.known(b"other") is None


def test_structures_do_not_meet_and_a_bad_verdict_is_remembered_too(trials: Trials) -> None:
    def reason(text: str) -> Callable[[], Verdict]:
        return lambda: Verdict(reason=text)

    assert trials.verdict(b"one", lambda: reason("a"), patience=30) == Verdict(reason="a")
    assert trials.verdict(b"two", lambda: reason("b"), patience=30) == Verdict(reason="b")
    assert trials.verdict(b"one", never, patience=30) == Verdict(reason="a")


def test_settling_an_empty_book_starts_no_thread() -> None:
    before = threading.active_count()
    book = Trials()
    book.settle()
    assert book._pool is None
    assert threading.active_count() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_forked_child_keeps_the_verdicts_and_tries_again_what_was_running(trials: Trials) -> None:
    trials.verdict(b"known", lambda: Verdict, patience=30)
    gate = Gate()
    trials.verdict(b"running", gate.prepare, patience=0)
    assert gate.began.wait(30)
    with trials._lock:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                trials.after_fork_in_child()
                good = trials.verdict(b"known", never, patience=0) == Verdict()
                good &= trials.verdict(b"running", lambda: lambda: Verdict(reason="child"), patience=30) == Verdict(
                    reason="child"
                )
                code = 0 if good else 2
            finally:
                sys.stderr.flush()
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gate.may_end.set()
    trials.settle()
    assert trials.known(b"running") == Verdict()
