"""What was once wrong, or nearly: each case as somebody met it, against the plain call."""

import gc
import io
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    CLIPImageProcessor,
    CLIPImageProcessorPil,
    FuyuImageProcessor,
    NougatImageProcessor,
    Owlv2ImageProcessor,
)

import mmcache
from mmcache.fingerprints import samples_of
from mmcache.layout.compare import difference
from tests.pictures import picture


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    with mmcache.Cache("256MiB", verify_rate=0) as cache:
        yield cache


def same(expected: Any, found: Any) -> None:
    assert difference(expected, found) == ""


class Doubled(CLIPImageProcessorPil):
    """A class that is also asked for what it had before it changed it."""

    def preprocess(self, images: Any, **options: Any) -> Any:
        output = super().preprocess(images, **options)
        output["pixel_values"] = output["pixel_values"] * 2
        return output

    def raw(self, images: Any, **options: Any) -> Any:
        return super().preprocess(images, **options)


def test_what_is_called_past_a_classs_own_preprocess_has_no_part_in_its_items(cache: mmcache.Cache) -> None:
    processor, image = Doubled(), picture(1)
    doubled, raw = processor(image, return_tensors="np"), processor.raw(image, return_tensors="np")
    with mmcache.install(cache):
        for _ in range(3):
            same(raw, processor.raw(image, return_tensors="np"))
            same(doubled, processor(image, return_tensors="np"))
            cache.settle()
    assert cache.cache_info().hits > 0
    assert any("not that of the object's class" in reason for reason in cache.cache_info().bypass_reasons)


def test_the_same_in_a_subclass_of_what_wrap_makes(cache: mmcache.Cache) -> None:
    class Later(type(mmcache.wrap(CLIPImageProcessorPil(), cache))):  # type: ignore[misc]
        def preprocess(self, images: Any, **options: Any) -> Any:
            output = super().preprocess(images, **options)
            output["pixel_values"] = output["pixel_values"] * 2
            return output

    made = Later()
    setattr(made, "__mmcache_cache__", cache)  # noqa: B010 - which is not the class's own
    expected = Doubled()(picture(1), return_tensors="np")
    for _ in range(3):
        same(expected, made(picture(1), return_tensors="np"))


