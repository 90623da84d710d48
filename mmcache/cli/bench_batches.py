"""Rows about many pictures: batches, pictures that pass once, large stores, threads."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import mmcache
from mmcache.cli.bench_engine import (
    PER_CENT_MORE,
    TIMES_AS_FAST,
    TIMES_THE_COST,
    LeftOut,
    Pair,
    Row,
    Workbench,
    read,
    timed,
)
from mmcache.cli.bench_memory import fill, room_for, small_item
from mmcache.cli.bench_photograph import copying
from mmcache.cli.bench_pictures import FULL_HD, TINY, XGA, Changing, distinct
from mmcache.cli.bench_processors import CLIP, QWEN2_VL, QWEN2_VL_TINY, image_processor

_SECTION = "many pictures"

_BATCH = 8

# A chunk is one measurement of processor time, which some systems count in steps of 10 ms.
_CHUNK = 50

# Enough small pictures that neither they nor their items stay in the first-level cache.
_SMALL_PICTURES = 64

_SMALL_STORE = 1_000


def _batch_hits(bench: Workbench, *, floor: bool = False) -> Pair:
    images, plain = [distinct(XGA, number) for number in range(_BATCH)], image_processor(QWEN2_VL)
    wrapped = mmcache.wrap(plain, bench.cache())

    def process(processor: Any) -> Any:
        return processor(images=images, return_tensors="pt")

    other = copying(process(plain)) if floor else partial(process, plain)
    return bench.in_turn(partial(process, wrapped), other, alike=not floor)


def _half_missing(bench: Workbench) -> Pair:
    pictures, plain = [Changing(distinct(XGA, number)) for number in range(_BATCH)], image_processor(QWEN2_VL)
    wrapped = mmcache.wrap(plain, bench.cache(512 << 20))

    def change() -> None:
        for picture in pictures[::2]:
            picture.change()

    def process(processor: Any) -> Any:
        return processor(images=[picture.image for picture in pictures], return_tensors="pt")

    return bench.in_turn(partial(process, wrapped), partial(process, plain), before=change)


def _one_pass(bench: Workbench) -> Pair:
    """Compare processor time over chunks of photographs that nobody has seen before: the same chunk both ways."""
    plain, chunks = image_processor(CLIP), _chunks()
    wrapped = mmcache.wrap(plain, bench.cache(256 << 20, max_overhead=None))
    bench.warm_up(lambda: wrapped(images=distinct(XGA, 0), return_tensors="pt"))
    chunk: list[Any] = []

    def cost_of(processor: Any, take: Callable[[], object]) -> Callable[[], float]:
        def cost() -> float:
            take()
            started = time.process_time()
            for image in chunk:
                read(processor(images=image, return_tensors="pt"))
            return time.process_time() - started

        return cost

    def take_next() -> None:
        chunk[:] = next(chunks)

    return Pair(cost_of(wrapped, lambda: None), cost_of(plain, take_next), rounds=bench.effort.one_pass // _CHUNK)


def _chunks() -> Iterator[list[Any]]:
    """Yield chunks of distinct photographs, made when they are asked for; number 0 was the warm-up's."""
    for first in count(1, _CHUNK):
        yield [distinct(XGA, number) for number in range(first, first + _CHUNK)]


def _large_store(bench: Workbench) -> Pair:
    images, sample = [distinct(TINY, number) for number in range(_SMALL_PICTURES)], small_item()

    def hits(items: int) -> Callable[[], Any]:
        cache = bench.cache(room_for(items))
        processor = mmcache.wrap(image_processor(QWEN2_VL_TINY), cache)

        def hit_all() -> Any:
            for image in images:
                output = processor(images=image, return_tensors="pt")
            return output

        bench.warm_up(hit_all)
        fill(cache, sample, items)
        return hit_all

    return bench.in_turn(hits(bench.effort.small_items), hits(_SMALL_STORE), alike=False)


def _two_threads(bench: Workbench) -> Pair:
    if (os.cpu_count() or 1) < 2:
        raise LeftOut("there is one core only")
    images = [distinct(FULL_HD, number) for number in range(_BATCH)]
    processor = mmcache.wrap(image_processor(QWEN2_VL), bench.cache())
    pool = bench.closing(ThreadPoolExecutor(2))

    def hit(image: Any) -> None:
        read(processor(images=image, return_tensors="pt"))

    def hit_all() -> None:
        for image in images:
            hit(image)

    bench.warm_up(hit_all)
    return Pair(timed(lambda: list(pool.map(hit, images))), timed(hit_all))


ROWS = (
    Row(_SECTION, "batch of 8, 1024x768, all hits", "copy, huge pages", partial(_batch_hits, floor=True), TIMES_THE_COST, 1.7, (1, 2)),
    Row(_SECTION, "batch of 8, 1024x768, all hits", "plain", _batch_hits, TIMES_AS_FAST, 3.5, (1, 2)),
    Row(_SECTION, "batch of 8, 1024x768, half missing", "plain", _half_missing, TIMES_THE_COST, 0.7, (1, 2)),
    Row(_SECTION, "one pass, CLIP 224, processor time", "plain", _one_pass, PER_CENT_MORE, 2),
    Row(_SECTION, "hit in a large store, 32x32", "in one of 1,000", _large_store, TIMES_THE_COST, 1.3),
    Row(_SECTION, "hits of two threads, 1080p", "one thread", _two_threads, TIMES_AS_FAST),
)  # fmt: skip
