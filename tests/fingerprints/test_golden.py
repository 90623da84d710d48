"""Fingerprints that must never change: people store them.

A difference here is a new scheme: raise ``SCHEME`` in ``mmcache/fingerprint/sources.py``, say so in the changelog, and
write the file anew with ``python -m tests.fingerprints.test_golden``.
"""

import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image

from mmcache.fingerprints import SCHEME, encode, fingerprint

GOLDEN = Path(__file__).parent / "golden.json"


def stream(n_bytes: int) -> bytes:
    """Bytes that no library decides: a linear congruential generator."""
    state, out = 12345, bytearray()
    for _ in range(n_bytes):
        state = (1103515245 * state + 12345) % 2**31
        out.append(state >> 16 & 255)
    return bytes(out)


def image(mode: str, size: tuple[int, int] = (9, 5)) -> Image.Image:
    return Image.frombytes(mode, size, stream(len(Image.new(mode, size).tobytes())))


def array(dtype: str, *shape: int) -> "numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.generic]]":
    made = numpy.frombuffer(stream(int(numpy.prod(shape)) * numpy.dtype(dtype).itemsize), dtype).reshape(shape)
    return made.copy()


def tensor(dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(array("|u1", 3, 4, 5)).to(dtype)


def palette(transparency: object = None) -> Image.Image:
    made = image("P")
    made.putpalette(stream(768))
    if transparency is not None:
        made.info["transparency"] = transparency
    return made


def file(format_: str, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    image(mode).save(buffer, format_)
    return buffer.getvalue()


MODES = ["1", "L", "P", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "LA", "PA", "RGBa", "La"]
MODES += ["I;16", "I;16L", "I;16B"]
DTYPES = ["|u1", "|i1", "|b1", "<u2", ">u2", "<i8", "<f2", "<f4", "<f8", "<c8"]
TENSORS = [torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32]

ENCODED = [None, True, -1, 2**70, 1.5, 1j, "é", b"b", (), {"b": 1, "a": {2}}, numpy.float32(1), torch.uint8]

RECIPES: dict[str, Callable[[], object]] = {
    **{f"image {mode}": partial(image, mode) for mode in MODES},
    **{f"array {dtype}": partial(array, dtype, 3, 4, 3) for dtype in DTYPES},
    **{f"tensor {dtype}": partial(tensor, dtype) for dtype in TENSORS},
    "image RGB above one block": lambda: Image.new("RGB", (2100, 2100), (1, 2, 3)),
    "image RGB of no pixels": lambda: Image.new("RGB", (0, 3)),
    "palette": palette,
    "palette, transparent index": lambda: palette(7),
    "palette, transparent table": lambda: palette(bytes(range(16))),
    "array of no dimension": lambda: array("|u1"),
    "array, a stride backwards": lambda: array("|u1", 4, 4, 3)[::-1],
    "file PNG": lambda: file("PNG"),
    "file BMP": lambda: file("BMP"),
    "file PNG, grey": lambda: file("PNG", "L"),
    "BytesIO PNG": lambda: io.BytesIO(file("PNG")),
    "list": lambda: [image("RGB"), file("PNG")],
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_fingerprint_is_what_it_always_was(recipe: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    assert golden["scheme"] == SCHEME, "a new scheme: write golden.json anew"
    assert str(fingerprint(RECIPES[recipe]())) == golden["fingerprints"][recipe], "a change needs a new scheme version"


def test_every_golden_fingerprint_has_its_recipe() -> None:
    golden = json.loads(GOLDEN.read_text())["fingerprints"]
    assert list(golden) == list(RECIPES)
    same_picture = {golden["file PNG"], golden["file BMP"], golden["BytesIO PNG"]}
    assert len(same_picture) == 1
    assert len(set(golden.values())) == len(golden) - 2


def test_the_encoding_itself_is_what_it_always_was() -> None:
    assert encode(ENCODED).hex() == json.loads(GOLDEN.read_text())["encoding"]


if __name__ == "__main__":
    fingerprints = {recipe: str(fingerprint(make())) for recipe, make in RECIPES.items()}
    content = {"scheme": SCHEME, "encoding": encode(ENCODED).hex(), "fingerprints": fingerprints}
    GOLDEN.write_text(json.dumps(content, indent=1) + "\n")
