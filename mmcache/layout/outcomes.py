"""What the plain processor gives in a trial, watched for random numbers, and compared with what is made of its parts."""

import time
from collections.abc import Callable
from typing import Any

from mmcache.errors import NotJoinable
from mmcache.layout.compare import difference
from mmcache.randomness import random_states

# A call that moves the random generators this often in a row is taken to draw from them.
RUNS_TO_BE_SURE = 3

# The reason of a verdict on a processor that does.
DRAWS = "it draws random numbers"


class Disagreement(Exception):
    """A comparison that failed; its text becomes the verdict's reason."""


def watched(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call that ends the trial if it draws random numbers.

    Other threads may draw some at the same time, and must not find the generators put back: only what moves them every
    time is taken to draw, and only if they rest as soon as it does. Where they do not, its outputs have to tell.
    """

    def watching(images: Any) -> Any:
        first = random_states()
        started = time.perf_counter()
        for _ in range(RUNS_TO_BE_SURE):
            before = random_states()
            outcome = outcome_of(call, images)
            if random_states() == before:
                break
        else:
            after = random_states()
            time.sleep(time.perf_counter() - started)
            if random_states() == after:
                first.restore()
                raise Disagreement(DRAWS)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return watching


def outcome_of(call: Callable[[Any], Any], images: Any) -> Any:
    """Return what the plain processor gives for a batch; an exception is a value here, to be compared with."""
    try:
        return call(images)
    except Disagreement:
        raise
    except Exception as error:  # noqa: BLE001 - a refusal is an outcome like any other
        return error


def same_outcome(join: Callable[[], Any], expected: Any, what: str) -> None:
    """Compare what is joined with what the processor gave; an error has to be one in both."""
    try:
        joined = join()
    except NotJoinable as refusal:
        if not isinstance(expected, Exception):
            raise Disagreement(f"{what} cannot be joined from its images: {refusal}") from None
        return
    if isinstance(expected, Exception):
        raise Disagreement(f"{what} raises {type(expected).__name__}, its images alone do not")
    agree(expected, joined, f"{what} and its images alone")


def agree(expected: Any, found: Any, what: str) -> None:
    """Compare two outputs bit for bit."""
    if where := difference(expected, found):
        raise Disagreement(f"{what}: {where}")
