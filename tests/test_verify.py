"""`mmcache.verify`: says that a processor is exact where it is, and finds the difference where it is not."""

import json
from typing import Any

import numpy as np
import pytest
import transformers

import mmcache
from mmcache.cache import Cache
from mmcache.items import Item
from mmcache.layout.fields import Layout
from mmcache.randomness import random_states
from tests.pictures import counted, picture

CLIP = transformers.CLIPImageProcessorPil
IMAGES = [picture(1), picture(2), picture(3, 40, 80), picture(4, 200, 150)]


@pytest.fixture(scope="module")
def report() -> mmcache.Report:
    return mmcache.verify(CLIP(), IMAGES, batches=12)


def test_an_exact_processor_is_said_to_be_exact_with_its_fields_and_costs(report: mmcache.Report) -> None:
    assert report.ok
    assert (report.processor, report.batches, report.difference, report.faults) == ("CLIPImageProcessorPil", 12, "", 0)
    assert report.bypassed == {}
    assert report.verdict == "Exact: all 12 batches are the plain processor's to the bit, and all are served."
    # Each batch is looked up twice: as misses, then as hits.
    assert sum(report.served.values()) == 2 * report.images
    assert set(report.served) == {"one", "flat", "nested"}
    assert report.fields["flat pt"] == {"pixel_values": "Batched()"}
    assert report.geometry == "pixels, once for each size"
    assert min(report.plain_seconds, report.miss_seconds, report.hit_seconds) > 0


def test_a_report_reads_well_and_travels_as_json(report: mmcache.Report) -> None:
    text = str(report)
    assert text.startswith(report.verdict)
    assert "pixel_values: Batched() (" in text
    assert "images served" in text
    figures = json.loads(json.dumps(report.as_dict()))
    assert figures["ok"] is True
    assert figures["verdict"] == report.verdict
    assert figures["images"] == report.images


def test_a_report_cannot_be_changed(report: mmcache.Report) -> None:
    with pytest.raises(AttributeError):
        report.difference = "x"  # type: ignore[misc]


def test_the_same_seed_makes_the_same_batches_and_another_one_others() -> None:
    def shapes(seed: int) -> list[int]:
        with counted(CLIP) as runs:
            mmcache.verify(CLIP(), IMAGES, batches=4, seed=seed)
        return list(runs)

    assert shapes(1) == shapes(1)
    assert shapes(1) != shapes(2)


@pytest.fixture
def broken_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in the cache that only shows once the trial is over: every joined batch has its images in reverse."""
    original = Cache._finish

    def reversed_join(self: Any, call: Any, keys: Any, landed: Any, raws: Any) -> Any:
        join, items = call.join, list[Item]()
        if not call.single:
            call.join = lambda found: join(items or list(reversed(found)))
        return original(self, call, keys, landed, raws)

    monkeypatch.setattr(Cache, "_finish", reversed_join)


@pytest.mark.usefixtures("broken_join")
def test_a_wrong_batch_is_found_and_how_to_see_it_again_is_said() -> None:
    report = mmcache.verify(CLIP(), IMAGES, seed=3)
    assert not report.ok
    assert report.verdict.startswith("NOT EXACT: do not wrap this processor")
    assert "bits differ" in report.difference
    assert f"batch {report.batches} (" in report.difference
    assert report.reproduce == f"mmcache.verify(processor, images, batches={report.batches}, seed=3)"
    assert report.reproduce in str(report)
    again = mmcache.verify(CLIP(), IMAGES, batches=report.batches, seed=3)
    assert again.difference == report.difference
    assert mmcache.verify(CLIP(), IMAGES, batches=report.batches - 1, seed=3).ok if report.batches > 1 else True


def test_a_wrong_hit_is_found_though_the_miss_was_right(monkeypatch: pytest.MonkeyPatch) -> None:
    thaw = Item.thaw

    def damaged(self: Any) -> Any:
        output = thaw(self)
        if hasattr(output, "keys"):
            output["pixel_values"][0][..., 0] += 1
        return output

    monkeypatch.setattr(Item, "thaw", damaged)
    report = mmcache.verify(CLIP(), [picture(1)], batches=30, seed=1)
    assert "the second time" in report.difference


class CountsImages(CLIP):
    """Each image's pixels depend on how many there are."""

    def _preprocess(self, images: Any, *args: Any, **options: Any) -> Any:
        output = super()._preprocess(images, *args, **options)
        output["pixel_values"] = [image + len(images) for image in output["pixel_values"]]
        return output


def test_what_cannot_be_served_is_counted_with_its_reason_and_still_exact() -> None:
    report = mmcache.verify(CountsImages(), IMAGES, batches=10, seed=1)
    assert report.ok
    assert any("no layout explains" in reason or "images alone" in reason for reason in report.bypassed)
    assert "flat" not in {form.split()[0] for form in report.fields}
    assert "are served, the others are not" in report.verdict


def test_a_random_processor_is_bypassed_and_leaves_the_generators_alone() -> None:
    before = random_states()
    report = mmcache.verify(transformers.FlavaImageProcessorPil(return_image_mask=True), IMAGES[:2], batches=3)
    assert report.ok
    assert list(report.bypassed) == ["FlavaImageProcessorPil: it draws random numbers"]
    assert report.verdict.startswith("Exact, but of no use: nothing is served from the cache")
    assert random_states() == before


def test_errors_are_compared_like_outputs() -> None:
    report = mmcache.verify(CLIP(), [np.zeros((3, 5, 7, 9, 2), np.uint8)], batches=4)
    assert report.ok
    assert report.plain_seconds == 0.0


def test_made_up_pictures_have_many_sizes_and_modes() -> None:
    from mmcache.verifying import _made_up

    pictures = _made_up(5)
    assert {"RGB", "L", "RGBA", "P"} <= {image.mode for image in pictures}
    assert len({image.size for image in pictures}) == len(pictures) - 1, "two of one size"
    assert [image.tobytes() for image in pictures] == [image.tobytes() for image in _made_up(5)]
    assert mmcache.verify(CLIP(size={"shortest_edge": 32}, crop_size=32), batches=5, seed=5).ok


def test_a_wrapped_processor_is_verified_plain_and_its_cache_is_not_touched() -> None:
    with mmcache.Cache("8MiB") as cache:
        report = mmcache.verify(mmcache.wrap(CLIP(), cache), IMAGES, batches=2)
        info = cache.cache_info()
    assert report.ok
    assert (info.hits, info.misses, info.bypassed) == (0, 0, 0)


def test_a_whole_processor_is_compared_on_texts_with_pictures(tiny_qwen2_vl: Any) -> None:
    report = mmcache.verify(tiny_qwen2_vl[0], IMAGES, batches=12, seed=2)
    assert report.ok, report.difference
    assert report.processor == "Qwen2VLProcessor"
    assert report.served["text"] > 0
    assert report.geometry == "the processor, run on pictures without pixels, tokens from its own method"
    assert report.bypassed == {}


@pytest.mark.parametrize("batches", [0, -1, True, 1.5, "3"])
def test_a_number_of_batches_that_is_none_is_refused(batches: Any) -> None:
    with pytest.raises(mmcache.BadArgument, match="batches"):
        mmcache.verify(CLIP(), batches=batches)


@pytest.mark.parametrize("images", [[], "folder"])
def test_images_that_are_none_are_refused(images: Any) -> None:
    with pytest.raises(mmcache.BadArgument, match="images"):
        mmcache.verify(CLIP(), images)


def test_what_is_no_processor_is_refused() -> None:
    with pytest.raises(mmcache.BadArgument, match="processor"):
        mmcache.verify(Layout({}))
