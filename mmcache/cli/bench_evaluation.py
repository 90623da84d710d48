"""The row about evaluation: a chat message with a base64 picture through Qwen's own loader, and the processor."""

import base64
import importlib.util
from typing import Any

import mmcache
from mmcache.cli.bench_engine import TIMES_AS_FAST, Failed, LeftOut, Pair, Row, Workbench, timed
from mmcache.cli.bench_pictures import FULL_HD, encoded, photograph
from mmcache.cli.bench_processors import QWEN2_VL_DEFAULT, image_processor
from mmcache.layout.compare import difference

_SECTION = "evaluation"


def _evaluation(bench: Workbench) -> Pair:
    if importlib.util.find_spec("qwen_vl_utils") is None:
        raise LeftOut("qwen_vl_utils is not installed")
    from qwen_vl_utils import process_vision_info

    processor, cache = image_processor(QWEN2_VL_DEFAULT), bench.cache()
    url = "data:image/jpeg;base64," + base64.b64encode(encoded(photograph(FULL_HD), "JPEG")).decode()
    messages = [{"role": "user", "content": [{"type": "image", "image": url}]}]

    def path() -> Any:
        images, _ = process_vision_info(messages)
        return processor(images=images, return_tensors="pt")

    def installed() -> float:
        with mmcache.install(cache):
            return timed(path)()

    plain = path()
    with mmcache.install(cache):
        bench.warm_up(path)
        before = cache.cache_info().hits
        if found := difference(plain, path()):
            raise Failed(f"an output differs: {found}")
    if cache.cache_info().hits < before + 2:  # one of the loader, one of the processor
        raise LeftOut("install does not cover the loader of qwen_vl_utils")
    return Pair(installed, timed(path))


ROWS = (
    Row(_SECTION, "base64 JPEG, qwen_vl_utils, Qwen2-VL", "plain", _evaluation, TIMES_AS_FAST, 5),
)  # fmt: skip
