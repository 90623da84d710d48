"""Rows about memory: what an item takes, how many pictures fit, and what a batch of hits needs beside its output."""

import ctypes
import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mmcache
from mmcache.cli.bench_engine import (
    BYTES_MORE,
    PER_CENT_MORE_BYTES,
    TIMES_AS_MANY,
    Failed,
    LeftOut,
    Pair,
    Row,
    Workbench,
    new_cache,
    tensors_of,
)
from mmcache.cli.bench_pictures import FULL_HD, TINY, XGA, distinct, photograph
from mmcache.cli.bench_processors import CLIP, LLAVA_NEXT, QWEN2_VL, QWEN2_VL_TINY, SIGLIP_384, Family, image_processor
from mmcache.items import Coded, Item, copy_tree, is_tensor
from mmcache.sizes import format_size, memory_limit

_SECTION = "memory"

_BATCH = 8

_KEY_BYTES = 16

# What a small item is counted with at most, and some room for the pictures that are looked up.
_SMALL_ITEM_BYTES, _SMALL_STORE_BYTES = 5 << 10, 256 << 20


def room_for(items: int) -> int:
    """Return a budget for so many small items; raise `LeftOut` where there is not the memory for it."""
    budget = _SMALL_STORE_BYTES + items * _SMALL_ITEM_BYTES
    if budget > memory_limit() // 2:
        raise LeftOut(
            f"{items:,} items may take {format_size(budget)}, and the memory limit is {format_size(memory_limit())}"
        )
    return budget


def fill(cache: mmcache.Cache, sample: Item, items: int) -> None:
    """Fill a cache with copies of an item, under keys that nobody looks up."""
    epoch = cache.memory.epoch
    for _ in range(items):
        cache.memory.put(os.urandom(_KEY_BYTES), Item(copy_tree(sample.value, _copied), sample.nbytes), epoch=epoch)
    if cache.memory.info().items < items:
        raise Failed(f"{items} small items do not fit into {cache}")


def small_item() -> Item:
    """Return what the cache keeps for a thumbnail."""
    processor = image_processor(QWEN2_VL_TINY)
    with new_cache() as cache, mmcache.Stages(processor, cache=cache, pixels="now") as stages:
        for _ in range(2):  # the first time, its trial may still be running
            ticket = stages.add(photograph(TINY))
            cache.settle()
        found = cache.memory.get_many([ticket.key]) if ticket.key else [None]
    if not isinstance(found[0], Item):
        raise Failed("a thumbnail was not kept")
    return found[0]


def _copied(leaf: Any) -> Any:
    if isinstance(leaf, Coded):
        return replace(leaf, codes=leaf.codes.clone())
    return leaf.clone() if is_tensor(leaf) else leaf


def _per_item(bench: Workbench) -> Pair:
    items, sample = bench.effort.small_items, small_item()
    cache, tensors = bench.cache(room_for(items)), sum(int(leaf.nbytes) for leaf in sample.value.values())
    _give_free_memory_back()
    before = _status("VmRSS")
    fill(cache, sample, items)
    grown = (_status("VmRSS") - before) / items
    return Pair(lambda: grown, lambda: tensors, rounds=1)


def _per_gib(bench: Workbench, family: Family) -> Pair:
    cache, plain, image = bench.cache(), image_processor(family), photograph(FULL_HD)
    wrapped = mmcache.wrap(plain, cache)
    bench.warm_up(lambda: wrapped(images=image, return_tensors="pt"))
    output = plain(images=image, return_tensors="pt")
    info = cache.cache_info()
    kept = info.currsize / max(1, info.items)
    return Pair(lambda: kept, lambda: sum(tensor.nbytes for tensor in tensors_of(output)), rounds=1)


def _peak(bench: Workbench) -> Pair:
    images = [distinct(XGA, number) for number in range(_BATCH)]
    wrapped = mmcache.wrap(image_processor(QWEN2_VL), bench.cache())

    def hits() -> Any:
        return wrapped(images=images, return_tensors="pt")

    bench.warm_up(hits)
    nbytes = sum(tensor.nbytes for tensor in tensors_of(hits()))
    return Pair(lambda: _peak_bytes(hits), lambda: nbytes)


def _peak_bytes(run: Callable[[], Any]) -> float:
    """Return by how much the memory of the process grew at most while something ran."""
    _give_free_memory_back()
    with suppress(OSError):  # "5" is for the peak, see proc(5); where it is refused, the peak is that of the whole life
        Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    if _status("VmHWM") > before + (1 << 20):
        raise LeftOut("this system does not let a process measure its peak memory anew")
    output = run()
    peak = _status("VmHWM")
    del output
    return peak - before


def _status(name: str) -> int:
    """Return a figure of this process in bytes, by its name in ``/proc/self/status``."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    raise LeftOut("this system does not say how much memory a process has")


def _give_free_memory_back() -> None:
    """Have garbage freed and malloc return what is free: what is measured would hide in it."""
    gc.collect()
    if sys.platform == "linux":
        with suppress(AttributeError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)


ROWS = (
    Row(_SECTION, "pictures per GiB, Qwen2-VL, 1080p", "float32 items", partial(_per_gib, family=QWEN2_VL), TIMES_AS_MANY, 7.5),
    Row(_SECTION, "pictures per GiB, CLIP 224, 1080p", "float32 items", partial(_per_gib, family=CLIP), TIMES_AS_MANY, 3.8),
    Row(_SECTION, "pictures per GiB, SigLIP 384, 1080p", "float32 items", partial(_per_gib, family=SIGLIP_384), TIMES_AS_MANY, 3.8),
    Row(_SECTION, "pictures per GiB, LLaVA-NeXT, 1080p", "float32 items", partial(_per_gib, family=LLAVA_NEXT), TIMES_AS_MANY, 3.8),
    Row(_SECTION, "peak, batch of 8 hits, 1024x768", "its output", _peak, PER_CENT_MORE_BYTES, 10),
    Row(_SECTION, "a small item, of many", "its tensors", _per_item, BYTES_MORE, 1024),
)  # fmt: skip
