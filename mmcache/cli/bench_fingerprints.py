"""Rows about identity: what it costs to know which picture and which processor this is."""

from functools import partial
from typing import Any

from mmcache.cli.bench_engine import (
    MICROSECONDS_MORE,
    TIMES_THE_COST,
    LeftOut,
    Pair,
    Row,
    Workbench,
    timed,
)
from mmcache.cli.bench_pictures import FULL_HD, TINY, ULTRA_HD, Size, photograph
from mmcache.cli.bench_processors import QWEN2_VL, QWEN2_VL_TINY, image_processor
from mmcache.errors import MissingExtra
from mmcache.fingerprints import Hasher, digest_source
from mmcache.fingerprints.identity import described
from mmcache.wrapping import wrap

_SECTION = "fingerprint and identity"


def _hasher(algorithm: str) -> Hasher:
    try:
        hasher = Hasher(algorithm)
        hasher.new()
    except MissingExtra as missing:
        raise LeftOut(str(missing)) from None
    return hasher


def _fingerprint(bench: Workbench, size: Size, algorithm: str) -> Pair:
    image, hasher = photograph(size), _hasher(algorithm)
    packed = image.tobytes()
    return bench.in_turn(lambda: digest_source(image, hasher), lambda: hasher.digest(packed), alike=False)


def _fixed_cost(bench: Workbench) -> Pair:
    cache, image = bench.cache(), photograph(TINY)
    processor = wrap(image_processor(QWEN2_VL_TINY), cache)
    return bench.in_turn(
        lambda: processor(images=image, return_tensors="pt"),
        lambda: digest_source(image, cache.hasher),
        alike=False,
    )


def _identity(_: Workbench) -> Pair:
    processor, hasher = image_processor(QWEN2_VL), Hasher("xxh3_128")
    options: dict[str, Any] = {
        "size": {"shortest_edge": 3136, "longest_edge": 200_704},
        "do_convert_rgb": True,
        "return_tensors": "pt",
    }

    def identity() -> bytes:
        return hasher.digest(described(processor, options).encoded)

    return Pair(timed(identity), timed(lambda: None))


ROWS = (
    Row(_SECTION, "PIL image, xxh3, 1080p", "xxh3 of its bytes", partial(_fingerprint, size=FULL_HD, algorithm="xxh3_128"), TIMES_THE_COST, 3.2),
    Row(_SECTION, "PIL image, xxh3, 2160p", "xxh3 of its bytes", partial(_fingerprint, size=ULTRA_HD, algorithm="xxh3_128"), TIMES_THE_COST, 3.5),
    Row(_SECTION, "PIL image, blake3, 1080p", "blake3 of its bytes", partial(_fingerprint, size=FULL_HD, algorithm="blake3"), TIMES_THE_COST),
    Row(_SECTION, "hit, 32x32, beyond the fingerprint", "fingerprint", _fixed_cost, MICROSECONDS_MORE, 120),
    Row(_SECTION, "Qwen2-VL with call options", "nothing", _identity, MICROSECONDS_MORE, 50),
)  # fmt: skip
