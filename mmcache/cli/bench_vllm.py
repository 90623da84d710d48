"""Rows against the parts of vLLM that do the same work: its hasher, its processor cache, and its join of a batch.

These are the classes of a real vLLM, without an engine around them; rows are left out where there is none.
"""

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import mmcache
from mmcache.cli.bench_engine import TIMES_AS_FAST, LeftOut, Pair, Row, Workbench
from mmcache.cli.bench_photograph import decode_and_process
from mmcache.cli.bench_pictures import FULL_HD, XGA, decoded, distinct, encoded, photograph
from mmcache.cli.bench_processors import QWEN2_VL, image_processor
from mmcache.fingerprints import Hasher, digest_source

_SECTION = "against vLLM's own parts"

# vLLM's defaults: its hash, and the GiB of its cache.
_ALGORITHM, _CACHE_GIB = "blake3", 4

_BATCH = 8


class _VllmCache:
    """vLLM's processor cache, filled with what the plain processor gives: a look-up gives stored tensors themselves."""

    def __init__(self, processor: Any) -> None:
        """``processor`` is one of Qwen2-VL's."""
        vllm = _vllm()
        config = SimpleNamespace(mm_processor_cache_gb=_CACHE_GIB)
        self._store = vllm.Cache(SimpleNamespace(get_multimodal_config=lambda: config))
        self._vllm, self._processor, self._hash = vllm, processor, vllm_hash()

    def look_up(self, image: Any) -> Any:
        """Return the item of an image (a PIL image, or one with the bytes it was decoded from), making it if need be."""
        key = self._hash(image)
        made = None if self._store.is_cached_item(key) else (self._made(getattr(image, "media", image)), ())
        return self._store.get_and_update_item(made, key)[0]

    def join(self, items: Sequence[Any]) -> Any:
        """Return the batch of some items, as vLLM's model runner makes it."""
        return _by_name(self._vllm.Items({"image": items}).get_data())

    def _made(self, image: Any) -> Any:
        output = self._processor(images=image, return_tensors="pt")
        fields = self._vllm.Fields
        config = {
            "pixel_values": fields.flat_from_sizes("image", output["image_grid_thw"].prod(-1)),
            "image_grid_thw": fields.batched("image"),
        }
        return self._vllm.Items.from_hf_inputs(output, config)["image"][0]


def _vllm() -> SimpleNamespace:
    if importlib.util.find_spec("vllm") is None:
        raise LeftOut("vLLM is not installed")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # where vLLM logs to from its import on
            from vllm.multimodal.cache import MultiModalProcessorOnlyCache
            from vllm.multimodal.hasher import MultiModalHasher
            from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems
            from vllm.multimodal.media import MediaWithBytes
    except ImportError as problem:
        raise LeftOut(f"this vLLM has other parts than 0.32: {problem}") from None
    return SimpleNamespace(
        Cache=MultiModalProcessorOnlyCache,
        Hasher=MultiModalHasher,
        Fields=MultiModalFieldConfig,
        Items=MultiModalKwargsItems,
        Media=MediaWithBytes,
    )


def vllm_hash() -> Callable[[Any], str]:
    """Return what gives an image the key that vLLM gives it; raise `LeftOut` without a vLLM."""
    hasher = _vllm().Hasher

    def key(image: Any) -> str:
        digest: str = hasher.hash_kwargs(_ALGORITHM, model_id="any", image=image)
        return digest

    try:
        key(photograph((32, 32)))
    except TypeError as problem:
        raise LeftOut(f"this vLLM has another hasher than 0.32: {problem}") from None
    return key


def _fingerprint(bench: Workbench) -> Pair:
    of_vllm, image, hasher = vllm_hash(), photograph(FULL_HD), Hasher("blake3")
    return bench.in_turn(lambda: digest_source(image, hasher), lambda: of_vllm(image), alike=False)


def _add(bench: Workbench) -> Pair:
    processor, image = image_processor(QWEN2_VL), photograph(FULL_HD)
    of_vllm = _VllmCache(processor)
    of_vllm.look_up(image)
    stages = bench.closing(mmcache.Stages(processor, cache=bench.cache(hasher="blake3"), pixels="now"))
    # What comes out stays where it is on both sides: nothing is to be read.
    return bench.in_turn(lambda: _unread(stages.add(image)), lambda: _unread(of_vllm.look_up(image)), alike=False)


def _batch(bench: Workbench) -> Pair:
    plain, images = image_processor(QWEN2_VL), [distinct(XGA, number) for number in range(_BATCH)]
    of_vllm = _VllmCache(plain)
    wrapped = mmcache.wrap(plain, bench.cache(hasher="blake3"))
    return bench.in_turn(
        lambda: _by_name(wrapped(images=images, return_tensors="pt")),
        lambda: of_vllm.join([of_vllm.look_up(image) for image in images]),
    )


def _jpeg(bench: Workbench) -> Pair:
    processor, data = image_processor(QWEN2_VL), encoded(photograph(FULL_HD), "JPEG")
    of_vllm, media = _VllmCache(processor), _vllm().Media
    cached = mmcache.cached(cache=bench.cache(hasher="blake3"))(decode_and_process)
    return bench.in_turn(
        lambda: _by_name(cached(data, processor)),
        lambda: of_vllm.join([of_vllm.look_up(media(decoded(data), data))]),
    )


def _values(bench: Workbench) -> Pair:
    """Take whole values out, for an engine that rescales and normalises on its device; vLLM's go out by reference."""
    processor, data = image_processor(QWEN2_VL), encoded(photograph(FULL_HD), "JPEG")
    processor.do_rescale = processor.do_normalize = False
    of_vllm, media = _VllmCache(processor), _vllm().Media
    cached = mmcache.cached(cache=bench.cache(hasher="blake3"))(decode_and_process)
    return bench.in_turn(
        lambda: _by_name(cached(data, processor)),
        lambda: _by_name(of_vllm.look_up(media(decoded(data), data)).get_data()),
        alike=False,  # vLLM's has no dim for the image
    )


def _by_name(output: Any) -> dict[str, Any]:
    """Return an output in an order of its own: vLLM's is that of a set, another one in each process."""
    return dict(sorted(output.items()))


def _unread(_: Any) -> None:
    """Give nothing for something that is not to be read."""


_LOOK_UP = "vLLM hash, look-up"

ROWS = (
    Row(_SECTION, "fingerprint, blake3, 1080p", "vLLM hash", _fingerprint, TIMES_AS_FAST, 1.6),
    Row(_SECTION, "add stage, known picture, 1080p", _LOOK_UP, _add, TIMES_AS_FAST),
    Row(_SECTION, "batch of 8, 1024x768, all hits", "the same, and join", _batch, TIMES_AS_FAST),
    Row(_SECTION, "hit, Qwen2-VL, from JPEG, 1080p", "decode, and the same", _jpeg, TIMES_AS_FAST),
    Row(_SECTION, "hit as uint8, from JPEG, 1080p", "decode, hash, look-up", _values, TIMES_AS_FAST, 5),
)  # fmt: skip
