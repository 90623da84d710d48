"""Judging in processes of their own: a class that brings its process down, or hangs, is a judgement like any other."""

import faulthandler
import multiprocessing
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from queue import SimpleQueue

import transformers

from tests.matrix.judging import Judgement, judge

# A class takes 1 to 60 seconds, on a busy machine some minutes: one that takes this long hangs.
_HANGS_AFTER_SECONDS = 900

# What processors keep in module-level caches adds up to gigabytes over all classes.
_CLASSES_PER_PROCESS = 12


def judgements(names: Sequence[str], seed: str, jobs: int) -> Iterator[Judgement]:
    """Yield the judgement of each class in order, so many at a time."""
    free: SimpleQueue[_Process] = SimpleQueue()
    for _ in range(jobs):
        free.put(_Process())

    def judged(name: str) -> Judgement:
        process = free.get()
        try:
            return process.judge(name, seed)
        finally:
            free.put(process)

    with ThreadPoolExecutor(jobs) as threads:
        yield from threads.map(judged, names)
    for _ in range(jobs):
        free.get().close()


class _Process:
    """A process that judges one class after the other, and is replaced when one of them ends it."""

    def __init__(self) -> None:
        self._pool = _one_process()

    def judge(self, name: str, seed: str) -> Judgement:
        try:
            return self._pool.submit(_judge, name, seed).result()
        except BrokenProcessPool:
            self.close()
            self._pool = _one_process()
            return _unjudged(name, "its process died; what it wrote to stderr says where")

    def close(self) -> None:
        self._pool.shutdown()


def _one_process() -> ProcessPoolExecutor:
    # Not forked: a fork of a process that has run torch and threads may hang, which is not what is to be judged.
    return ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), transformers.logging.set_verbosity_error,
        max_tasks_per_child=_CLASSES_PER_PROCESS,
    )  # fmt: skip


def _judge(name: str, seed: str) -> Judgement:
    faulthandler.dump_traceback_later(_HANGS_AFTER_SECONDS, exit=True)
    try:
        return judge(name, seed)
    except Exception:  # noqa: BLE001 - a fault of the matrix itself must not end the run, and fails it all the same
        return _unjudged(name, traceback.format_exc())
    finally:
        faulthandler.cancel_dump_traceback_later()


def _unjudged(name: str, why: str) -> Judgement:
    return Judgement(name, "", obstacle="could not be judged", differences=(why,))
