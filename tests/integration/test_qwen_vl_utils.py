"""The loader of ``qwen_vl_utils``: decorated or under `install`, with pictures and errors as the plain one gives them."""

import base64
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Qwen2VLImageProcessor

import mmcache
from mmcache.layout.compare import difference
from tests.pictures import counted, picture

with warnings.catch_warnings():
    # What this library and torchvision warn of while they are imported is theirs.
    warnings.simplefilter("ignore")
    qwen_vl_utils = pytest.importorskip("qwen_vl_utils")
    from qwen_vl_utils import vision_process

plain = vision_process.fetch_image


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[mmcache.Cache]:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    with mmcache.Cache("256MiB", name="qwen", verify_rate=0, max_overhead=1) as fresh:
        yield fresh


def encoded(seed: int = 1, kind: str = "JPEG") -> bytes:
    file = io.BytesIO()
    picture(seed, 320, 200).save(file, kind)
    return file.getvalue()


def url_of(seed: int = 1) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(encoded(seed)).decode()}"


def message(*contents: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*contents, {"type": "text", "text": "What is it?"}]}]


def counts(cache: mmcache.Cache) -> tuple[int, int, int, int]:
    info = cache.cache_info()
    return info.misses, info.hits, info.bypassed, info.errors


def contents(folder: Path) -> dict[str, dict[str, Any]]:
    (folder / "a.png").write_bytes(encoded(kind="PNG"))
    alpha = picture(1).convert("RGBA")
    alpha.putalpha(picture(2).convert("L"))
    return {
        "data url": {"type": "image", "image": url_of()},
        "image_url": {"type": "image_url", "image_url": url_of()},
        "file url": {"type": "image", "image": f"file://{folder / 'a.png'}"},
        "path": {"type": "image", "image": str(folder / "a.png")},
        "image": {"type": "image", "image": picture(1)},
        "alpha": {"type": "image", "image": alpha},
        "limits": {"type": "image", "image": url_of(), "min_pixels": 784, "max_pixels": 20_000},
        "size": {"type": "image", "image": url_of(), "resized_height": 56, "resized_width": 84},
    }


@pytest.mark.parametrize("name", ["data url", "image_url", "file url", "path", "image", "alpha", "limits", "size"])
def test_a_decorated_loader_gives_what_the_plain_one_gives(cache: mmcache.Cache, tmp_path: Path, name: str) -> None:
    content = contents(tmp_path)[name]
    cached = mmcache.cached(cache=cache)(plain)
    expected = plain(content)
    for _ in range(3):
        given = cached(content)
        assert difference(expected, given) == ""
        given.paste(0, (0, 0, 9, 9))
    assert counts(cache) == (1, 2, 0, 0)
    assert difference(plain(content, image_patch_size=16), cached(content, image_patch_size=16)) == ""
    assert counts(cache) == (2, 2, 0, 0)


def test_limits_of_the_module_are_part_of_the_key(cache: mmcache.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = mmcache.cached(cache=cache)(plain)
    before = cached({"image": url_of()}).size
    monkeypatch.setattr(vision_process, "IMAGE_MAX_TOKEN_NUM", 16)
    assert cached({"image": url_of()}).size == plain({"image": url_of()}).size != before


@pytest.mark.parametrize(
    "content",
    [
        {"type": "image", "image": f"data:image/jpeg;base64,{base64.b64encode(encoded()[:-300]).decode()}"},
        {"type": "image", "image": "data:image/jpeg;base64,AAAA"},
        {"type": "image", "image": "data:image/jpeg,no base64"},
        {"type": "image", "image": "/absent.png"},
        {"type": "image", "image": url_of(), "min_pixels": 9, "max_pixels": 3},
        {"type": "image", "image": picture(1, 900, 2)},
        {"type": "image", "image": None},
        {"type": "image"},
    ],
    ids=["truncated", "no picture", "no base64", "absent", "limits", "ratio", "none", "nothing"],
)
def test_errors_are_those_of_the_plain_loader(cache: mmcache.Cache, content: dict[str, Any]) -> None:
    with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever it is
        plain(content)
    cached = mmcache.cached(cache=cache)(plain)
    for _ in range(2):
        with pytest.raises(expected.type) as raised:
            cached(content)
        assert str(raised.value).partition(" object at ")[0] == str(expected.value).partition(" object at ")[0]
    assert (cache.cache_info().items, cache.cache_info().errors) == (0, 0)


def test_messages_hit_under_an_installation(cache: mmcache.Cache, decoded_files: list[object]) -> None:
    conversation = message({"type": "image", "image": url_of(1)}, {"type": "image", "image": url_of(2)})
    expected = vision_process.process_vision_info(conversation)
    decoded_files.clear()
    with mmcache.install(cache):
        assert difference(expected, qwen_vl_utils.process_vision_info(conversation)) == ""
        decoded_files.clear()
        assert difference(expected, qwen_vl_utils.process_vision_info(conversation)) == ""
        assert decoded_files == []
    assert counts(cache) == (2, 2, 0, 0)
    assert qwen_vl_utils.fetch_image is vision_process.fetch_image is plain


def test_frames_of_a_video_come_as_ever(cache: mmcache.Cache) -> None:
    frames = {"type": "video", "video": [picture(seed, 112, 112) for seed in (1, 2, 3, 4)], "sample_fps": 2.0}
    expected = vision_process.process_vision_info(message(frames))[1][0]
    with mmcache.install(cache):
        for _ in range(2):
            given = vision_process.process_vision_info(message(frames))[1][0]
            assert np.array_equal(expected.numpy(), given.numpy())
    assert cache.cache_info().errors == 0


def test_the_path_of_an_evaluation_decodes_and_processes_a_picture_once(
    cache: mmcache.Cache, decoded_files: list[object]
) -> None:
    processor = Qwen2VLImageProcessor(size={"shortest_edge": 3136, "longest_edge": 100_352})
    photo = picture(5, 640, 360)

    def asked(fetch: Any, process: Any) -> Any:
        file = io.BytesIO()
        photo.save(file, "JPEG")
        url = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
        return process(images=[fetch({"type": "image", "image": url})], return_tensors="pt")

    expected = asked(plain, processor)
    cached, wrapped = mmcache.cached(cache=cache)(plain), mmcache.wrap(processor, cache)
    asked(cached, wrapped)
    decoded_files.clear()
    with counted(Qwen2VLImageProcessor) as runs:
        for _ in range(3):
            assert difference(expected, asked(cached, wrapped)) == ""
    assert (decoded_files, runs.images) == ([], 0)
    assert counts(cache) == (2, 6, 0, 0)
