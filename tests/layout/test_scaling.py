"""Scaling down for the trial: sizes, not numbers of another kind, and only where it helps."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from transformers.image_utils import SizeDict

from mmcache.layout import scaling
from mmcache.layout.scaling import scaled_down


class Clock:
    """A clock that only runs when a processor does."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(scaling, "time", made)
    return made


def processor() -> Any:
    return SimpleNamespace(
        size={"longest_edge": 1456, "shortest_edge": 90}, crop=SizeDict(height=224, width=225), patch_size=14,
        merge_size=100, limit=101, pinpoints=[[336, 672], (672, 336)], do_resize=True, mean=[0.5, 300.0], name="x",
        nothing=None,
    )  # fmt: skip


def test_a_slow_processor_is_tried_with_sizes_a_fourth_as_large(clock: Clock) -> None:
    seen = []

    def run(one: Any, options: dict[str, Any]) -> None:
        seen.append(one)
        clock.now += one.size["longest_edge"] / 1000

    given = processor()
    before = dict(vars(processor()))
    small, options = scaled_down(given, {"max_pixels": 50176, "do_resize": True, "size": {"height": 400}}, run)
    assert vars(given) == before, "the processor that was given is changed"
    assert options == {"max_pixels": 12544, "do_resize": True, "size": {"height": 100}}
    assert small is not given
    assert vars(small) == before | {
        "size": {"longest_edge": 364, "shortest_edge": 90}, "crop": SizeDict(height=56, width=57),
        "pinpoints": [[84, 168], (168, 84)],
    }  # fmt: skip
    assert small.do_resize is True


def test_a_fast_processor_is_tried_as_it_is(clock: Clock) -> None:
    def run(one: Any, options: dict[str, Any]) -> None:
        clock.now += 0.001

    given, options = processor(), {"size": 4000}
    assert scaled_down(given, options, run) == (given, options)


@pytest.mark.parametrize("refused", [ValueError("size"), AttributeError("size"), ZeroDivisionError()])
def test_a_processor_that_refuses_the_small_sizes_is_tried_as_it_is(clock: Clock, refused: Exception) -> None:
    given, options = processor(), {"size": 4000}

    def run(one: Any, options: dict[str, Any]) -> None:
        clock.now += 1
        if one is not given:
            raise refused

    assert scaled_down(given, options, run)[0] is given


def test_a_processor_that_gets_no_faster_or_always_raises_is_tried_as_it_is(clock: Clock) -> None:
    def no_faster(one: Any, options: dict[str, Any]) -> None:
        clock.now += 1

    def raising(one: Any, options: dict[str, Any]) -> None:
        raise OSError

    given = processor()
    assert scaled_down(given, {}, no_faster)[0] is given
    assert scaled_down(given, {}, raising)[0] is given


@pytest.mark.parametrize("each", [True, False], ids=["of each", "of all"])
def test_the_first_run_does_not_count(each: bool, clock: Clock) -> None:
    runs: list[Any] = []

    def warming_up(one: Any, options: dict[str, Any]) -> None:
        clock.now += 0.001 if (one in runs if each else runs) else 60
        runs.append(one)

    given = processor()
    assert scaled_down(given, {}, warming_up)[0] is given


def test_what_is_not_a_size_is_shared_not_copied(clock: Clock) -> None:
    lock = threading.Lock()

    def run(one: Any, options: dict[str, Any]) -> None:
        clock.now += one.size["longest_edge"]

    given = processor()
    given.lock = lock
    small, _ = scaled_down(given, {}, run)
    assert small is not given
    assert small.lock is lock
