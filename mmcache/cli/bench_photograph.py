"""Rows about one photograph: a hit, or a miss, against the plain call and against floors."""

from functools import partial
from typing import Any

import mmcache
from mmcache.cli.bench_engine import (
    TIMES_AS_FAST,
    TIMES_THE_COST,
    Pair,
    Row,
    Run,
    Workbench,
    tensors_of,
)
from mmcache.cli.bench_pictures import FULL_HD, Changing, decoded, encoded, photograph
from mmcache.cli.bench_processors import CLIP, QWEN2_VL, SIGLIP_384, Backend, Family, image_processor
from mmcache.items.buffers import empty

_SECTION = "one photograph of 1920x1080"


def copying(output: Any) -> Run:
    """Return the floor of a hit: a copy of the output's tensors into memory with huge pages."""
    tensors = tensors_of(output)
    return lambda: [empty(tensor.shape, tensor.dtype).copy_(tensor) for tensor in tensors]


def decode_and_process(data: bytes, processor: Any) -> Any:
    """Do what a loader and a processor do for the bytes of one file."""
    return processor(images=decoded(data), return_tensors="pt")


def _hit(bench: Workbench, family: Family, backend: Backend = "torchvision", *, floor: bool = False) -> Pair:
    image, plain = photograph(FULL_HD), image_processor(family, backend)
    wrapped = mmcache.wrap(plain, bench.cache())

    def process(processor: Any) -> Any:
        return processor(images=image, return_tensors="pt")

    other = copying(process(plain)) if floor else partial(process, plain)
    return bench.in_turn(partial(process, wrapped), other, alike=not floor)


def _encoded_hit(bench: Workbench, family: Family, form: str, backend: Backend = "torchvision") -> Pair:
    data, processor = encoded(photograph(FULL_HD), form), image_processor(family, backend)
    cached = mmcache.cached(cache=bench.cache())(decode_and_process)
    return bench.in_turn(lambda: cached(data, processor), lambda: decode_and_process(data, processor))


def _bfloat16_hit(bench: Workbench) -> Pair:
    import torch

    image, processor = photograph(FULL_HD), image_processor(QWEN2_VL)
    stages = bench.closing(mmcache.Stages(processor, cache=bench.cache()))
    return bench.in_turn(
        lambda: stages.execute([stages.add(image)], dtype=torch.bfloat16),
        lambda: processor(images=[image], return_tensors="pt").to(torch.bfloat16),
    )


def _miss(bench: Workbench, family: Family, backend: Backend = "torchvision") -> Pair:
    picture, plain = Changing(photograph(FULL_HD)), image_processor(family, backend)
    wrapped = mmcache.wrap(plain, bench.cache(512 << 20))

    def process(processor: Any) -> Any:
        return processor(images=picture.image, return_tensors="pt")

    return bench.in_turn(partial(process, wrapped), partial(process, plain), before=picture.change)


_COPY, _PLAIN, _DECODED = "copy, huge pages", "plain", "decode + plain"

ROWS = (
    Row(_SECTION, "hit, Qwen2-VL", _COPY, partial(_hit, family=QWEN2_VL, floor=True), TIMES_THE_COST, 2.2, (1, 2)),
    Row(_SECTION, "hit, Qwen2-VL PIL", _COPY, partial(_hit, family=QWEN2_VL, backend="pil", floor=True), TIMES_THE_COST, 2.8),
    Row(_SECTION, "hit, Qwen2-VL", _PLAIN, partial(_hit, family=QWEN2_VL), TIMES_AS_FAST, 3.3, (1, 2)),
    Row(_SECTION, "hit, Qwen2-VL PIL", _PLAIN, partial(_hit, family=QWEN2_VL, backend="pil"), TIMES_AS_FAST, 5.5, (1, 2)),
    Row(_SECTION, "hit, Qwen2-VL, bfloat16", "plain + cast", _bfloat16_hit, TIMES_AS_FAST, 4.5, (1, 2)),
    Row(_SECTION, "hit, Qwen2-VL, from JPEG", _DECODED, partial(_encoded_hit, family=QWEN2_VL, form="JPEG"), TIMES_AS_FAST, 4.5, (1, 2)),
    Row(_SECTION, "hit, Qwen2-VL PIL, from JPEG", _DECODED, partial(_encoded_hit, family=QWEN2_VL, form="JPEG", backend="pil"), TIMES_AS_FAST, 7),
    Row(_SECTION, "hit, Qwen2-VL, from PNG", _DECODED, partial(_encoded_hit, family=QWEN2_VL, form="PNG"), TIMES_AS_FAST, 8),
    Row(_SECTION, "hit, CLIP 224", _PLAIN, partial(_hit, family=CLIP), TIMES_AS_FAST, 9, (1, 2)),
    Row(_SECTION, "hit, CLIP 224, from JPEG", _DECODED, partial(_encoded_hit, family=CLIP, form="JPEG"), TIMES_AS_FAST, 80),
    Row(_SECTION, "miss, Qwen2-VL", _PLAIN, partial(_miss, family=QWEN2_VL), TIMES_THE_COST, 1.0, (1, 2)),
    Row(_SECTION, "miss, Qwen2-VL PIL", _PLAIN, partial(_miss, family=QWEN2_VL, backend="pil"), TIMES_THE_COST, 0.9),
    Row(_SECTION, "miss, CLIP 224", _PLAIN, partial(_miss, family=CLIP), TIMES_THE_COST, 1.1, (1, 2)),
    Row(_SECTION, "miss, SigLIP 384", _PLAIN, partial(_miss, family=SIGLIP_384), TIMES_THE_COST, 1.1),
)  # fmt: skip