def test_a_decorator_over_an_installed_preprocess_leaves_it_served(
    cache: mmcache.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    import functools

    with mmcache.install(cache):
        inner = CLIPImageProcessorPil.preprocess

        @functools.wraps(inner)
        def traced(self: Any, *args: Any, **options: Any) -> Any:
            return inner(self, *args, **options)

        monkeypatch.setattr(CLIPImageProcessorPil, "preprocess", traced)
        for _ in range(3):
            CLIPImageProcessorPil()(picture(1), return_tensors="np")
            cache.settle()
        monkeypatch.undo()
    assert cache.cache_info().hits > 0


@pytest.mark.parametrize("cls", [CLIPImageProcessor, CLIPImageProcessorPil])
def test_whole_means_have_tables_of_their_own(cls: Any, cache: mmcache.Cache) -> None:
    for options in (
        {"image_mean": [123, 117, 104], "image_std": [1, 1, 1]},
        {"image_mean": [150, 150, 150], "image_std": [1, 1, 1]},
        {"image_mean": [0, 0, 0], "image_std": [255, 255, 255]},
        {"image_mean": [0, 0, 0], "image_std": [127, 127, 127]},
    ):
        plain = cls(do_rescale=False, **options)
        wrapped = mmcache.wrap(plain, cache)
        for _ in range(2):
            same(plain(picture(1), return_tensors="pt"), wrapped(picture(1), return_tensors="pt"))


def test_a_threshold_is_no_size(cache: mmcache.Cache) -> None:
    class Inked(CLIPImageProcessorPil):
        threshold = 128

        def preprocess(self, images: Any, **options: Any) -> Any:
            pictures = images if isinstance(images, list) else [images]
            return super().preprocess([i.point(lambda v: 255 * (v > self.threshold)) for i in pictures], **options)

    for threshold in (128, 200, 150, 250):
        plain = Inked()
        plain.threshold = threshold
        wrapped = mmcache.wrap(plain, cache)
        same(plain([picture(1)], return_tensors="np"), wrapped([picture(1)], return_tensors="np"))


def test_under_autocast_everything_is_plain(cache: mmcache.Cache) -> None:
    """Which convolutions obey, such as the blur of a few processors."""
    image, plain = picture(1, 1400, 1100), Owlv2ImageProcessor()
    wrapped = mmcache.wrap(plain, cache)
    wrapped(image, return_tensors="pt")
    with torch.autocast("cpu", torch.bfloat16):
        same(plain(image, return_tensors="pt"), wrapped(image, return_tensors="pt"))
    same(plain(image, return_tensors="pt"), wrapped(image, return_tensors="pt"))
    assert cache.cache_info().bypass_reasons == {"autocast is on": 1}


def test_minus_zero_is_a_value_of_its_own(cache: mmcache.Cache) -> None:
    plain = CLIPImageProcessor(do_resize=False, do_center_crop=False, do_normalize=False)
    wrapped = mmcache.wrap(plain, cache)
    for seed in range(3):
        array = np.asarray(picture(seed)).astype(np.float32)
        if seed:
            array[0, 0, 0] = -0.0
        for _ in range(2):
            same(plain(array, return_tensors="pt"), wrapped(array, return_tensors="pt"))


def encoded(image: Image.Image, form: str) -> bytearray:
    file = io.BytesIO()
    image.save(file, form)
    return bytearray(file.getvalue())


def test_sampling_a_lazy_image_neither_loads_it_nor_moves_its_file() -> None:
    data = encoded(picture(1, 300, 200), "PNG")
    lazy, other = (Image.open(io.BytesIO(bytes(d))) for d in (data, encoded(picture(2, 300, 200), "PNG")))
    position = lazy.fp.tell()  # type: ignore[union-attr]
    (taken,) = samples_of([lazy])
    assert lazy.tile
    assert lazy.fp.tell() == position  # type: ignore[union-attr]
    assert samples_of([Image.open(io.BytesIO(bytes(data)))]) == [taken]
    assert samples_of([other]) != [taken]


def test_a_broken_file_is_refused_each_time_while_the_cache_steps_aside() -> None:
    data = encoded(picture(1, 300, 200), "PNG")
    for place in range(len(data) // 2, len(data) // 2 + 60):
        data[place] ^= 0x5A
    with mmcache.Cache("64MiB", verify_rate=0, max_overhead=0.02) as cache:
        wrapped = mmcache.wrap(CLIPImageProcessorPil(), cache)
        wrapped(picture(9), return_tensors="np")
        while not cache._budget.exhausted:
            cache._budget.pay(0.001, 1)
        for _ in range(12):
            with pytest.raises(OSError, match=r"broken|unrecognized|truncated"):
                wrapped(Image.open(io.BytesIO(bytes(data))), return_tensors="np")
        assert cache.cache_info().passed > 0


def test_a_waiting_trial_keeps_no_picture(cache: mmcache.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 0.01)
    seen = []
    for seed in range(60):
        image = picture(seed, 400, 300)
        seen.append(weakref.ref(image))
        mmcache.wrap(CLIPImageProcessorPil(image_mean=[seed / 100] * 3), cache)(image, return_tensors="np")
    del image
    gc.collect()
    assert sum(reference() is not None for reference in seen) <= 1
    assert cache.trials._waiting <= 33
    cache.settle()


def test_what_is_inside_an_images_info_is_counted() -> None:
    with mmcache.Cache("1MiB") as cache:

        @mmcache.cached(cache=cache)
        def loader(image: Any) -> Any:
            made = Image.new("L", (4, 4))
            made.info["chunks"] = [image.tobytes() * 2, {"deep": (b"x" * 100_000,)}]
            return made

        for seed in range(4):
            loader(picture(seed, 300, 200))
        assert cache.cache_info().currsize > 400_000
        assert cache.cache_info().items < 4


def test_a_margin_that_is_cut_off_makes_the_geometry_the_pictures_own() -> None:
    page = np.full((200, 300, 3), 255, np.uint8)
    page[50:90, 60:160] = np.random.default_rng(0).integers(0, 200, (40, 100, 3))
    image, noise = Image.fromarray(page), picture(1, 300, 200)
    plain = NougatImageProcessor(do_resize=False, do_thumbnail=False, do_pad=False, do_align_long_axis=False)
    shapes = [tuple(plain(i, return_tensors="pt")["pixel_values"].shape) for i in (noise, image)]
    assert [g and g["pixel_values"] for g in mmcache.geometry(plain, [noise, image])] == shapes
    with mmcache.Cache("64MiB") as cache, mmcache.Stages(plain, cache=cache) as stages:
        assert [stages.add(i).geometry["pixel_values"] for i in (noise, image)] == shapes


def test_lists_of_numbers_are_cast_too() -> None:
    image, plain = picture(1), FuyuImageProcessor()
    with mmcache.Cache("512MiB", verify_rate=0) as cache, mmcache.Stages(plain, cache=cache, pixels="now") as stages:
        for batch in ([image], [image, image]):
            expected = plain(batch, return_tensors="pt").to(dtype=torch.bfloat16)
            same(dict(expected), dict(stages.execute([stages.add(i) for i in batch], dtype=torch.bfloat16)))


class Augmented(CLIPImageProcessorPil):
    """Draws for wide pictures only, which no trial shows it."""

    def preprocess(self, images: Any, **options: Any) -> Any:
        for image in images if isinstance(images, list) else [images]:
            if image.width > 1300:
                torch.rand(1)
        return super().preprocess(images, **options)


class AugmentedByHalves(Augmented):
    """And cannot be kept as codes."""

    def preprocess(self, images: Any, **options: Any) -> Any:
        output = super().preprocess(images, **options)
        first = images[0] if isinstance(images, list) else images
        if first.width > 1300 and options.get("do_rescale") is False:
            output["pixel_values"] = [value * 0.5 for value in output["pixel_values"]]
        return output


@pytest.mark.parametrize("cls", [Augmented, AugmentedByHalves])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_draws_that_no_trial_saw_leave_the_generators_where_plain_does(
    cls: Any, count: int, cache: mmcache.Cache
) -> None:
    plain, batch = cls(), [picture(seed, 1400, 60) for seed in range(count)]
    wrapped = mmcache.wrap(plain, cache)
    wrapped([picture(9)] * count, return_tensors="np")
    drawn = []
    for processor in (plain, wrapped):
        torch.manual_seed(0)
        processor(batch, return_tensors="np")
        drawn.append(torch.rand(1).item())
    assert drawn[0] == drawn[1]


def test_a_function_that_reads_no_pixels_needs_none(cache: mmcache.Cache, tmp_path: Path) -> None:
    @mmcache.cached(cache=cache)
    def size(image: Any) -> Any:
        return image.size

    path = tmp_path / "a.png"
    picture(1, 300, 200).save(path)
    with Image.open(path) as closed:
        pass
    assert size(closed) == (300, 200)


def test_saving_a_picture_changes_no_key(cache: mmcache.Cache) -> None:
    @mmcache.cached(cache=cache)
    def size(image: Any) -> Any:
        return image.size

    image = picture(1)
    size(image)
    image.save(io.BytesIO(), "webp", lossless=True)
    size(image)
    assert cache.cache_info().hits == 1
