"""Public reports of caches and image processing that went wrong: each whole kind of fault has a test that says it.

The numbers (B01 …) are those of the collection that these were taken from. Where a longer test elsewhere already holds
mmcache to it, `HELD_ELSEWHERE` says which.
"""

import gc
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch.utils.data import DataLoader

import mmcache
from mmcache.items import freeze
from mmcache.layout.compare import difference
from tests.corpus.conftest import corpus_folder
from tests.pictures import counted, picture

HELD_ELSEWHERE = {
    # The payload of an attack or of chance: keyed hashers wherever others choose the pictures.
    "B05": "fingerprints/test_hashers.py::test_xxh3_is_refused_where_it_would_be_no_protection",
    "B13": "fingerprints/test_identity.py::test_a_call_a_copy_and_a_travel_change_no_identity",
    "B17": "test_cache.py::test_two_threads_on_one_lazily_opened_image_get_right_pixels",
    "B29": "fingerprints/test_sources.py::test_palettes_count_by_what_they_mean",
    "B31": "test_wrapping.py::test_an_output_that_aliases_its_input_is_kept_apart_from_it",
    "B43": "stress/test_memory_stress.py::test_eight_threads_never_see_a_wrong_item_or_sums_that_do_not_add_up",
    "B45": "test_cache.py::test_an_item_larger_than_the_cache_is_served_not_stored_and_warned_of_once",
    "B50": "test_cache.py::test_the_cache_keeps_neither_images_nor_processors_alive",
}
REPORTS = [
    "B01", "B03", "B05", "B06", "B08", "B10", "B11", "B13", "B15", "B16", "B17", "B19", "B21", "B22", "B24", "B26", "B27", "B29", "B31",
    "B32", "B34", "B36", "B37", "B39", "B41", "B42", "B43", "B45", "B47", "B48", "B50", "B52", "B53", "B55", "B57", "B58", "B60",
]  # fmt: skip

FILES = Path("/proc/self/fd")


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[mmcache.Cache]:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    with mmcache.Cache("64MiB", name="reports", verify_rate=0, max_overhead=1) as cache:
        yield cache


def small_clip(backend: str = "", **options: Any) -> Any:
    crop = {"height": 28, "width": 28}
    made = getattr(transformers, "CLIPImageProcessor" + backend)
    return made(**{"size": {"shortest_edge": 28}, "crop_size": crop, **options})


def small_qwen(backend: str = "") -> Any:
    made = getattr(transformers, "Qwen2VLImageProcessor" + backend)
    return made(size={"shortest_edge": 3136, "longest_edge": 50176})


def outcome(processor: Any, images: Any) -> Any:
    try:
        return processor(images, return_tensors="pt")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is compared with what the plain call raises
        return type(error), str(error)


def assert_as_plain(plain: Any, cache: mmcache.Cache, *sources: Callable[[], Any]) -> None:
    """Compare what each source gives, or raises, with the plain call, twice over, with all of them in one cache."""
    wrapped = mmcache.wrap(plain, cache)
    for made in (*sources, *sources):
        expected, found = outcome(plain, made()), outcome(wrapped, made())
        assert found == expected if isinstance(expected, tuple) else difference(expected, found) == ""
    assert cache.cache_info().errors == 0


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def test_every_report_has_its_test() -> None:
    here = Path(__file__)
    own = {number.upper() for number in re.findall(r"^def test_(b\d\d)_", here.read_text(), re.MULTILINE)}
    assert own.isdisjoint(HELD_ELSEWHERE)
    assert sorted(own | set(HELD_ELSEWHERE)) == REPORTS
    for where in HELD_ELSEWHERE.values():
        file, _, test = where.partition("::")
        assert f"def {test}(" in (here.parent / file).read_text(), where


@pytest.mark.corpus
def test_the_reports_are_those_of_the_collection() -> None:
    folder = corpus_folder()
    if folder is None:
        pytest.skip("MMCACHE_TEST_DATA names no folder with the corpus")
    assert [report["id"] for report in json.loads((folder / "bug_reports.json").read_text())] == REPORTS


