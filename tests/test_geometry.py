"""`mmcache.geometry`: what outputs are like, without their pixels; exact, or None."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import mmcache
from mmcache import lengths
from mmcache.layout.geometry import outline, summary
from mmcache.randomness import random_states
from tests.pictures import counted, picture

QWEN = transformers.Qwen2VLImageProcessor
CLIP_PIL = transformers.CLIPImageProcessorPil
LIMITS = {"shortest_edge": 3136, "longest_edge": 28 * 28 * 64}
SIZES = [(48, 64), (480, 640), (37, 30), (600, 211), (48, 64)]


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    lengths._shelf.known.clear()
    yield
    lengths._shelf.known.clear()


def real(processor: Any, height: int, width: int, **options: Any) -> dict[str, Any]:
    return summary(outline(processor([picture(7, width, height)], return_tensors="pt", **options)))


def real_tokens(processor: Any, height: int, width: int, **options: Any) -> int:
    inputs = processor(text=processor.image_token, images=[picture(7, width, height)], return_tensors="pt", **options)
    return int((inputs["input_ids"] == processor.image_token_id).sum())


@pytest.mark.parametrize(
    "cls", [QWEN, transformers.LlavaNextImageProcessor, transformers.Idefics3ImageProcessor, CLIP_PIL, transformers.Phi4MultimodalImageProcessor]
)  # fmt: skip
def test_sizes_have_the_geometry_that_real_pictures_have(cls: Any) -> None:
    processor = cls()
    assert mmcache.geometry(processor, SIZES) == [real(processor, *size) for size in SIZES]


@settings(deadline=None, max_examples=25)
@given(height=st.integers(20, 1500), width=st.integers(20, 1500), most=st.integers(4, 2000))
def test_any_size_with_any_limit_is_exact(height: int, width: int, most: int) -> None:
    limits = {"shortest_edge": 3136, "longest_edge": 784 * most}
    assert mmcache.geometry(QWEN(), [(height, width)], size=limits) == [real(QWEN(), height, width, size=limits)]


def test_ten_thousand_sizes_are_answered_with_a_few_real_runs() -> None:
    sizes = [(50 + 7 * (number % 40), 60 + 11 * (number % 23)) for number in range(10_000)]
    with counted(QWEN) as runs:
        found = mmcache.geometry(QWEN(), sizes)
        real_runs = sum(1 for _ in runs)
    assert len(found) == 10_000
    # 920 distinct sizes without pixels, besides nine small pictures and at most four extremes, and both again.
    assert real_runs <= 920 + 2 * (9 + 4)
    assert found[123] == real(QWEN(), *sizes[123])


def test_what_was_learned_is_remembered_between_calls() -> None:
    processor = QWEN()
    first = mmcache.geometry(processor, SIZES)
    with counted(QWEN) as runs:
        assert mmcache.geometry(processor, SIZES) == first
        assert mmcache.geometry(mmcache.wrap(processor, mmcache.Cache("1MiB")), SIZES) == first
    assert runs.images == 0


def test_answers_belong_to_the_caller() -> None:
    processor = QWEN()
    (found,) = mmcache.geometry(processor, [(48, 64)])
    assert found is not None
    found["image_grid_thw"][0][0] = 99
    assert mmcache.geometry(processor, [(48, 64)]) == [real(processor, 48, 64)]


def test_an_attribute_that_is_changed_in_place_is_another_processor() -> None:
    processor = QWEN()
    mmcache.geometry(processor, [(900, 900)])
    processor.size["longest_edge"] = LIMITS["longest_edge"]
    expected = real(processor, 900, 900)
    assert mmcache.geometry(processor, [(900, 900)]) == [expected]
    assert expected != real(QWEN(), 900, 900)


def test_images_of_all_kinds_have_their_own_geometry() -> None:
    rgb = picture(1, 120, 90)
    array = np.array(rgb)
    images: list[Any] = [
        rgb,
        rgb.convert("L"),
        rgb.convert("RGBA"),
        array,
        torch.from_numpy(array.copy()).permute(2, 0, 1),
        (90, 120),
    ]
    found = mmcache.geometry(QWEN(), images)
    assert found[:-1] == [summary(outline(QWEN()([image], return_tensors="pt"))) for image in images[:-1]]
    assert found[-1] == found[0]


def test_images_of_a_known_kind_are_not_processed(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = QWEN()
    mmcache.geometry(processor, [picture(1, 60, 60), picture(1, 900, 800), picture(2, 40, 400), picture(2, 400, 40)])
    devices: list[str] = []
    original = QWEN._preprocess

    def noting(self: Any, images: Any, *args: Any, **options: Any) -> Any:
        devices.extend(image.device.type for image in images)
        return original(self, images, *args, **options)

    # Invisible to the identity of the class: what is known stays known.
    noting.__mmcache_original__ = original  # type: ignore[attr-defined]
    monkeypatch.setattr(QWEN, "_preprocess", noting)
    found = mmcache.geometry(processor, [picture(3, 333, 222)])
    monkeypatch.undo()
    assert devices == ["meta"]
    assert found == [real(processor, 222, 333)]


class CropsBlack(CLIP_PIL):
    """Cuts off what is black at the end of a picture, so that its geometry is in the pixels."""

    def preprocess(self, images: Any, **options: Any) -> Any:
        images = images if isinstance(images, list) else [images]
        rows = [int(np.asarray(image).any(axis=(1, 2)).sum()) or 1 for image in images]
        crops = [np.asarray(image)[:count] for image, count in zip(images, rows, strict=True)]
        return super().preprocess(crops, do_resize=False, do_center_crop=False, **options)


def test_where_the_pixels_decide_a_size_tells_nothing_and_an_image_is_looked_at() -> None:
    processor = CropsBlack()
    half = np.asarray(picture(1, 64, 48)).copy()
    half[20:] = 0
    cut = Image.fromarray(half)
    found = mmcache.geometry(processor, [(48, 64), cut, picture(1, 64, 48)])
    assert found == [None, {"pixel_values": (1, 3, 20, 64)}, {"pixel_values": (1, 3, 48, 64)}]


class Threshold(QWEN):
    """Treats large pictures in another way where it can see that they are real, which its small probes never show."""

    def preprocess(self, images: Any, **options: Any) -> Any:
        large = any(isinstance(image, Image.Image) and image.width > 1300 for image in images)
        return super().preprocess(images, **({**options, "size": LIMITS} if large else options))


def test_a_way_that_is_wrong_for_the_largest_size_is_not_believed() -> None:
    sizes = [(700, 1400), (400, 600)]
    assert mmcache.geometry(Threshold(), sizes) == [real(Threshold(), *size) for size in sizes]


def test_a_size_that_the_processor_refuses_is_none_and_the_others_are_not() -> None:
    found = mmcache.geometry(QWEN(), [(10, 4000), (64, 64), (4000, 10)])
    assert found == [None, real(QWEN(), 64, 64), None]


def test_an_option_that_the_processor_does_not_know_raises_what_it_raises() -> None:
    with pytest.raises(TypeError, match="nonsense"):
        mmcache.geometry(QWEN(), [(64, 64)], nonsense=1)


@pytest.mark.parametrize("wrong", [(480, 640), [(0, 5)], ["a.png"], [(1, 2, 3)], "ab", 7, [(1.5, 2)], [None]])
def test_what_is_neither_an_image_nor_a_size_is_refused(wrong: Any) -> None:
    with pytest.raises(mmcache.BadArgument, match="images_or_sizes"):
        mmcache.geometry(QWEN(), wrong)


def test_nothing_asked_nothing_answered_and_no_processor_is_refused() -> None:
    assert mmcache.geometry(QWEN(), []) == []
    with pytest.raises(mmcache.BadArgument, match="processor"):
        mmcache.geometry("CLIP", [(3, 3)])


def test_the_random_generators_stay_where_they_were() -> None:
    processor = transformers.FlavaImageProcessor(return_image_mask=True)
    before = random_states()
    mmcache.geometry(processor, [(64, 64)])
    assert random_states() == before


@pytest.mark.parametrize(
    "options", [{}, {"size": LIMITS}, {"merge_size": 1}, {"images_kwargs": {"size": LIMITS}}, {"do_resize": False}]
)
def test_a_processors_tokens_are_those_of_the_expanded_text(tiny_qwen2_vl: Any, options: dict[str, Any]) -> None:
    processor = tiny_qwen2_vl[0]
    sizes = [(56, 84), (672, 504), (1120, 280)]
    found = mmcache.geometry(processor, sizes, **options)
    for size, geometry in zip(sizes, found, strict=True):
        assert geometry is not None
        assert geometry["num_tokens"] == real_tokens(processor, *size, **options)
    images = mmcache.geometry(processor, [picture(1, width, height) for height, width in sizes], **options)
    assert images == found


def test_a_processors_own_method_is_asked_only_where_it_was_right(tiny_qwen2_vl: Any) -> None:
    processor = tiny_qwen2_vl[0]
    (wrong,) = processor._get_num_multimodal_tokens(image_sizes=[(900, 900)], size=LIMITS).num_image_tokens
    right = real_tokens(processor, 900, 900, size=LIMITS)
    assert wrong != right, "else this proves nothing"
    (found,) = mmcache.geometry(processor, [(900, 900)], size=LIMITS)
    assert found is not None
    assert found["num_tokens"] == right
    trusts = [trust for known, _ in lengths._shelf.known.values() for trust in known._trusts.values()]
    assert [trust.own_method for trust in trusts] == [False]
    mmcache.geometry(processor, [(900, 900)])
    assert [t.own_method for known, _ in lengths._shelf.known.values() for t in known._trusts.values()] == [False, True]


def test_a_processor_that_reads_its_outputs_as_numbers_needs_no_pixels_either(tiny_qwen2_vl: Any) -> None:
    images = transformers.LlavaImageProcessor()
    reads = transformers.LlavaProcessor(  # type: ignore[no-untyped-call]
        images, tiny_qwen2_vl[0].tokenizer, patch_size=14, vision_feature_select_strategy="default",
        image_token="<|image_pad|>", num_additional_image_tokens=1,
    )  # fmt: skip
    (found,) = mmcache.geometry(reads, [(300, 400)])
    assert found == {**real(images, 300, 400), "num_tokens": 256}
    assert lengths.geometry_source(reads).startswith("the processor, run on pictures without pixels")


def test_what_was_learned_belongs_to_one_processor_with_its_tokens(tiny_qwen2_vl: Any) -> None:
    processor = tiny_qwen2_vl[0]
    mmcache.geometry(processor, [(56, 84)])
    known = len(lengths._shelf.known)
    mmcache.geometry(processor, [(56, 84)])
    assert len(lengths._shelf.known) == known
    mmcache.geometry(mmcache.unwrap(processor), [(56, 84)])
    assert len(lengths._shelf.known) == known + 1


def test_geometry_agrees_with_the_tickets_of_the_add_stage(tiny_qwen2_vl: Any) -> None:
    with mmcache.Cache("64MiB") as cache, mmcache.Stages(tiny_qwen2_vl[0], cache=cache, pixels="now") as stages:
        ticket = stages.add(picture(5, 320, 240))
    (found,) = mmcache.geometry(tiny_qwen2_vl[0], [(240, 320)])
    assert found == {**ticket.geometry, "num_tokens": ticket.num_tokens}


def test_under_an_installation_nothing_is_looked_up_or_bypassed() -> None:
    with mmcache.Cache("64MiB") as cache, mmcache.install(cache):
        assert mmcache.geometry(QWEN(), [(64, 96)]) == [real(QWEN(), 64, 96)]
        cache.settle()
        info = cache.cache_info()
    assert info.errors == 0
    assert info.misses + info.hits + info.bypassed <= 1


def test_a_forked_child_learns_for_itself_though_a_thread_was_asking() -> None:
    expected = mmcache.geometry(CLIP_PIL(), [(64, 96)])
    with lengths._shelf._lock:  # as another thread may hold it at the fork
        child = os.fork()
        if child == 0:
            os._exit(0 if mmcache.geometry(CLIP_PIL(), [(64, 96)]) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_threads_that_ask_at_the_same_time_get_the_same_answers() -> None:
    processor, barrier, found = QWEN(), threading.Barrier(4), list[Any]()

    def ask() -> None:
        barrier.wait(timeout=60)
        found.append(mmcache.geometry(processor, SIZES))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[real(processor, *size) for size in SIZES]] * 4


def test_a_processor_without_placeholder_is_given_its_own_options_and_the_image_processor_its_own(
    clip_processor: Any,
) -> None:
    expected = {"pixel_values": (1, 3, 224, 224), "num_tokens": None}
    assert mmcache.geometry(clip_processor, [(64, 96)], padding=True) == [expected]
    given = {"images_kwargs": {"do_resize": False, "do_center_crop": False}}
    assert mmcache.geometry(clip_processor, [(64, 96)], **given) == [{**expected, "pixel_values": (1, 3, 64, 96)}]
    with mmcache.Cache("64MiB") as cache, mmcache.Stages(clip_processor, cache=cache) as stages:
        ticket = stages.add(picture(1), padding=True)
        assert (ticket.geometry["pixel_values"], ticket.num_tokens) == ((1, 3, 224, 224), None)


def test_sizes_that_are_refused_do_not_hide_one_that_is_not() -> None:
    class Large(transformers.CLIPImageProcessor):
        def preprocess(self, images: Any, *args: Any, **options: Any) -> Any:
            if any(image.shape[-1] < 2000 if hasattr(image, "shape") else image.width < 2000 for image in images):
                raise ValueError("too small")
            return super().preprocess(images, *args, **options)

    large = picture(2, 2100, 30)
    assert mmcache.geometry(Large(), [(48, 64), large]) == [None, {"pixel_values": (1, 3, 224, 224)}]
    assert mmcache.geometry(Large(), [(30, 2100), (48, 64)]) == [None, None]
    with pytest.raises(ValueError, match="too small"):
        mmcache.geometry(Large(), [(48, 64), (64, 64)])


@pytest.fixture(scope="module")
def clip_processor() -> Any:
    words = WordLevel({"a": 0, "[UNK]": 1, "[PAD]": 2}, unk_token="[UNK]")
    tokenizer = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer(words), unk_token="[UNK]", pad_token="[PAD]"
    )
    return transformers.CLIPProcessor(transformers.CLIPImageProcessor(), tokenizer)  # type: ignore[no-untyped-call]
