"""Every mode of Pillow, and arrays and tensors of every dtype and layout: what the plain call gives, or raises."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import mmcache
from mmcache.layout.compare import difference
from tests.pictures import picture

CROP = {"height": 28, "width": 28}
EDGE = {"shortest_edge": 28}
OPTIONS: dict[str, dict[str, Any]] = {
    "CLIPImageProcessor": {"size": EDGE, "crop_size": CROP},
    "Qwen2VLImageProcessor": {"size": {"shortest_edge": 784, "longest_edge": 7840}},
    "LlavaNextImageProcessor": {
        "size": EDGE, "crop_size": CROP, "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]],
    },
}  # fmt: skip
BACKENDS = ("", "Pil")

HEIGHT, WIDTH = 40, 50


def noise(seed: int, *shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, shape or (HEIGHT, WIDTH, 3), np.uint8)


def in_mode(mode: str) -> Callable[[int], Image.Image]:
    def made(seed: int) -> Image.Image:
        rgb = picture(seed, WIDTH, HEIGHT)
        if mode == "RGBA":
            return Image.fromarray(noise(seed, HEIGHT, WIDTH, 4))
        if mode in ("LA", "PA", "La", "RGBa"):
            with_alpha = Image.fromarray(noise(seed, HEIGHT, WIDTH, 4)).convert({"RGBa": "RGBA"}.get(mode, "LA"))
            return with_alpha if with_alpha.mode == mode else with_alpha.convert(mode)
        if mode.startswith("I;16"):
            grey = (noise(seed, HEIGHT, WIDTH).astype(np.uint16) << 8) + noise(seed + 1, HEIGHT, WIDTH)
            return Image.frombytes(mode, (WIDTH, HEIGHT), grey.astype(">u2" if mode == "I;16B" else "<u2").tobytes())
        if mode == "LAB":
            return Image.frombytes("LAB", (WIDTH, HEIGHT), noise(seed).tobytes())
        if mode in ("I", "F"):
            return Image.fromarray(noise(seed, HEIGHT, WIDTH).astype(np.int32 if mode == "I" else np.float32))
        return rgb.quantize(32) if mode == "P" else rgb.convert(mode)

    return made


def with_transparency(mode: str, value: int | bytes | tuple[int, int, int]) -> Callable[[int], Image.Image]:
    def made(seed: int) -> Image.Image:
        image = in_mode(mode)(seed)
        image.info["transparency"] = value
        return image

    return made


def array_of(dtype: str) -> Callable[[int], Any]:
    return lambda seed: noise(seed).astype(dtype)


def tensor_of(dtype: torch.dtype) -> Callable[[int], Any]:
    return lambda seed: torch.from_numpy(noise(seed, 3, HEIGHT, WIDTH)).to(dtype)


MODES: dict[str, Callable[[int], Image.Image]] = {
    **{
        mode: in_mode(mode)
        for mode in (
            "RGB", "L", "LA", "La", "P", "PA", "RGBA", "RGBa", "RGBX", "CMYK", "I", "I;16", "I;16L", "I;16B", "F", "1",
            "YCbCr", "LAB", "HSV",
        )
    },
    "P with an index that is transparent": with_transparency("P", 3),
    "P with index 0 that is transparent": with_transparency("P", 0),
    "P with a table of alphas": with_transparency("P", bytes(range(0, 160, 5))),
    "RGB with a colour that is transparent": with_transparency("RGB", (7, 8, 9)),
    "L with a grey that is transparent": with_transparency("L", 9),
}  # fmt: skip

ARRAYS: dict[str, Callable[[int], Any]] = {
    **{
        str(np.dtype(dtype)): array_of(dtype)
        for dtype in (
            "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "?", "c8", ">u2", ">f4", "O",
        )
    },
    "float32 from 0 to 1": lambda seed: noise(seed).astype(np.float32) / 255,
    "float64 with NaN and infinities": lambda seed: np.where(noise(seed) < 9, np.nan, noise(seed) / 0.0 + 1.0),
    "channels first": lambda seed: noise(seed, 3, HEIGHT, WIDTH),
    "no channels": lambda seed: noise(seed, HEIGHT, WIDTH),
    "one channel": lambda seed: noise(seed, HEIGHT, WIDTH, 1),
    "two channels": lambda seed: noise(seed, HEIGHT, WIDTH, 2),
    "four channels": lambda seed: noise(seed, HEIGHT, WIDTH, 4),
    "five channels": lambda seed: noise(seed, HEIGHT, WIDTH, 5),
    "a batch": lambda seed: noise(seed, 2, HEIGHT, WIDTH, 3),
    "Fortran order": lambda seed: np.asfortranarray(noise(seed)),
    "mirrored": lambda seed: noise(seed)[:, ::-1],
    "every second row": lambda seed: noise(seed, 2 * HEIGHT, WIDTH, 3)[::2],
    "read only": lambda seed: np.asarray(picture(seed, WIDTH, HEIGHT)),
    "three high": lambda seed: noise(seed, 3, WIDTH, 3),
    "one pixel": lambda seed: noise(seed, 1, 1, 3),
    "one column": lambda seed: noise(seed, HEIGHT, 1, 3),
    "one column of negative stride": lambda seed: noise(seed, HEIGHT, 1, 3)[:, ::-1],
    "no pixels": lambda seed: noise(seed, 0, WIDTH, 3),
    "one dimension": lambda seed: noise(seed, 50),
}  # fmt: skip

TENSORS: dict[str, Callable[[int], Any]] = {
    **{
        str(dtype): tensor_of(dtype)
        for dtype in (
            torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.float16,
            torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.complex64,
        )
    },
    "float32 from 0 to 1": lambda seed: torch.from_numpy(noise(seed, 3, HEIGHT, WIDTH)) / 255,
    "channels last": lambda seed: torch.from_numpy(noise(seed)),
    "permuted": lambda seed: torch.from_numpy(noise(seed)).permute(2, 0, 1),
    "no channels": lambda seed: torch.from_numpy(noise(seed, HEIGHT, WIDTH)),
    "one channel": lambda seed: torch.from_numpy(noise(seed, 1, HEIGHT, WIDTH)),
    "a batch": lambda seed: torch.from_numpy(noise(seed, 2, 3, HEIGHT, WIDTH)),
    "expanded": lambda seed: torch.from_numpy(noise(seed, 1, HEIGHT, WIDTH)).expand(3, HEIGHT, WIDTH),
    "every second row": lambda seed: torch.from_numpy(noise(seed, 3, 2 * HEIGHT, WIDTH))[:, ::2],
    "followed by autograd": lambda seed: torch.from_numpy(noise(seed, 3, HEIGHT, WIDTH)).float().requires_grad_(),
    "sparse": lambda seed: torch.from_numpy(noise(seed, 3, HEIGHT, WIDTH)).float().to_sparse(),
    "on meta": lambda seed: torch.empty(3, HEIGHT, WIDTH, device="meta"),
    "no pixels": lambda seed: torch.empty(3, 0, WIDTH),
}  # fmt: skip


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[mmcache.Cache]:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    with mmcache.Cache("64MiB", name="modes", verify_rate=0, max_overhead=1) as cache:
        yield cache


def outcome(processor: Any, images: Any) -> Any:
    """Return what a call gives; an exception as its type and message."""
    try:
        return processor(images, return_tensors="pt")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is compared with what the plain call raises
        return type(error), str(error)


def assert_as_plain(name: str, cache: mmcache.Cache, make: Callable[[int], Any]) -> bool:
    """Compare calls of a wrapped processor with plain ones, cold and warm; return whether they ran and were served."""
    plain = getattr(transformers, name)(**OPTIONS[name.removesuffix("Pil")])
    wrapped = mmcache.wrap(plain, cache)
    ran = False
    for images in (lambda: make(1), lambda: [make(2)], lambda: [make(1), make(3), make(1)], lambda: make(1)):
        expected = outcome(plain, images())
        for _ in range(2):
            found = outcome(wrapped, images())
            if isinstance(expected, tuple):
                assert found == expected
            else:
                assert difference(expected, found) == ""
                ran = True
    info = cache.cache_info()
    assert info.errors == 0
    assert not ran or info.hits or info.bypass_reasons, "neither served nor bypassed"
    return ran and info.hits > 0


# Served by all six, so that none of these tests passes by leaving everything to the plain processor.
SURELY_SERVED = {
    "RGB", "L", "LA", "P", "RGBA", "CMYK", "1", "YCbCr", "HSV", "RGB with a colour that is transparent", "uint8",
    "channels first", "Fortran order", "torch.uint8", "float32 from 0 to 1", "permuted",
}  # fmt: skip


def sampled(kinds: Iterable[str]) -> list[tuple[str, str]]:
    """Return processors and kinds: each kind with one family on both backends, with all if ``MMCACHE_TEST_ALL`` is set."""
    families = itertools.cycle([name] for name in OPTIONS)
    return [
        (name + backend, kind)
        for kind, rotated in zip(kinds, families, strict=False)
        for name in (OPTIONS if os.environ.get("MMCACHE_TEST_ALL") else rotated)
        for backend in BACKENDS
    ]


@pytest.mark.filterwarnings("ignore")  # what the processor warns of is its own, and the same in both calls
@pytest.mark.parametrize(("name", "kind"), sampled(MODES))
def test_images_of_every_mode_give_or_raise_what_they_do_without_the_cache(
    name: str, kind: str, cache: mmcache.Cache
) -> None:
    served = assert_as_plain(name, cache, MODES[kind])
    assert served or kind not in SURELY_SERVED, cache.cache_info().bypass_reasons


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "kind"), sampled(ARRAYS))
def test_arrays_of_every_dtype_and_layout_give_or_raise_what_they_do_without_the_cache(
    name: str, kind: str, cache: mmcache.Cache
) -> None:
    served = assert_as_plain(name, cache, ARRAYS[kind])
    assert served or kind not in SURELY_SERVED, cache.cache_info().bypass_reasons


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "kind"), sampled(TENSORS))
def test_tensors_of_every_dtype_and_layout_give_or_raise_what_they_do_without_the_cache(
    name: str, kind: str, cache: mmcache.Cache
) -> None:
    served = assert_as_plain(name, cache, TENSORS[kind])
    assert served or kind not in SURELY_SERVED, cache.cache_info().bypass_reasons
