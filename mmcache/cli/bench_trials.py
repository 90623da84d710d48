"""Rows about trials: what it costs, once for each processor, to find out that it can be cached exactly."""

import time
from functools import partial

import mmcache
from mmcache.cli.bench_engine import TIMES_THE_COST, Pair, Row, Workbench, new_cache, timed
from mmcache.cli.bench_pictures import FULL_HD, photograph
from mmcache.cli.bench_processors import CLIP, IDEFICS3, LLAVA_NEXT, QWEN2_VL, Backend, Family, image_processor

_SECTION = "first call with a cache, the trial included"

# Each is a whole trial on a cache that knows nothing; the first has to load some code.
_ROUNDS = 3


def _trial(_: Workbench, family: Family, backend: Backend = "torchvision") -> Pair:
    plain, image = image_processor(family, backend), photograph(FULL_HD)

    def trial() -> float:
        with new_cache() as cache:
            wrapped = mmcache.wrap(plain, cache)
            started = time.perf_counter()
            wrapped(images=image, return_tensors="pt")
            cache.settle()
            return time.perf_counter() - started

    return Pair(trial, timed(lambda: plain(images=image, return_tensors="pt")), rounds=_ROUNDS)


ROWS = tuple(
    Row(_SECTION, name, "one plain call", trial, TIMES_THE_COST)
    for name, trial in (
        ("CLIP 224", partial(_trial, family=CLIP)),
        ("Qwen2-VL", partial(_trial, family=QWEN2_VL)),
        ("Qwen2-VL PIL", partial(_trial, family=QWEN2_VL, backend="pil")),
        ("LLaVA-NeXT", partial(_trial, family=LLAVA_NEXT)),
        ("Idefics3", partial(_trial, family=IDEFICS3)),
    )
)
