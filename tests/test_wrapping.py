"""Wrapped processors: the outputs of the plain ones, bit for bit, with as few real runs as possible."""

import copy
import io
import itertools
import pickle
import threading
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import mmcache
from mmcache.layout.compare import difference
from tests.pictures import counted, picture

PROCESSORS: dict[str, dict[str, Any]] = {
    "Qwen2VLImageProcessor": {"size": {"shortest_edge": 3136, "longest_edge": 50176}},
    "Qwen2VLImageProcessorPil": {"size": {"shortest_edge": 3136, "longest_edge": 50176}},
    # Qwen2.5-VL and Qwen3-VL checkpoints use these classes with their own numbers.
    "Qwen2VLImageProcessor:2.5": {
        "patch_size": 14,
        "merge_size": 2,
        "size": {"shortest_edge": 784, "longest_edge": 99999},
    },
    "Qwen2VLImageProcessor:3": {"patch_size": 16, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    "Qwen2VLImageProcessorPil:3": {"patch_size": 16, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    "CLIPImageProcessor": {},
    "CLIPImageProcessorPil": {},
    "SiglipImageProcessor": {},
    "SiglipImageProcessorPil": {},
    "LlavaNextImageProcessor": {},
    "LlavaNextImageProcessorPil": {},
    "Idefics3ImageProcessor": {"size": {"longest_edge": 728}, "return_row_col_info": True},
    "Gemma3ImageProcessor": {},
    "Gemma3ImageProcessorPil": {},
}

A, B, C, WIDE = picture(1), picture(2), picture(3, 64, 96), picture(4, 640, 200)
FORMS: dict[str, Any] = {
    "one": A,
    "list of one": [B],
    "list": [A, C, WIDE],
    "other order": [WIDE, A],
    "repeats": [C, C, A, C],
    "tuple": (B, C),
    "nested": [[A, WIDE], [C]],
    "nested alone": [[C]],
}


def made(name: str) -> Any:
    return getattr(transformers, name.partition(":")[0])(**PROCESSORS[name])


def same(expected: Any, found: Any) -> None:
    assert difference(expected, found) == ""


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Any:
    # However loaded the machine is: these tests are about what is served after a trial.
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    with mmcache.Cache("512MiB", name="test", verify_rate=0) as cache:
        yield cache


@pytest.mark.parametrize("name", PROCESSORS)
def test_every_form_and_tensor_type_is_that_of_the_plain_call_cold_and_warm(name: str, cache: mmcache.Cache) -> None:
    plain = made(name)
    wrapped = mmcache.wrap(plain, cache)
    for _, tensors in itertools.product(range(2), ("pt", "np", None)):
        for images in FORMS.values():
            same(plain(images, return_tensors=tensors), wrapped(images, return_tensors=tensors))
    cache.settle()
    info = cache.cache_info()
    assert info.errors == 0
    assert info.bypassed == 0, info.bypass_reasons
    # Four distinct pictures, each once for all kinds of tensors; everything else was looked up.
    assert info.misses == 4
    assert info.hits + info.coalesced == 2 * 3 * 17 - info.misses


@pytest.mark.parametrize("name", ["Qwen2VLImageProcessor", "Qwen2VLImageProcessorPil", "Idefics3ImageProcessor"])
def test_only_missing_images_reach_the_processor_each_distinct_one_once(name: str, cache: mmcache.Cache) -> None:
    wrapped = mmcache.wrap(made(name), cache)
    wrapped([picture(70), picture(71)], return_tensors="pt")  # the trials run here
    wrapped(picture(70), return_tensors="pt")
    with counted(type(made(name))) as runs:
        wrapped([A, B, A, A], return_tensors="pt")
        assert runs.images == 2
        wrapped([C, B, A, C], return_tensors="pt")
        assert runs.images == 3
        wrapped(C, return_tensors="pt")
        wrapped(images=[B, C], return_tensors="pt")
        assert runs.images == 3


def test_per_image_pixel_limits_are_in_the_key_and_start_no_trial_each(cache: mmcache.Cache) -> None:
    plain = made("Qwen2VLImageProcessor")
    wrapped = mmcache.wrap(plain, cache)
    image = picture(5, 320, 240)
    wrapped([image, A], size={"shortest_edge": 3136, "longest_edge": 20000}, return_tensors="pt")
    with counted(type(plain)) as runs:
        outputs = {
            most: wrapped([image], size={"shortest_edge": 3136, "longest_edge": most}, return_tensors="pt")
            for most in range(30000, 60000, 1500)
        }
        assert runs == [1] * 20
    for most, output in outputs.items():
        same(plain([image], size={"shortest_edge": 3136, "longest_edge": most}, return_tensors="pt"), output)


@pytest.mark.filterwarnings("ignore:Passing `min_pixels`:FutureWarning")
def test_min_pixels_and_max_pixels_as_options_of_the_call(cache: mmcache.Cache) -> None:
    plain = made("Qwen2VLImageProcessor")
    wrapped = mmcache.wrap(plain, cache)
    image = picture(6, 320, 240)
    for limits in ({"max_pixels": 20000}, {"min_pixels": 100000}, {"min_pixels": 3136, "max_pixels": 40000}):
        for _ in range(2):
            same(plain(image, return_tensors="pt", **limits), wrapped(image, return_tensors="pt", **limits))
    assert (cache.cache_info().misses, cache.cache_info().hits) == (3, 3)


def test_a_wrapped_processor_is_what_it_was(tmp_path: Path, cache: mmcache.Cache) -> None:
    plain = made("Qwen2VLImageProcessor")
    before = copy.deepcopy(plain.to_dict())
    wrapped = mmcache.wrap(plain, cache)
    assert isinstance(wrapped, transformers.Qwen2VLImageProcessor)
    assert wrapped.to_dict() == before
    assert vars(wrapped).keys() == vars(plain).keys()
    assert type(plain) is transformers.Qwen2VLImageProcessor
    wrapped.save_pretrained(tmp_path)
    loaded = transformers.Qwen2VLImageProcessor.from_pretrained(tmp_path)
    assert loaded.to_dict() == before
    unwrapped = mmcache.unwrap(wrapped)
    assert type(unwrapped) is transformers.Qwen2VLImageProcessor
    assert unwrapped.to_dict() == before


def test_copies_and_pickles_arrive_wrapped_with_the_same_cache_and_no_items(cache: mmcache.Cache) -> None:
    wrapped = mmcache.wrap(made("CLIPImageProcessor"), cache)
    expected = wrapped(A, return_tensors="pt")
    sent = pickle.dumps(wrapped)
    assert len(sent) < 5000
    for twin in (copy.copy(wrapped), copy.deepcopy(wrapped), pickle.loads(sent)):
        hits = cache.cache_info().hits
        same(expected, twin(A, return_tensors="pt"))
        assert cache.cache_info().hits == hits + 1
    twin.do_normalize = False
    same(expected, wrapped(A, return_tensors="pt"))


def test_a_changed_attribute_changes_the_key_even_when_changed_in_place(cache: mmcache.Cache) -> None:
    plain = made("Qwen2VLImageProcessor")
    wrapped = mmcache.wrap(plain, cache)
    image = picture(7, 320, 240)
    first = wrapped(image, return_tensors="pt")
    wrapped.size["longest_edge"] = 20000  # plain shares this object: a shallow copy
    second = wrapped(image, return_tensors="pt")
    assert second["pixel_values"].shape != first["pixel_values"].shape
    same(plain(image, return_tensors="pt"), second)
    wrapped.do_normalize = False
    assert wrapped(image, return_tensors="pt")["pixel_values"].min() >= 0
    assert plain.do_normalize
    assert cache.cache_info().misses == 3


def test_arrays_and_tensors_are_sources_of_their_own(cache: mmcache.Cache) -> None:
    plain = made("CLIPImageProcessor")
    wrapped = mmcache.wrap(plain, cache)
    array = np.asarray(picture(8)).copy()
    sources = [
        array, np.ascontiguousarray(array.transpose(2, 0, 1)), torch.from_numpy(array.copy()),
        (array / 255).astype(np.float32), Image.fromarray(array), np.asfortranarray(array),
    ]  # fmt: skip
    for _ in range(2):
        for source in sources:
            same(plain(source, return_tensors="pt"), wrapped(source, return_tensors="pt"))
            same(plain([source, source], return_tensors="pt"), wrapped([source, source], return_tensors="pt"))
    same(plain(np.stack([array, array]), return_tensors="pt"), wrapped(np.stack([array, array]), return_tensors="pt"))
    assert cache.cache_info().errors == 0
    assert cache.cache_info().misses <= len(sources) + 1


@pytest.mark.parametrize("backend", ["CLIPImageProcessor", "CLIPImageProcessorPil"])
@pytest.mark.filterwarnings("ignore")  # torchvision deprecates its decoder
def test_paths_go_through_the_loader_and_share_the_content_of_what_it_gives(
    backend: str, tmp_path: Path, cache: mmcache.Cache
) -> None:
    plain = made(backend)
    wrapped = mmcache.wrap(plain, cache)
    first, second = tmp_path / "a.png", tmp_path / "b.png"
    picture(9).save(first)
    picture(9).save(second, compress_level=0)
    same(plain(str(first), return_tensors="pt"), wrapped(str(first), return_tensors="pt"))
    same(plain([str(second)], return_tensors="pt"), wrapped([str(second)], return_tensors="pt"))
    assert (cache.cache_info().misses, cache.cache_info().hits) == (1, 1)
    picture(10).save(first)  # the path names other content now
    same(plain(str(first), return_tensors="pt"), wrapped(str(first), return_tensors="pt"))
    with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever the processor says
        plain(str(tmp_path / "none.png"))
    with pytest.raises(type(expected.value)):
        wrapped(str(tmp_path / "none.png"))


def outcome(processor: Any, images: Any) -> Any:
    try:
        return processor(images, return_tensors="pt")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
        return error


@pytest.mark.parametrize("images", [[], None, "", 5, [None], [A, [B]], [[]], {"a": 1}, b"bytes"])
def test_what_the_processor_refuses_it_still_refuses_in_the_same_words(images: Any, cache: mmcache.Cache) -> None:
    plain = made("CLIPImageProcessor")
    wrapped = mmcache.wrap(plain, cache)
    expected, found = outcome(plain, images), outcome(wrapped, images)
    if isinstance(expected, Exception):
        assert (type(found), str(found)) == (type(expected), str(expected))
    else:
        same(expected, found)
    assert cache.cache_info().items == 0


def test_an_error_is_the_processors_own_is_not_stored_and_is_tried_again(cache: mmcache.Cache) -> None:
    plain = made("Qwen2VLImageProcessor")
    wrapped = mmcache.wrap(plain, cache)
    narrow = picture(11, 2010, 10)
    with pytest.raises(ValueError, match="aspect ratio") as expected:
        plain(narrow)
    for images in (narrow, [narrow], [A, narrow, B]):
        for _ in range(2):
            with pytest.raises(ValueError, match="aspect ratio") as found:
                wrapped(images)
            assert str(found.value) == str(expected.value)
    same(plain([A, B], return_tensors="pt"), wrapped([A, B], return_tensors="pt"))


def test_a_class_patched_after_wrapping_is_the_one_that_runs(
    cache: mmcache.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = made("CLIPImageProcessorPil")
    wrapped = mmcache.wrap(plain, cache)
    before = wrapped(A, return_tensors="pt")
    original = transformers.CLIPImageProcessorPil.preprocess

    def darker(self: Any, images: Any, *args: Any, **options: Any) -> Any:
        output = original(self, images, *args, **options)
        output["pixel_values"] = output["pixel_values"] - 1
        return output

    monkeypatch.setattr(transformers.CLIPImageProcessorPil, "preprocess", darker)
    for _ in range(2):
        same(plain(A, return_tensors="pt"), wrapped(A, return_tensors="pt"))
    monkeypatch.undo()
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    same(before, wrapped(A, return_tensors="pt"))


def test_methods_put_on_the_class_of_a_wrapped_processor_are_seen(cache: mmcache.Cache) -> None:
    wrapped = mmcache.wrap(made("CLIPImageProcessorPil"), cache)
    before = wrapped(A, return_tensors="pt")
    original = transformers.CLIPImageProcessorPil.rescale
    type(wrapped).rescale = lambda self, image, *args, **options: original(self, image, *args, **options) * 2
    assert difference(before, wrapped(A, return_tensors="pt")) != ""
    (reason,) = cache.cache_info().bypass_reasons
    assert "class of a wrapped processor" in reason
    del type(wrapped).rescale

    class Mine(type(wrapped)):  # type: ignore[misc]
        def normalize(self, image: Any, *args: Any, **options: Any) -> Any:
            return super().normalize(image, *args, **options) + 1

    mine = Mine()
    for _ in range(2):
        expected = before["pixel_values"].numpy() + 1
        assert np.array_equal(mine(A, return_tensors="pt")["pixel_values"].numpy(), expected)


@pytest.mark.parametrize("tiles", [(3, 36), (36, 3)])
def test_an_attribute_that_is_read_behind_a_given_option_is_in_the_key(tiles: Any, cache: mmcache.Cache) -> None:
    first, second = (transformers.PerceptionLMImageProcessor(max_num_tiles=most) for most in tiles)
    image = picture(30, 900, 700)
    for plain in (first, second, first, second):
        wrapped = mmcache.wrap(plain, cache)
        options: dict[str, Any] = {"max_num_tiles": 9, "return_tensors": "pt"}
        same(plain(image, **options), wrapped(image, **options))


def test_small_numbers_are_part_of_a_structure(cache: mmcache.Cache) -> None:
    """How many tiles there may be decides how masks are padded: what was tried for one says nothing of four."""
    images: Any = [[picture(31, 300, 200)], [picture(32, 700, 700), picture(33, 300, 900)]]
    for tiles in (1, 4):
        plain = transformers.MllamaImageProcessor(max_image_tiles=tiles)
        wrapped = mmcache.wrap(plain, cache)
        for _ in range(2):
            same(plain(images, return_tensors="pt"), wrapped(images, return_tensors="pt"))


def test_a_patched_method_that_reads_metadata_has_it_in_the_key(
    cache: mmcache.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = transformers.CLIPImageProcessorPil
    original = cls.preprocess

    def with_resolution(self: Any, images: Any, *args: Any, **options: Any) -> Any:
        image = images[0] if isinstance(images, list) else images
        output = original(self, images, *args, **options)
        output["dpi"] = getattr(image, "info", {}).get("dpi", 0)
        return output

    monkeypatch.setattr(cls, "preprocess", with_resolution)
    wrapped = mmcache.wrap(cls(), cache)
    for dpi in (72, 300, 72):
        image = A.copy()
        image.info["dpi"] = dpi
        same(cls()(image, return_tensors="pt"), wrapped(image, return_tensors="pt"))


def test_attributes_of_an_output_are_the_callers_own(cache: mmcache.Cache) -> None:
    wrapped = mmcache.wrap(made("CLIPImageProcessor"), cache)
    for _ in range(3):
        output = wrapped([A, B], return_tensors="pt")
        assert output.skip_tensor_conversion is None
        vars(output)["note"] = ["mine"]
        vars(wrapped(A, return_tensors="pt"))["note"] = "mine"
        assert "note" not in vars(wrapped([B, A], return_tensors="pt"))


def test_wrong_options_raise_what_they_raise_without_the_cache(cache: mmcache.Cache) -> None:
    plain = made("CLIPImageProcessor")
    wrapped = mmcache.wrap(plain, cache)
    for options in (
        {"size": "large"},
        {"no_such_option": 1},
        {"do_resize": True, "size": {}},
        {"return_tensors": "xx"},
    ):
        with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever the processor says
            plain(A, **options)
        with pytest.raises(type(expected.value)) as found:
            wrapped(A, **options)
        assert str(found.value) == str(expected.value)


def test_unequal_sizes_that_make_no_batch_raise_as_without_the_cache(cache: mmcache.Cache) -> None:
    plain = transformers.CLIPImageProcessor(do_resize=False, do_center_crop=False)
    wrapped = mmcache.wrap(plain, cache)
    with pytest.raises(ValueError, match=r".") as expected:
        plain([A, C], return_tensors="pt")
    with pytest.raises(ValueError, match=r".") as found:
        wrapped([A, C], return_tensors="pt")
    assert str(found.value) == str(expected.value)
    same(plain([A, B], return_tensors="pt"), wrapped([A, B], return_tensors="pt"))
    same(plain([A, C], return_tensors=None), wrapped([A, C], return_tensors=None))


def test_what_the_trial_does_not_serve_is_a_counted_bypass_with_its_reason(
    cache: mmcache.Cache, caplog: pytest.LogCaptureFixture
) -> None:
    class Noisy(transformers.CLIPImageProcessor):
        def _preprocess(self, images: Any, *args: Any, **options: Any) -> Any:
            output = super()._preprocess(images, *args, **options)
            output["pixel_values"] = output["pixel_values"] + torch.rand(1)
            return output

    caplog.set_level("INFO", "mmcache")
    wrapped = mmcache.wrap(Noisy(), cache)
    torch.manual_seed(3)
    expected = Noisy()(A, return_tensors="pt")
    torch.manual_seed(3)
    same(expected, wrapped(A, return_tensors="pt"))
    assert not torch.equal(wrapped(A, return_tensors="pt")["pixel_values"], expected["pixel_values"])
    assert list(cache.cache_info().bypass_reasons) == ["Noisy: it draws random numbers"]
    assert cache.cache_info().bypassed == 2
    assert sum("it draws random numbers" in record.message for record in caplog.records) == 1


def test_the_original_and_other_processors_stay_as_they_are(cache: mmcache.Cache) -> None:
    plain = made("CLIPImageProcessor")
    wrapped = mmcache.wrap(plain, cache)
    other = mmcache.wrap(made("CLIPImageProcessorPil"), cache)
    wrapped(A)
    assert "__mmcache_plain__" not in dir(plain)
    with counted(type(plain)) as runs:
        plain(A)
        assert runs.images == 1
    # Another backend is another identity: its bits differ.
    misses = cache.cache_info().misses
    same(made("CLIPImageProcessorPil")(A), other(A))
    assert cache.cache_info().misses == misses + 1


def test_wrapping_again_changes_the_cache_and_unwrapping_a_plain_one_copies_it(cache: mmcache.Cache) -> None:
    with mmcache.Cache("64MiB") as second:
        twice = mmcache.wrap(mmcache.wrap(made("CLIPImageProcessor"), cache), second)
        twice(A)
        assert (cache.cache_info().misses, second.cache_info().misses) == (0, 1)
    plain = made("CLIPImageProcessor")
    assert mmcache.unwrap(plain) is not plain
    assert type(mmcache.unwrap(plain)) is type(plain)


@pytest.mark.parametrize("thing", [None, 5, "clip", object(), dict, transformers.CLIPImageProcessor])
def test_what_is_no_processor_is_refused_at_once(thing: Any) -> None:
    with pytest.raises(mmcache.BadArgument, match="a Hugging Face image processor"):
        mmcache.wrap(thing)
    with pytest.raises(mmcache.BadArgument, match="a Hugging Face image processor"):
        mmcache.unwrap(thing)


def test_a_cache_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(mmcache.BadArgument, match=r"an mmcache\.Cache"):
        mmcache.wrap(made("CLIPImageProcessor"), "4GiB")  # type: ignore[arg-type]
    with pytest.raises(mmcache.BadArgument, match=r"an mmcache\.Cache"):
        mmcache.install("4GiB")  # type: ignore[arg-type]


class TestInstall:
    def test_every_processor_of_the_process_is_served_those_made_later_too(self, cache: mmcache.Cache) -> None:
        before = made("CLIPImageProcessor")
        expected = before(A, return_tensors="pt")
        with mmcache.install(cache) as installation:
            assert installation.cache is cache
            after = made("CLIPImageProcessor")
            same(expected, before(A, return_tensors="pt"))  # plain: the trial runs in the background
            cache.settle()
            with counted(type(before)) as runs:
                for processor in (before, after, before):
                    same(expected, processor(A, return_tensors="pt"))
                    same(expected, processor.preprocess(A, return_tensors="pt"))
                assert runs.images == 1

            class Later(transformers.CLIPImageProcessor):
                def preprocess(self, images: Any, *args: Any, **options: Any) -> Any:
                    return super().preprocess(images, *args, **options)

            later = Later()
            later(A, return_tensors="pt")
            cache.settle()
            with counted(transformers.CLIPImageProcessor) as runs:
                for _ in range(3):
                    same(expected, later(A, return_tensors="pt"))
                assert runs.images == 1
        hits = cache.cache_info().hits
        same(expected, before(A, return_tensors="pt"))
        same(expected, later(A, return_tensors="pt"))
        assert cache.cache_info().hits == hits
        assert not hasattr(transformers.CLIPImageProcessor.preprocess, "__mmcache_original__")

    def test_a_random_processor_gives_what_it_gives_without_the_cache(self, cache: mmcache.Cache) -> None:
        class Noisy(transformers.CLIPImageProcessorPil):
            def _preprocess(self, images: Any, *args: Any, **options: Any) -> Any:
                output = super()._preprocess(images, *args, **options)
                output["pixel_values"] = output["pixel_values"] + torch.rand(1).item()
                return output

        torch.manual_seed(0)
        expected = [Noisy()(A, return_tensors="pt") for _ in range(6)]
        torch.manual_seed(0)
        with mmcache.install(cache):
            for output in expected:
                same(output, Noisy()(A, return_tensors="pt"))
        assert "Noisy: it draws random numbers" in cache.cache_info().bypass_reasons

    def test_a_second_installation_is_refused_and_closing_twice_does_nothing(self, cache: mmcache.Cache) -> None:
        installation = mmcache.install(cache)
        try:
            with pytest.raises(mmcache.InUse):
                mmcache.install(cache)
        finally:
            installation.close()
            installation.close()
        mmcache.install(cache).close()

    def test_a_wrapped_processor_and_an_installed_one_share_items(self, cache: mmcache.Cache) -> None:
        plain = made("SiglipImageProcessor")
        mmcache.wrap(plain, cache)(A, return_tensors="pt")
        with mmcache.install(cache), counted(type(plain)) as runs:
            plain(A, return_tensors="pt")
            assert runs.images == 0


class TestNotHarmedFromOutside:
    """Law 5: whatever is done to outputs and inputs, later callers get what the plain call gives."""

    def harm(self, output: Any) -> None:
        values = output["pixel_values"]
        values.add_(1)
        values.view(-1)[0] = 7
        values.data.mul_(2)
        values.numpy()[:] = 5
        torch.utils.dlpack.from_dlpack(values).zero_()
        values.resize_(1)
        output["image_grid_thw"].fill_(9)
        output["extra"] = 1
        del output["pixel_values"]

    @pytest.mark.parametrize("images", [A, [A], [A, B], [[A], [B]]])
    def test_outputs_of_misses_and_of_hits_can_be_written_to(self, images: Any, cache: mmcache.Cache) -> None:
        plain = made("Qwen2VLImageProcessor")
        wrapped = mmcache.wrap(plain, cache)
        for _ in range(4):
            output = wrapped(images, return_tensors="pt")
            same(plain(images, return_tensors="pt"), output)
            self.harm(output)

    def test_lists_and_arrays_can_be_written_to(self, cache: mmcache.Cache) -> None:
        plain = made("CLIPImageProcessorPil")
        wrapped = mmcache.wrap(plain, cache)
        for _ in range(3):
            output = wrapped([A, B], return_tensors=None)
            same(plain([A, B], return_tensors=None), output)
            output["pixel_values"][0][:] = 3
            output["pixel_values"].clear()

    def test_an_image_can_be_changed_after_the_call(self, cache: mmcache.Cache) -> None:
        plain = made("CLIPImageProcessor")
        wrapped = mmcache.wrap(plain, cache)
        image, array = picture(20), np.asarray(picture(21)).copy()
        wrapped(image, return_tensors="pt")
        wrapped(array, return_tensors="pt")
        image.paste((0, 0, 0), (0, 0, 50, 50))
        array[:20] = 0
        same(plain(image, return_tensors="pt"), wrapped(image, return_tensors="pt"))
        same(plain(array, return_tensors="pt"), wrapped(array, return_tensors="pt"))
        same(plain(picture(20), return_tensors="pt"), wrapped(picture(20), return_tensors="pt"))

    def test_an_output_that_aliases_its_input_is_kept_apart_from_it(self, cache: mmcache.Cache) -> None:
        plain = transformers.CLIPImageProcessorPil(
            do_resize=False, do_center_crop=False, do_rescale=False, do_normalize=False, do_convert_rgb=False
        )
        wrapped = mmcache.wrap(plain, cache)
        array = np.asarray(picture(22)).transpose(2, 0, 1).copy()
        wrapped(array)
        array[:] = 0
        original = np.asarray(picture(22)).transpose(2, 0, 1).copy()
        same(plain(original), wrapped(original))

    def test_outputs_made_under_inference_mode_can_be_trained_on_later(self, cache: mmcache.Cache) -> None:
        wrapped = mmcache.wrap(made("CLIPImageProcessor"), cache)
        with torch.inference_mode():
            assert wrapped(A, return_tensors="pt")["pixel_values"].is_inference()
        values = wrapped(A, return_tensors="pt")["pixel_values"]
        assert not values.is_inference()
        weight = torch.ones((), requires_grad=True)
        (values * weight).sum().backward()
        assert weight.grad is not None


class TestWhatOthersDoMeanwhile:
    """An item whose key was no longer true when it was made is given to its caller and to nobody else."""

    CHANGED = "a processor, or its surroundings, changed before an image was processed"

    @pytest.fixture
    def during(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Run something between the look-up and the processing of the next call."""
        # Where the method is defined: a new member of the class itself would change the identity of its code.
        owner = next(base for base in transformers.CLIPImageProcessorPil.__mro__ if "preprocess" in vars(base))
        original = vars(owner)["preprocess"]

        def hook(change: Any) -> None:
            def preprocess(self: Any, images: Any, *args: Any, **options: Any) -> Any:
                change()
                return original(self, images, *args, **options)

            preprocess.__mmcache_original__ = original  # type: ignore[attr-defined]
            monkeypatch.setattr(owner, "preprocess", preprocess)

        return hook

    def unshared(self, reason: str, images: int, cache: mmcache.Cache) -> None:
        """The only calls that were not served, and why."""
        info = cache.cache_info()
        assert (info.bypass_reasons, info.bypassed, info.errors) == ({reason: images}, images, 0)

    @pytest.mark.parametrize("several", [False, True])
    def test_an_image_that_is_written_to(self, several: bool, during: Any, cache: mmcache.Cache) -> None:
        plain = made("CLIPImageProcessorPil")
        wrapped = mmcache.wrap(plain, cache)
        array, other = np.asarray(A).copy(), np.asarray(B).copy()
        images: Any = [array, other] if several else array
        wrapped([other, other] if several else other, return_tensors="pt")
        expected = plain([np.asarray(A).copy(), other] if several else np.asarray(A).copy(), return_tensors="pt")
        during(lambda: array.fill(0))
        wrapped(images, return_tensors="pt")
        self.unshared("an image that was changed before it was processed", 1 + several, cache)
        during(lambda: None)
        array[:] = np.asarray(A)
        same(expected, wrapped(images, return_tensors="pt"))

    def test_an_attribute_that_is_set(self, during: Any, cache: mmcache.Cache) -> None:
        wrapped = mmcache.wrap(made("CLIPImageProcessorPil"), cache)
        wrapped(B, return_tensors="pt")
        during(lambda: setattr(wrapped, "do_normalize", False))
        wrapped(A, return_tensors="pt")
        self.unshared(self.CHANGED, 1, cache)
        during(lambda: None)
        wrapped.do_normalize = True
        same(made("CLIPImageProcessorPil")(A, return_tensors="pt"), wrapped(A, return_tensors="pt"))

    def test_an_option_that_is_changed_in_place(self, during: Any, cache: mmcache.Cache) -> None:
        wrapped = mmcache.wrap(made("CLIPImageProcessorPil"), cache)
        size = {"shortest_edge": 224}
        wrapped(B, size=size, return_tensors="pt")
        during(lambda: size.update(shortest_edge=300))
        wrapped(A, size=size, return_tensors="pt")
        self.unshared(self.CHANGED, 1, cache)
        during(lambda: None)
        same(
            made("CLIPImageProcessorPil")(A, size={"shortest_edge": 224}, return_tensors="pt"),
            wrapped(A, size={"shortest_edge": 224}, return_tensors="pt"),
        )


class ByMode(transformers.CLIPImageProcessorPil):
    """Gives all widths of grey pictures, and the largest of others."""

    def preprocess(self, images: Any, *args: Any, **options: Any) -> Any:
        output = super().preprocess(images, *args, **options)
        batch = images if isinstance(images, list) else [images]
        widths = torch.tensor([image.width for image in batch])
        output["widths"] = widths if all(image.mode == "L" for image in batch) else widths.amax(0, keepdim=True)
        return output


def test_each_kind_of_image_has_a_trial_and_a_layout_of_its_own(cache: mmcache.Cache) -> None:
    plain, wrapped = ByMode(), mmcache.wrap(ByMode(), cache)
    grey, grey_too = A.convert("L"), C.convert("L")
    for images in ([A, C], [grey, grey_too], [grey, C], [A, grey_too], [grey_too, grey]):
        same(plain(images), wrapped(images))
    assert cache.cache_info().bypass_reasons == {"kinds of images that join differently, in one batch": 4}


def test_a_tensor_that_autograd_follows_is_another_source(cache: mmcache.Cache) -> None:
    plain = made("CLIPImageProcessor")
    wrapped = mmcache.wrap(plain, cache)
    tensor = torch.from_numpy(np.asarray(A).transpose(2, 0, 1).copy()).float()
    for source in (tensor, tensor.clone().requires_grad_(), tensor):
        found, expected = (p(source, do_rescale=False, return_tensors="pt") for p in (wrapped, plain))
        assert found["pixel_values"].requires_grad == expected["pixel_values"].requires_grad
        same({"p": expected["pixel_values"].detach()}, {"p": found["pixel_values"].detach()})


def test_an_image_that_gives_its_pixels_in_a_way_of_its_own_is_bypassed(cache: mmcache.Cache) -> None:
    class Inverted(Image.Image):
        def convert(self, *args: Any, **options: Any) -> Any:
            return Image.eval(super().convert(*args, **options), lambda level: 255 - level)

    plain = made("CLIPImageProcessorPil")
    wrapped = mmcache.wrap(plain, cache)
    inverted = A.copy()
    inverted.__class__ = Inverted
    patched = A.copy()
    patched.convert = lambda *_: B  # type: ignore[method-assign]
    for image in (A, inverted, patched, A):
        same(plain(image, return_tensors="pt"), wrapped(image, return_tensors="pt"))


def test_what_is_kept_in_slots_is_copied_and_in_the_key(cache: mmcache.Cache) -> None:
    class Slotted(transformers.CLIPImageProcessorPil):
        __slots__ = ("factor",)
        factor: float

        def rescale(self, image: Any, scale: Any, *args: Any, **options: Any) -> Any:
            return super().rescale(image, scale * self.factor, *args, **options)

    plain = Slotted()
    for plain.factor in (1, 3, 1):
        wrapped = mmcache.wrap(plain, cache)
        same(plain(A, return_tensors="pt"), wrapped(A, return_tensors="pt"))


def test_closing_an_installation_leaves_a_patch_made_since_and_minds_no_new_classes(cache: mmcache.Cache) -> None:
    cls = transformers.SiglipImageProcessorPil
    original = cls.preprocess

    def mine(self: Any, images: Any, **options: Any) -> Any:
        return original(self, images, **options)

    stop = threading.Event()

    def define() -> None:
        while not stop.is_set():
            type("Made", (transformers.CLIPImageProcessorPil,), {"preprocess": mine})

    threads = [threading.Thread(target=define) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(15):
            mmcache.install(cache).close()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    installation = mmcache.install(cache)
    owner = next(base for base in cls.__mro__ if "preprocess" in vars(base))
    before = vars(owner)["preprocess"]
    try:
        owner.preprocess = mine  # type: ignore[attr-defined]
        installation.close()
        assert vars(owner)["preprocess"] is mine
    finally:
        owner.preprocess = before.__mmcache_original__  # type: ignore[attr-defined]


def test_pictures_with_a_transparent_palette_opened_anew_are_hits(cache: mmcache.Cache) -> None:
    """A conversion brings the transparency into Pillow's own palette: the same image before and after."""
    wrapped = mmcache.wrap(made("CLIPImageProcessorPil"), cache)
    for transparency in (3, bytes(range(40)), bytes(300)[:10]):
        buffer = io.BytesIO()
        picture(1).quantize(32).save(buffer, "PNG", transparency=transparency)
        misses = cache.cache_info().misses
        for _ in range(3):
            opened = Image.open(io.BytesIO(buffer.getvalue()))
            expected = made("CLIPImageProcessorPil")(Image.open(io.BytesIO(buffer.getvalue())), return_tensors="pt")
            same(expected, wrapped(opened, return_tensors="pt"))
            same(expected, wrapped(opened, return_tensors="pt"))
        assert cache.cache_info().misses == misses + 1
    assert cache.cache_info().bypassed == 0


def test_images_that_depend_on_their_sample_are_served_by_whole_samples(cache: mmcache.Cache) -> None:
    """LLaVA-OneVision treats an image that is alone in its sample differently from one that is not."""
    plain: Any = transformers.LlavaOnevisionImageProcessor()
    wrapped = mmcache.wrap(plain, cache)
    nested: Any = [[A], [B, C], [A, B]]
    wrapped(nested, return_tensors="pt")
    with counted(type(plain)) as runs:
        for samples in (nested, nested[::-1], [[B, C]], [[A], [A]]):
            found = wrapped(samples, return_tensors="pt")
            assert runs.images == 0
            same(plain(samples, return_tensors="pt"), found)
            runs.clear()
    same(plain([[C, B]], return_tensors="pt"), wrapped([[C, B]], return_tensors="pt"))
    assert cache.cache_info().errors == 0


def test_a_list_of_one_needs_no_layout(cache: mmcache.Cache) -> None:
    """PP-OCR resizes to the widest picture of a batch: no batch can be joined, a picture alone can be remembered."""
    plain: Any = transformers.PPOCRV5ServerRecImageProcessor()
    wrapped = mmcache.wrap(plain, cache)
    for _ in range(2):
        for images in ([WIDE], [A], [A, WIDE]):
            same(plain(images, return_tensors="pt"), wrapped(images, return_tensors="pt"))
    info = cache.cache_info()
    assert (info.misses, info.hits, info.errors) == (2, 2, 0)
    (reason,) = info.bypass_reasons
    assert "PPOCRV5ServerRec" in reason


class TestVideos:
    """They are not served: each call is a bypass that is counted, with its reason."""

    VIDEO = np.random.default_rng(5).integers(0, 256, (4, 3, 56, 56), np.uint8)
    OPTIONS: ClassVar[dict[str, Any]] = {
        "do_sample_frames": False,
        "cap_pixels_per_frame": False,
        "return_tensors": "pt",
    }

    def bypassed(self, cache: mmcache.Cache) -> dict[str, int]:
        return cache.cache_info().bypass_reasons

    def test_of_a_video_processor(self, cache: mmcache.Cache) -> None:
        plain = transformers.Qwen2VLVideoProcessor()
        wrapped = mmcache.wrap(plain, cache)
        assert isinstance(wrapped, transformers.Qwen2VLVideoProcessor)
        same(plain([self.VIDEO], **self.OPTIONS), wrapped([self.VIDEO], **self.OPTIONS))
        assert self.bypassed(cache) == {"videos are not cached": 1}
        assert type(mmcache.unwrap(wrapped)) is transformers.Qwen2VLVideoProcessor

    def test_of_the_one_in_a_processor(self, cache: mmcache.Cache, tiny_qwen2_vl: tuple[Any, Any]) -> None:
        plain, _ = tiny_qwen2_vl
        wrapped = mmcache.wrap(plain, cache)
        same(plain.video_processor([self.VIDEO], **self.OPTIONS), wrapped.video_processor([self.VIDEO], **self.OPTIONS))
        assert self.bypassed(cache) == {"videos are not cached": 1}

    def test_under_an_installation(self, cache: mmcache.Cache) -> None:
        with mmcache.install(cache):
            transformers.Qwen2VLVideoProcessor()([self.VIDEO, self.VIDEO], **self.OPTIONS)
        assert self.bypassed(cache) == {"videos are not cached": 2}

    @pytest.mark.parametrize("use", [mmcache.Stages, mmcache.verify, lambda plain: mmcache.geometry(plain, [(8, 8)])])
    def test_what_is_about_images_refuses_them(self, use: Any) -> None:
        with pytest.raises(mmcache.BadArgument, match="a Hugging Face image processor"):
            use(transformers.Qwen2VLVideoProcessor())