# Keys and collisions


def test_b01_pictures_of_equal_bytes_and_other_shapes_have_outputs_of_their_own(cache: mmcache.Cache) -> None:
    raw = np.random.default_rng(1).bytes(30 * 100 * 3)
    sources = [("RGB", (30, 100)), ("RGB", (100, 30)), ("L", (90, 100)), ("L", (300, 30))]
    assert len({str(mmcache.fingerprint(Image.frombytes(mode, size, raw))) for mode, size in sources}) == 4
    # An array of one shape under another, too.
    arrays = [np.frombuffer(raw, np.uint8).reshape(shape) for shape in ((30, 100, 3), (100, 30, 3))]
    assert len({str(mmcache.fingerprint(array)) for array in arrays}) == 2
    made = [lambda mode=mode, size=size: Image.frombytes(mode, size, raw) for mode, size in sources]
    assert_as_plain(small_clip(), cache, *made)
    assert cache.cache_info().misses == 4


@pytest.mark.parametrize("hasher", ["xxh3_128", "blake3", "sha256"])
def test_b03_keys_are_128_bits_of_a_real_hash_and_are_compared_whole(hasher: str) -> None:
    with mmcache.Cache("1MiB", hasher=hasher) as cache:
        key = cache.key(b"identity", picture(1), metadata=False)
        assert len(key) >= 16
        assert cache.key(b"identity", picture(2), metadata=False) != key
        neighbours = [bytes([*key[:at], key[at] ^ 1, *key[at + 1 :]]) for at in range(len(key))]
        assert len(set(neighbours)) == len(key)
        assert cache.memory.put(key, freeze("stored", 0.0), epoch=cache.memory.epoch)
        assert all(found is None for found in cache.memory.get_many(neighbours))
        assert cache.memory.get_many([key])[0] is not None


