"""Real picture files through loaders and through processors that are given text: plain and cached give the same."""

import base64
import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageOps
from transformers import CLIPImageProcessor, CLIPImageProcessorPil

import mmcache
from mmcache.layout.compare import difference

pytestmark = [
    pytest.mark.corpus,
    # What Pillow says of damaged files, and torchvision of its future; a plain call says it too.
    pytest.mark.filterwarnings("ignore"),
]

# Larger ones cost seconds each, and are no other for a cache.
_MOST_PIXELS = 3_000_000

# Without GIF: of transparent ones torchvision gives what was in its memory before.
_TORCHVISIONS = ("JPEG", "PNG", "WEBP")

SIZES: dict[str, Any] = {"size": {"height": 16, "width": 16}, "do_center_crop": False}


@pytest.fixture(scope="module")
def rows(corpus: Path) -> list[dict[str, str]]:
    with open(corpus / "manifest.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    small = [row for row in rows if int(row["width"] or 1) * int(row["height"] or 1) <= _MOST_PIXELS]
    return [row for row in small if row["category"] != "bomb-or-huge"]


@pytest.fixture
def files(corpus: Path, rows: list[dict[str, str]]) -> list[Path]:
    return [corpus / "files" / row["file"] for row in rows]


@pytest.fixture
def sound_files(corpus: Path, rows: list[dict[str, str]]) -> list[Path]:
    """Those that torchvision's decoders may be given: they end the process on some damaged PNG files."""
    sound = [row for row in rows if row["decodes"] == "ok" and row["category"] != "truncated-corrupt"]
    return [corpus / "files" / row["file"] for row in sound if row["format"] in _TORCHVISIONS]


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[mmcache.Cache]:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    with mmcache.Cache("512MiB", name="corpus", verify_rate=0) as fresh:
        yield fresh


def outcome(function: Callable[[Any], Any], source: Any) -> Any:
    """Return what a function gives, or the type and text of its error without addresses."""
    try:
        return function(source)
    except Exception as error:  # noqa: BLE001 - it is compared
        return type(error).__name__, re.sub("0x[0-9a-f]+", "0x", str(error))


def different(plain: Callable[[Any], Any], cached: Callable[[Any], Any], sources: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name, source in sources.items():
        expected = outcome(plain, source)
        for turn in ("first", "second"):
            found[f"{name}, {turn}"] = difference(expected, outcome(cached, source))
    return {name: text for name, text in found.items() if text}


def loader(path: Any) -> Image.Image:
    with Image.open(path) as image:
        return ImageOps.exif_transpose(image)


def resized(content: dict[str, Any]) -> Image.Image:
    with Image.open(content["image"].removeprefix("file://")) as image:
        return ImageOps.exif_transpose(image).convert("RGB").resize((40, 24))


def test_loaders_give_every_file_as_the_plain_function_does(cache: mmcache.Cache, files: list[Path]) -> None:
    assert len(files) > 120
    assert different(loader, mmcache.cached(cache=cache)(loader), {path.name: path for path in files}) == {}
    contents = {path.name: {"type": "image", "image": f"file://{path}"} for path in files}
    assert different(resized, mmcache.cached(cache=cache)(resized), contents) == {}
    info = cache.cache_info()
    assert info.errors == 0
    assert info.hits > len(files)
    # Nothing is kept from being stored but what the plain call cannot load, and what cannot be a constant.
    assert {reason for reason in info.bypass_reasons if "in its info" not in reason and "EXIF" not in reason} == set()


def hits_on(cache: mmcache.Cache, plain: Any, files: list[Path]) -> int:
    """Assert that every file, some of them as base64, is given as the plain processor gives it; return the hits."""
    wrapped = mmcache.wrap(plain, cache)
    sources = {path.name: str(path) for path in files}
    sources |= {f"{path.name} as text": base64.b64encode(path.read_bytes()).decode() for path in files[::5]}
    found = different(
        lambda text: plain(text, return_tensors="pt"), lambda text: wrapped(text, return_tensors="pt"), sources
    )
    assert found == {}
    info = cache.cache_info()
    assert info.errors == 0
    assert set(info.bypass_reasons) <= {"an image given as text that cannot be loaded"}
    return info.hits


def test_pil_processors_give_every_file_as_the_plain_one_does(cache: mmcache.Cache, files: list[Path]) -> None:
    assert hits_on(cache, CLIPImageProcessorPil(**SIZES), files) > len(files)


def test_torchvision_processors_give_every_sound_file_as_the_plain_one_does(
    cache: mmcache.Cache, sound_files: list[Path]
) -> None:
    assert hits_on(cache, CLIPImageProcessor(**SIZES), sound_files) > len(sound_files) > 60
