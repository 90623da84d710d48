"""``datasets.map`` with a wrapped processor: right rows, few runs, and a fingerprint that calls do not change."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import transformers

import mmcache
from tests.pictures import counted, picture

with warnings.catch_warnings():
    # What this library and pandas warn of while they are imported is theirs.
    warnings.simplefilter("ignore")
    datasets = pytest.importorskip("datasets")

SIZE = {"shortest_edge": 28}
CROP = {"height": 28, "width": 28}
PICTURES = [picture(51), picture(52, 64, 96), picture(53, 40, 40)]

# A data set of questions: each picture stands in it several times.
ORDER = [0, 1, 0, 2, 2, 1, 0, 1, 2, 0, 0, 1]


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[mmcache.Cache]:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    with mmcache.Cache("64MiB", name="datasets", verify_rate=0, max_overhead=1) as cache:
        yield cache


@pytest.fixture
def rows() -> Any:
    made = datasets.Dataset.from_dict({"image": [PICTURES[number] for number in ORDER]})
    return made.cast_column("image", datasets.Image())


def processing(processor: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def process(batch: dict[str, Any]) -> dict[str, Any]:
        return {"pixel_values": list(processor(batch["image"], return_tensors="np")["pixel_values"])}

    return process


def pixels(mapped: Any) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = mapped.with_format("numpy")["pixel_values"][:]
    return values


@pytest.mark.parametrize("backend", ["", "Pil"], ids=["torchvision", "pil"])
def test_map_gives_the_plain_rows_and_processes_each_picture_once(
    backend: str, cache: mmcache.Cache, rows: Any
) -> None:
    plain = getattr(transformers, "CLIPImageProcessor" + backend)(size=SIZE, crop_size=CROP)
    wrapped = mmcache.wrap(plain, cache)
    wrapped([picture(98), picture(99)], return_tensors="np")  # the trial runs here
    options: dict[str, Any] = {
        "batched": True,
        "batch_size": 4,
        "remove_columns": "image",
        "load_from_cache_file": False,
    }
    with counted(type(plain)) as runs:
        expected = pixels(rows.map(processing(plain), **options))
        assert runs.images == len(ORDER)
        found = pixels(rows.map(processing(wrapped), **options))
        assert runs.images == len(ORDER) + len(PICTURES)
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()
    assert cache.cache_info().bypassed == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_map_in_two_processes_gives_the_plain_rows(cache: mmcache.Cache, rows: Any) -> None:
    plain = transformers.CLIPImageProcessorPil(size=SIZE, crop_size=CROP)
    options: dict[str, Any] = {
        "batched": True,
        "batch_size": 3,
        "remove_columns": "image",
        "load_from_cache_file": False,
    }
    expected = pixels(rows.map(processing(plain), **options))
    found = pixels(rows.map(processing(mmcache.wrap(plain, cache)), num_proc=2, **options))
    assert found.tobytes() == expected.tobytes()


def test_calls_and_wrapping_again_change_no_fingerprint(cache: mmcache.Cache) -> None:
    plain = transformers.CLIPImageProcessor(size=SIZE, crop_size=CROP)
    wrapped = mmcache.wrap(plain, cache)
    before = datasets.fingerprint.Hasher.hash(processing(wrapped))
    for images in ([picture(1), picture(2)], picture(3)):
        wrapped(images, return_tensors="np")
    assert datasets.fingerprint.Hasher.hash(processing(wrapped)) == before
    assert datasets.fingerprint.Hasher.hash(processing(mmcache.wrap(plain, cache))) == before
    other = transformers.CLIPImageProcessor(size={"shortest_edge": 30}, crop_size=CROP)
    assert datasets.fingerprint.Hasher.hash(processing(mmcache.wrap(other, cache))) != before


@pytest.mark.parametrize("secret", [None, "of one tenant"])
@pytest.mark.parametrize("backend", ["", "Pil"], ids=["torchvision", "pil"])
def test_the_fingerprint_is_that_of_the_plain_processor(backend: str, secret: str | None) -> None:
    plain = getattr(transformers, "CLIPImageProcessor" + backend)(size=SIZE, crop_size=CROP)
    hashed = datasets.fingerprint.Hasher.hash
    with mmcache.Cache("64MiB", name="fingerprints", secret=secret) as cache:
        wrapped = mmcache.wrap(plain, cache)
        wrapped([picture(1), picture(2)], return_tensors="np")
        assert hashed(wrapped) == hashed(plain)
        assert hashed(processing(wrapped)) == hashed(processing(plain))
        assert hashed([wrapped, wrapped, {"again": wrapped}]) == hashed([plain, plain, {"again": plain}])
        assert hashed(processing(wrapped)) != hashed(
            processing(type(plain)(size={"shortest_edge": 30}, crop_size=CROP))
        )


def test_the_fingerprint_of_a_whole_processor_is_that_of_the_plain_one(tiny_qwen2_vl: tuple[Any, Any]) -> None:
    plain, _ = tiny_qwen2_vl
    with mmcache.Cache("64MiB", name="fingerprints") as cache:
        wrapped = mmcache.wrap(plain, cache)
        assert datasets.fingerprint.Hasher.hash(processing(wrapped)) == datasets.fingerprint.Hasher.hash(
            processing(plain)
        )