def test_b06_equal_bytes_that_are_decoded_in_other_ways_are_apart(
    cache: mmcache.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    @mmcache.cached(cache=cache, version="1")
    def load(data: bytes, background: tuple[int, int, int] = (0, 0, 0), mode: str = "RGB") -> Any:
        runs.append(mode)
        image = Image.open(io.BytesIO(data))
        below = Image.new("RGBA", image.size, (*background, 255))
        return np.asarray(Image.alpha_composite(below, image).convert(mode))

    data = encoded(Image.fromarray(np.random.default_rng(1).integers(0, 256, (9, 9, 4), np.uint8)))
    calls: list[dict[str, Any]] = [{}, {"background": (9, 9, 9)}, {"mode": "L"}]
    given = [load(data, **options) for options in calls * 2]
    assert len(runs) == 3
    assert all(
        difference(load.__wrapped__(data, **options), one) == "" for options, one in zip(calls * 2, given, strict=True)
    )
    # And with Pillow's own switches, of which the caller's code says nothing.
    monkeypatch.setattr("PIL.ImageFile.LOAD_TRUNCATED_IMAGES", True)
    runs.clear()
    load(data)
    assert len(runs) == 1


def test_b08_no_name_for_a_picture_stands_for_the_options_it_was_processed_with(cache: mmcache.Cache) -> None:
    wrapped = mmcache.wrap(small_clip(), cache)
    image = picture(1)
    image.filename = "the same name"  # type: ignore[attr-defined]
    for options in ({}, {"do_normalize": False}, {"size": {"shortest_edge": 40}}, {"do_center_crop": False}) * 2:
        expected = small_clip()(image, return_tensors="pt", **options)
        assert difference(expected, wrapped(image, return_tensors="pt", **options)) == ""
    assert (cache.cache_info().misses, cache.cache_info().hits) == (4, 4)


def with_palette(palette: bytes, transparency: int | bytes | None = None) -> Image.Image:
    image = Image.frombytes("P", (16, 16), bytes(range(256)))
    image.putpalette(palette)
    if transparency is not None:
        image.info["transparency"] = transparency
    return image


def test_b10_equal_indices_under_other_palettes_are_other_pictures(cache: mmcache.Cache) -> None:
    palettes = [np.random.default_rng(seed).bytes(768) for seed in range(3)]
    assert_as_plain(small_clip(), cache, *[lambda palette=palette: with_palette(palette) for palette in palettes])
    assert cache.cache_info().misses == 3


def test_b11_a_transparency_that_only_info_shows_is_part_of_the_picture_index_0_too(cache: mmcache.Cache) -> None:
    palette = np.random.default_rng(1).bytes(768)
    values: list[int | bytes | None] = [None, 0, 1, b"\x00", b"\x00\x07"]
    assert len({str(mmcache.fingerprint(with_palette(palette, value))) for value in values}) == len(values)
    assert_as_plain(small_clip(), cache, *[lambda value=value: with_palette(palette, value) for value in values])


def test_b15_the_last_bit_of_a_large_picture_counts_and_mirrored_arrays_can_be_hashed() -> None:
    pixels = np.zeros((2048, 2048, 3), np.uint8)
    before = mmcache.fingerprint(pixels), mmcache.fingerprint(Image.fromarray(pixels))
    pixels[-1, -1, -1] ^= 1
    assert mmcache.fingerprint(pixels) != before[0]
    assert mmcache.fingerprint(Image.fromarray(pixels)) != before[1]
    assert mmcache.fingerprint(pixels[::-1]) != mmcache.fingerprint(pixels)


@pytest.mark.parametrize("backend", ["", "Pil"])
def test_b16_an_axis_of_one_with_a_negative_stride_raises_nothing_of_our_own(
    backend: str, cache: mmcache.Cache
) -> None:
    mirrored = np.random.default_rng(1).integers(0, 256, (40, 1, 3), np.uint8)[:, ::-1]
    assert mmcache.fingerprint(mirrored) == mmcache.fingerprint(mirrored)
    assert_as_plain(small_clip(backend), cache, lambda: mirrored, lambda: [mirrored, mirrored.copy()])


# Pillow


@pytest.mark.skipif(not FILES.exists(), reason="counts descriptors in /proc")
def test_b19_five_hundred_opened_files_leave_no_descriptor_open(cache: mmcache.Cache, tmp_path: Path) -> None:
    for number in range(10):
        picture(number).save(tmp_path / f"{number}.png")
    wrapped = mmcache.wrap(small_clip(), cache)
    wrapped(picture(99), return_tensors="pt")
    before = len(list(FILES.iterdir()))
    for call in range(500):
        wrapped(Image.open(tmp_path / f"{call % 10}.png"), return_tensors="pt")
    gc.collect()
    assert len(list(FILES.iterdir())) == before
    assert cache.cache_info().misses == 11


def test_b21_the_frame_of_a_file_of_several_stays_and_others_can_be_read_afterwards(cache: mmcache.Cache) -> None:
    pages = [picture(seed) for seed in range(3)]
    data = encoded(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    wrapped = mmcache.wrap(small_clip(), cache)
    with Image.open(io.BytesIO(data)) as opened:
        for page in (1, 2, 0, 2, 1):
            opened.seek(page)
            expected = small_clip()(pages[page], return_tensors="pt")
            assert difference(expected, wrapped(opened, return_tensors="pt")) == ""
            assert opened.tell() == page


def test_b22_a_closed_animation_raises_what_it_raises_and_leaves_the_cache_as_it_was(cache: mmcache.Cache) -> None:
    frames = [picture(seed).quantize(16) for seed in range(2)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])

    def closed() -> Image.Image:
        image = Image.open(io.BytesIO(data))
        image.seek(1)
        image.close()
        return image

    assert isinstance(outcome(small_clip(), closed()), tuple)
    assert_as_plain(small_clip(), cache, closed)
    assert cache.cache_info().items == 0


@pytest.mark.parametrize("backend", ["", "Pil"])
def test_b24_a_picture_of_16_bits_comes_out_as_without_the_cache_right_or_wrong(
    backend: str, cache: mmcache.Cache
) -> None:
    deep = np.random.default_rng(1).integers(0, 65536, (40, 50), np.uint16)
    assert_as_plain(small_clip(backend), cache, lambda: Image.fromarray(deep), lambda: Image.fromarray(deep // 256))


def corpus_file(name: str) -> Path:
    folder = corpus_folder()
    if folder is None:
        pytest.skip("MMCACHE_TEST_DATA names no folder with the corpus")
    return folder / "files" / name


def test_b26_cmyk_comes_out_as_without_the_cache(cache: mmcache.Cache) -> None:
    inks = Image.frombytes("CMYK", (40, 30), np.random.default_rng(1).bytes(4800))
    for data in (encoded(inks, "JPEG"), encoded(inks, "TIFF")):
        assert_as_plain(small_clip(), cache, lambda data=data: Image.open(io.BytesIO(data)))  # type: ignore[misc]
    assert cache.cache_info().misses == 2


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["pillow-pil_sample_cmyk.jpg", "rsjpeg-jpg-cmyk-1.jpg"])
def test_b26_cmyk_files_of_other_programs_come_out_as_without_the_cache(name: str, cache: mmcache.Cache) -> None:
    file = corpus_file(name)
    assert_as_plain(small_clip(), cache, lambda: Image.open(file))


@pytest.mark.corpus
def test_b27_what_the_loader_of_a_path_raises_on_exif_it_raises_again(cache: mmcache.Cache) -> None:
    file = corpus_file("fastimage-ExifOrientation6.jpg")
    assert isinstance(outcome(small_clip("Pil"), str(file)), tuple)
    assert_as_plain(small_clip("Pil"), cache, lambda: str(file))


# Processors on odd input


@pytest.mark.parametrize("backend", ["", "Pil"])
@pytest.mark.parametrize("made", [small_clip, small_qwen])
def test_b32_pictures_of_one_and_three_pixels_give_or_raise_what_they_do_without_the_cache(
    made: Callable[[str], Any], backend: str, cache: mmcache.Cache
) -> None:
    shapes = [(1, 1, 3), (1, 9, 3), (9, 1, 3), (3, 3, 3), (3, 3), (1, 1), (3, 1, 1)]
    arrays = [np.random.default_rng(at).integers(0, 256, shape, np.uint8) for at, shape in enumerate(shapes)]
    images = [picture(at, width, height) for at, (width, height) in enumerate([(1, 1), (9, 1), (1, 9), (3, 3)])]
    assert_as_plain(made(backend), cache, *[lambda source=source: source for source in [*arrays, *images]])


@pytest.mark.parametrize("mode", ["L", "1", "P"])
def test_b34_a_grey_picture_that_is_refused_is_refused_in_the_same_words_and_not_stored(
    mode: str, cache: mmcache.Cache
) -> None:
    plain = small_clip("Pil", do_convert_rgb=False)
    assert isinstance(outcome(plain, picture(1, mode=mode)), tuple)
    assert_as_plain(plain, cache, lambda: picture(1, mode=mode), lambda: [picture(2, mode=mode), picture(3)])
    assert cache.cache_info().hits == 0


@pytest.mark.parametrize("backend", ["", "Pil"])
def test_b36_a_ratio_of_200_works_and_more_raises_both_times(backend: str, cache: mmcache.Cache) -> None:
    wrapped = mmcache.wrap(small_qwen(backend), cache)
    assert not isinstance(outcome(wrapped, picture(1, 2000, 10)), tuple)
    for width, height in ((2010, 10), (400, 1), (1, 6550)):
        for _ in range(2):
            found = outcome(wrapped, picture(1, width, height))
            assert found == outcome(small_qwen(backend), picture(1, width, height))
            assert found[0] is ValueError
    assert cache.cache_info().items == 1


def test_b37_the_stored_grid_is_that_of_a_fresh_run_for_each_backend(cache: mmcache.Cache) -> None:
    sizes = [(97, 64), (64, 97), (333, 41), (56, 56), (57, 55), (29, 450)]
    for backend in ("", "Pil"):
        wrapped = mmcache.wrap(small_qwen(backend), cache)
        for _ in range(2):
            grids = wrapped([picture(1, *size) for size in sizes], return_tensors="np")["image_grid_thw"]
            fresh = [small_qwen(backend)(picture(1, *size), return_tensors="np")["image_grid_thw"][0] for size in sizes]
            assert grids.tolist() == np.stack(fresh).tolist()


def test_b39_another_backend_of_the_same_settings_has_outputs_of_its_own(cache: mmcache.Cache) -> None:
    image = picture(1, 321, 123)
    outputs = {backend: small_clip(backend)(image, return_tensors="pt") for backend in ("", "Pil")}
    assert small_clip().to_dict() | {"image_processor_type": ""} == small_clip("Pil").to_dict() | {
        "image_processor_type": ""
    }
    assert difference(outputs[""], outputs["Pil"]) != ""
    for backend in ("", "Pil", "", "Pil"):
        found = mmcache.wrap(small_clip(backend), cache)(image, return_tensors="pt")
        assert difference(outputs[backend], found) == ""
    assert (cache.cache_info().misses, cache.cache_info().hits) == (2, 2)


def test_b41_a_bomb_raises_before_it_is_decoded_each_time(
    cache: mmcache.Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bomb.png").write_bytes(encoded(Image.new("1", (2000, 1000))))
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 10_000)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda *_: pytest.fail("it was decoded"))
    wrapped = mmcache.wrap(small_clip("Pil"), cache)
    for _ in range(2):
        with pytest.raises(Image.DecompressionBombError):
            mmcache.fingerprint(tmp_path / "bomb.png")
        found = outcome(wrapped, str(tmp_path / "bomb.png"))
        assert found == outcome(small_clip("Pil"), str(tmp_path / "bomb.png"))
        assert found[0] is Image.DecompressionBombError
    assert cache.cache_info().items == 0


# Cache mechanics


@pytest.mark.parametrize("images", [picture(1), [picture(1), picture(2)]], ids=["one", "list"])
def test_b42_a_model_that_writes_into_its_pixels_changes_no_later_hit(images: Any, cache: mmcache.Cache) -> None:
    wrapped = mmcache.wrap(small_clip(), cache)
    expected = small_clip()(images, return_tensors="pt")
    for _ in range(3):
        output = wrapped(images, return_tensors="pt")
        assert difference(expected, output) == ""
        torch.nn.functional.relu_(output["pixel_values"].sub_(0.5))
    assert cache.cache_info().hits > 0


def test_b47_what_is_done_to_tensors_arrays_lists_and_dicts_of_an_output_reaches_no_later_one(
    cache: mmcache.Cache,
) -> None:
    @mmcache.cached(cache=cache, version="1")
    def described(image: Image.Image) -> dict[str, Any]:
        pixels = np.asarray(image).copy()
        return {"tensor": torch.from_numpy(pixels.copy()), "array": pixels, "list": [1, [2]], "dict": {"size": [3]}}

    expected = described.__wrapped__(picture(1))
    for _ in range(3):
        output = described(picture(1))
        assert difference(expected, output) == ""
        output["tensor"].add_(1)
        output["array"][:] = 0
        output["list"][1].append(4)
        output["dict"]["size"].clear()
        output["more"] = 5
    assert (cache.cache_info().misses, cache.cache_info().hits) == (1, 2)


@pytest.mark.parametrize("inference", [False, True])
def test_b48_a_tensor_that_is_rewritten_in_place_is_another_picture(inference: bool, cache: mmcache.Cache) -> None:
    wrapped = mmcache.wrap(small_clip(), cache)
    with torch.inference_mode(inference):
        tensor = torch.zeros(3, 40, 50, dtype=torch.uint8)
        for seed in (1, 2, 1):
            tensor.copy_(torch.from_numpy(np.asarray(picture(seed, 50, 40)).copy()).permute(2, 0, 1))
            expected = small_clip()(tensor.clone(), return_tensors="pt")
            assert difference(expected, wrapped(tensor, return_tensors="pt")) == ""
    assert (cache.cache_info().misses, cache.cache_info().hits) == (2, 1)


def test_b52_ten_thousand_different_pictures_never_take_more_than_the_budget() -> None:
    with mmcache.Cache(1_000_000, name="bounded", max_overhead=1) as cache:

        @mmcache.cached(cache=cache, version="1")
        def processed(pixels: np.ndarray[Any, Any]) -> Any:
            return torch.from_numpy(np.resize(pixels, 5_000))

        for number in range(10_000):
            processed(np.array([number, 7]))
            if number % 100 == 0:
                assert cache.cache_info().currsize <= 1_000_000
        info = cache.cache_info()
        item = torch.from_numpy(np.resize(np.array([1, 7]), 5_000))
        assert info.misses == 10_000
        assert info.items >= 0.8 * 1_000_000 / item.nbytes
        assert info.items * item.nbytes <= info.currsize <= 1_000_000


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.full((64,), number)

    def __len__(self) -> int:
        return 300


@pytest.mark.skipif(not FILES.exists(), reason="counts descriptors in /proc")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_b53_items_that_came_from_a_worker_hold_no_descriptor(cache: mmcache.Cache) -> None:
    @mmcache.cached(cache=cache, version="1")
    def passed(tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    gc.collect()
    before = len(list(FILES.iterdir()))
    for tensor in DataLoader(Numbers(), batch_size=None, num_workers=1, multiprocessing_context="fork"):
        passed(tensor)
    del tensor
    gc.collect()
    assert cache.cache_info().items == 300
    assert len(list(FILES.iterdir())) <= before + 5  # the queue's own, if it is still there


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_b55_a_process_that_read_from_the_cache_takes_nothing_with_it_when_it_ends(cache: mmcache.Cache) -> None:
    segments = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()

    @mmcache.cached(cache=cache, version="1")
    def processed(image: Image.Image) -> Any:
        return torch.from_numpy(np.asarray(image).copy())

    expected = processed(picture(1)).clone()
    child = os.fork()
    if child == 0:
        right = difference(expected, processed(picture(1))) == ""
        cache.clear()
        cache.close()
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert difference(expected, processed(picture(1))) == ""
    assert (cache.cache_info().misses, cache.cache_info().hits) == (1, 1)
    if os.path.isdir("/dev/shm"):
        assert not {name for name in set(os.listdir("/dev/shm")) - segments if "mmcache" in name}


def test_b57_what_is_kept_is_not_pinned_and_counts_its_whole_memory(cache: mmcache.Cache) -> None:
    @mmcache.cached(cache=cache, version="1")
    def row(image: Image.Image) -> Any:
        return torch.zeros(1000, 1000)[3]

    for _ in range(2):
        output = row(picture(1))
        assert not output.is_pinned()
    # A row is kept, and not the matrix that it is a view of.
    assert output.untyped_storage().nbytes() == 4000
    assert 4000 <= cache.cache_info().currsize < 10_000


def test_b58_what_was_made_under_inference_mode_can_be_trained_on(cache: mmcache.Cache) -> None:
    wrapped = mmcache.wrap(small_clip(), cache)
    with torch.inference_mode():
        wrapped(picture(1), return_tensors="pt")
    with counted(transformers.CLIPImageProcessor) as runs:
        pixels = wrapped(picture(1), return_tensors="pt")["pixel_values"]
        assert runs.images == 0
    assert not pixels.is_inference()
    weight = torch.ones(3, 1, 1, requires_grad=True)
    (weight * pixels.mul_(2)).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize("operation", ["get_many", "put"])
def test_b60_a_store_that_breaks_off_is_a_miss(
    operation: str, cache: mmcache.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped = mmcache.wrap(small_clip(), cache)
    expected = wrapped([picture(1), picture(2)], return_tensors="pt")

    def broken(*_: Any, **__: Any) -> Any:
        raise ConnectionResetError("connection reset by peer")

    with monkeypatch.context() as patch:
        patch.setattr(cache.memory, operation, broken)
        for images in ([picture(1), picture(2)], [picture(3), picture(4)]):
            found = wrapped(images, return_tensors="pt")
            assert difference(small_clip()(images, return_tensors="pt"), found) == ""
    assert difference(expected, wrapped([picture(1), picture(2)], return_tensors="pt")) == ""
    assert cache.cache_info().errors > 0
