"""Full Processors, text and images together: wrapped they give what they gave, and geometry promises what they expand.

Nine families in each run; every one of this transformers with ``MMCACHE_TEST_ALL=1``. The figures of all are printed by
``python -m tests.matrix.processor_report``.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import transformers

import mmcache
from mmcache import lengths
from mmcache.layout.compare import difference
from tests.matrix.processor_report import ROUNDS, promises, serve, variations
from tests.matrix.processors import Ready, build, processor_classes
from tests.pictures import picture

# What transformers says about its own options, and about its own way from tensors to arrays.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Passing `m(in|ax)_pixels`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`max_length` is ignored when `padding`:UserWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept context:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The following named arguments are not valid:UserWarning"),
]

_IS_5 = transformers.__version__ >= "5"
_ALL = bool(os.environ.get("MMCACHE_TEST_ALL"))

_FAMILIES = (
    "Qwen2VLProcessor", "Qwen3VLProcessor", "LlavaNextProcessor", "Idefics3Processor", "Gemma3Processor",
    "InternVLProcessor", "PixtralProcessor", "PaliGemmaProcessor", "CLIPProcessor",
)  # fmt: skip

_NAMES = tuple(processor_classes()) if _ALL else _FAMILIES

# In each run: flat lists to tensors, nested ones to lists.
_ROUNDS = ROUNDS if _ALL else (ROUNDS[0], ROUNDS[3])

# Those that transformers 5 cannot build here, and those whose image processor takes videos.
_UNBUILT = {"MgpstrProcessor"}
_UNWRAPPED = {"TvpProcessor"}

# Why calls go to the plain processor. ViLT's own code fails for some batches, and is served one image at a time.
_BYPASSED = {
    "OneFormerProcessor": "positional arguments beside images",
    "ViltProcessor": "ViltImageProcessor: a batch of 2 raises UnboundLocalError, its images alone do not",
}
_BYPASSED_BY_4 = {
    "Idefics3Processor": "Idefics3ImageProcessor: no layout explains how 'pixel_values' of a batch is made from single images",
    "LlavaNextProcessor": "LlavaNextImageProcessorFast: the trial's small pictures are refused: "
    "AttributeError: 'list' object has no attribute 'shape'",
}
_NEVER_SERVED = {"OneFormerProcessor"}

# Whose tokens geometry need not know: they take no text that is one placeholder, or say nowhere which id it has.
_UNKNOWN = {
    "Blip2Processor", "ColPaliProcessor", "ColQwen2Processor", "Florence2Processor", "FuyuProcessor",
    "HunYuanVLProcessor", "IdeficsProcessor", "InstructBlipProcessor", "JanusProcessor", "Kosmos2_5Processor",
    "NeoMMEProcessor", "QianfanOCRProcessor",
}  # fmt: skip
_UNKNOWN_BY_4 = {"Gemma3Processor"}


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    lengths._shelf.known.clear()
    yield
    lengths._shelf.known.clear()


@pytest.fixture(scope="module", params=_NAMES)
def ready(request: pytest.FixtureRequest) -> Ready:
    """A processor, in the state in which every other test left it: nobody changes it."""
    name: str = request.param
    try:
        return build(name)
    except Exception as error:
        if _IS_5 and name not in _UNBUILT:
            raise
        pytest.skip(f"{name} cannot be built: {error}")


def name_of(ready: Ready) -> str:
    return type(ready.processor).__name__


def skip_unwrapped(ready: Ready) -> None:
    if name_of(ready) in _UNWRAPPED:
        pytest.skip("its image processor takes videos")


@pytest.fixture
def cache() -> Iterator[mmcache.Cache]:
    with mmcache.Cache("1GiB", name="processors", verify_rate=0, max_overhead=1) as cache:
        yield cache


def test_text_with_images_is_that_of_the_plain_processor_and_only_missing_images_are_processed(
    ready: Ready, cache: mmcache.Cache
) -> None:
    skip_unwrapped(ready)
    served = serve(ready, cache, _ROUNDS)
    assert served.differences == []
    assert served.overruns == []
    assert served.calls > served.refused, "else this proves nothing"
    assert (served.info.errors, served.info.mismatches) == (0, 0)
    reason = (_BYPASSED if _IS_5 else _BYPASSED_BY_4).get(name_of(ready))
    assert list(served.info.bypass_reasons) == ([reason] if reason else [])
    assert (served.info.hits > 0) == (name_of(ready) not in _NEVER_SERVED)


def test_geometry_promises_the_tokens_that_the_text_is_expanded_to(ready: Ready) -> None:
    skip_unwrapped(ready)
    asked = variations(ready) if _ALL else variations(ready)[:3]
    given = [promise for options in asked for promise in promises(ready, options)]
    assert [str(promise) for promise in given if promise.is_wrong] == []
    assert given, "else this proves nothing"
    if name_of(ready) not in (_UNKNOWN if _IS_5 else _UNKNOWN_BY_4):
        assert "unknown" not in {promise.kind for promise in given}


def test_an_image_processor_that_takes_videos_is_a_bypass(cache: mmcache.Cache) -> None:
    tvp: Any = build("TvpProcessor").processor
    video = [[picture(1), picture(2)]]
    found = mmcache.wrap(tvp, cache).image_processor(video, return_tensors="np")
    assert difference(tvp.image_processor(video, return_tensors="np"), found) == ""
    assert set(cache.cache_info().bypass_reasons) == {"videos are not cached"}
