"""`install` under a real vLLM engine: its processors are made by the engine, long after the installation."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import mmcache
from tests.pictures import counted, picture

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CHECKPOINT = Path(sys.prefix).parent / "checkpoints" / "qwen2_vl"
PROMPT = "<|vision_start|><|image_pad|><|vision_end|>What is in the picture?"


@pytest.fixture(scope="module")
def engine() -> Any:
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1"
    )
    from vllm import LLM

    # Without vLLM's own cache, so that every request comes to the processor.
    return LLM(
        model=str(CHECKPOINT), dtype="float32", max_model_len=4096, enforce_eager=True,
        limit_mm_per_prompt={"image": 2, "video": 0}, mm_processor_cache_gb=0,
    )  # fmt: skip


def asked(engine: Any, seeds: list[int]) -> list[list[str]]:
    """Return the bits of the log-probabilities for a question about each picture."""
    from vllm import SamplingParams

    prompts = [{"prompt": PROMPT, "multi_modal_data": {"image": picture(seed, 320, 240)}} for seed in seeds]
    outputs = engine.generate(prompts, SamplingParams(max_tokens=4, temperature=0, logprobs=3), use_tqdm=False)
    return [
        [f"{token}:{entry.logprob.hex()}" for step in output.outputs[0].logprobs for token, entry in step.items()]
        for output in outputs
    ]


def test_an_engines_own_processor_is_served_and_its_answers_are_the_same(engine: Any) -> None:
    from transformers import Qwen2VLImageProcessor

    seeds = [1, 2, 3, 1, 2, 3]
    with counted(Qwen2VLImageProcessor) as runs:
        expected = asked(engine, seeds)
        assert runs.images == 6
    with mmcache.Cache("256MiB", name="vllm", verify_rate=0) as cache, mmcache.install(cache):
        asked(engine, [9])
        cache.settle()
        with counted(Qwen2VLImageProcessor) as runs:
            assert asked(engine, seeds) == expected
            assert asked(engine, seeds) == expected
            assert runs.images == 3
        info = cache.cache_info()
        assert (info.misses, info.errors) == (3, 0)
        assert info.hits + info.coalesced == 9
