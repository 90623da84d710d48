"""Scenarios: the traffic of whole applications, all of it plain and all of it with a cache that knows none of it."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import mmcache
from mmcache.cli.bench_engine import TIMES_AS_FAST, Pair, Row, Workbench, read, timed
from mmcache.cli.bench_pictures import XGA, Changing, distinct
from mmcache.cli.bench_processors import QWEN2_VL_DEFAULT, image_processor

_SECTION = "scenarios: Qwen2-VL, default limits, 1024x768"

# The pictures of each call of the processor, by number.
Calls = list[list[int]]


def _questions(pictures: int = 3, questions: int = 5) -> Calls:
    """Several questions about each picture, one after the other."""
    return [[picture] for picture in range(pictures) for _ in range(questions)]


def _chat(turns: int = 6) -> Calls:
    """A chat in which each turn brings a picture, and sends those of all turns before it again."""
    return [list(range(turn)) for turn in range(1, turns + 1)]


def _rollouts(prompts: int = 2, samples: int = 8) -> Calls:
    """A trainer that samples several answers to each prompt: a batch holds each picture so many times."""
    return [[prompt] * samples for prompt in range(prompts)]


def _page_index(pages: int = 12, queries: int = 8, best: int = 3) -> Calls:
    """Pages that are embedded once, in batches, and read again when they are among the best for a query."""
    indexed = [list(range(first, first + 4)) for first in range(0, pages, 4)]
    # Some pages answer more questions than others do.
    popularity, draw = [1 / (page + 1) for page in range(pages)], random.Random(0)
    return indexed + [draw.choices(range(pages), popularity, k=best) for _ in range(queries)]


def _one_pass(pictures: int = 12) -> Calls:
    """Pictures that come once each."""
    return [[picture] for picture in range(pictures)]


def _followed(bench: Workbench, scenario: Callable[[], Calls]) -> Pair:
    calls, plain = scenario(), image_processor(QWEN2_VL_DEFAULT)
    wrapped = mmcache.wrap(plain, bench.cache(max_overhead=None))
    pictures = [Changing(distinct(XGA, number)) for number in range(max(map(max, calls)) + 1)]

    def change() -> None:
        for picture in pictures:
            picture.change()

    def follow(processor: Any) -> None:
        for numbers in calls:
            # Read here, so that one output is alive at a time, as where it is used.
            read(processor(images=[pictures[number].image for number in numbers], return_tensors="pt"))

    bench.warm_up(lambda: wrapped(images=[pictures[0].image], return_tensors="pt"))
    # Other pictures each time: an emptied cache gives memory back to the system, and having it again costs as well.
    return Pair(timed(lambda: follow(wrapped)), timed(lambda: follow(plain), before=change))


ROWS = tuple(
    Row(_SECTION, name, "plain", partial(_followed, scenario=scenario), TIMES_AS_FAST)
    for name, scenario in (
        ("5 questions about each picture", _questions),
        ("chat of 6 turns, a picture in each", _chat),
        ("8 rollouts of each prompt", _rollouts),
        ("index of 12 pages, 8 queries", _page_index),
        ("every picture once", _one_pass),
    )
)
