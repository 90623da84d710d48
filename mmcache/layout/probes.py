"""Probes: small pictures that look like a caller's sources, for trying a processor on them."""

import math
from typing import Any

import numpy as np
from PIL import Image

from mmcache.items.item import is_tensor

# What makes processors treat two sources differently, beside their sizes: kind, mode or dtype, place of the channels.
Trait = tuple[Any, ...]

# Heights and widths, and what is painted: two contents of one size, turned, wide, odd, black, one colour, two that are
# large enough for processors that cut into tiles of 224 to 448 pixels to give several (and different numbers), and one
# with a margin that may be cut off, of the first one's size.
_PICTURES = (
    (48, 64, "noise"), (48, 64, "other noise"), (64, 48, "noise"), (56, 112, "noise"), (37, 30, "noise"),
    (64, 48, "black"), (80, 80, "grey"), (720, 700, "noise"), (380, 1200, "noise"),
    (48, 64, "framed"),
)  # fmt: skip

# A side of so many pixels may be taken for the channels of an array.
_MOST_CHANNELS = 4

# The side of a square of one value: large enough to keep it when the picture is resized to 224 pixels or so.
_SQUARE = 28

# The size of a picture that shows one value only.
_SMALL = (56, 56)

# The batches that a layout is found on: equal sizes, repeats, both orders, unequal sizes, 2 to 5 images, large first.
BATCHES = ((0, 1), (2, 0), (1, 1), (3, 2, 4), (4, 1, 3, 0, 5), (5, 6), (7, 0), (2, 8, 7), (8, 9, 4))

# The one that it is held to afterwards: large pictures among small ones, twice, in an order of its own.
HELD_OUT = (6, 7, 3, 8, 7, 1)

# The same for nested lists: one image each, equal and unequal numbers in both orders, several images in one sample, of
# equal sizes (where nothing is padded, only they make a batch) and of unequal ones, repeats.
NESTED_BATCHES = (
    ((0,),), ((0,), (1,)), ((0, 1), (1, 0)), ((0, 2), (3,)), ((4,), (0, 1)), ((3, 2, 0),), ((5,), (7, 0), (2,)),
)  # fmt: skip
NESTED_HELD_OUT = ((8, 6), (1,), (6, 7, 3), (4,))


def trait_of(source: Any) -> Trait:
    """Return the trait of an image, array or tensor (sources that `fingerprint.kind_of` knows as one of these)."""
    if isinstance(source, Image.Image):
        return image_trait(source.mode, source.width, source.height, transparent="transparency" in source.info)
    kind = "tensor" if is_tensor(source) else "array"
    shape = tuple(source.shape)
    channels = tuple((axis, size) for axis, size in enumerate(shape) if size <= _MOST_CHANNELS)
    return kind, str(source.dtype), len(shape), channels[:2]


def image_trait(mode: str, width: int, height: int, *, transparent: bool = False) -> Trait:
    """Return the trait of an image; sides that may be taken for a number of channels are part of it."""
    return "image", mode, transparent, *[side if side <= _MOST_CHANNELS else 0 for side in (width, height)]


def size_of(source: Any) -> tuple[int, ...]:
    """Return the size of an image (width, height) or the shape of an array or tensor."""
    return tuple(source.size) if isinstance(source, Image.Image) else tuple(source.shape)


def probes_like(source: Any) -> list[Any]:
    """Return ten small sources with the trait of this one."""
    return [_like(source, *picture) for picture in _PICTURES]


def stand_in(source: Any) -> Any:
    """Return a tiny source with the trait of this one, and values in its range: to be kept in its place."""
    return _like(source, 2 * _MOST_CHANNELS, 2 * _MOST_CHANNELS, "noise")


def all_values_like(source: Any) -> Any:
    """Return a source with the trait of this one that shows every value from 0 to 255, each in a large square."""
    return _like(source, 16 * _SQUARE, 16 * _SQUARE, "squares")


def one_value_like(source: Any, value: int) -> Any:
    """Return a small source with the trait of this one that shows one value only."""
    return _like(source, *_SMALL, str(value))


def _like(source: Any, height: int, width: int, content: str) -> Any:
    make = _image_like if isinstance(source, Image.Image) else _array_like
    return make(source, height, width, content)


def _paint(height: int, width: int, content: str, channels: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if content == "black":
        return np.zeros((height, width, channels), np.uint8)
    if content == "grey":
        return np.full((height, width, channels), 119, np.uint8)
    if content.isdigit():
        return np.full((height, width, channels), int(content), np.uint8)
    if content == "squares":
        rows, columns = np.arange(height)[:, None] // _SQUARE, np.arange(width)[None] // _SQUARE
        return np.repeat((rows * 16 + columns).astype(np.uint8)[..., None], channels, axis=2)
    seed = height * 1000 + width + (content == "other noise")
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    if content == "framed":
        inside = np.zeros((height, width, 1), bool)
        inside[height // 4 : -height // 4, width // 4 : -width // 4] = True
        return np.where(inside, noise, np.uint8(255))
    return noise


def _image_like(source: Image.Image, height: int, width: int, content: str) -> Image.Image:
    if source.width <= _MOST_CHANNELS:
        width = source.width
    if source.height <= _MOST_CHANNELS:
        height = source.height
    rgba = Image.fromarray(_paint(height, width, content, 4))
    if source.mode == "P":
        # Of one colour each, a quantized square is not what it was; greys are palettes by themselves.
        grey = content == "squares" or content.isdigit()
        rgb = rgba.convert("RGB")
        image = rgb.convert("L").convert("P") if grey else rgb.quantize(64, method=Image.Quantize.FASTOCTREE)
    else:
        # Modes without a way from RGBA go over RGB; those without any raise, and the trial says so.
        image = rgba if source.mode == "RGBA" else rgba.convert("RGB")
        if source.mode not in ("RGB", "RGBA"):
            image = image.convert("L").convert(source.mode) if source.mode[0] in "IFL1" else image.convert(source.mode)
    if "transparency" in source.info:
        image.info["transparency"] = source.info["transparency"]
    return image


def _array_like(source: Any, height: int, width: int, content: str) -> Any:
    """Paint an array of the same dtype, rank and place of the channels, with values in the range of the source's."""
    shape = list(source.shape)
    small = [axis for axis, size in enumerate(shape) if size <= _MOST_CHANNELS]
    spatial = [axis for axis in range(len(shape)) if axis not in small][-2:]
    for axis, size in zip(spatial, (height, width), strict=False):
        shape[axis] = size
    for axis in range(len(shape) - 3):
        shape[axis] = 2
    count = int(np.prod(shape))
    painted = np.resize(_paint(height, width, content, 4).reshape(-1), count).reshape(shape)
    if is_tensor(source):
        import torch

        tensor = torch.from_numpy(painted)
        if source.dtype.is_floating_point and _in_unit(source):
            tensor = tensor / 255
        return (tensor > 127) if source.dtype is torch.bool else tensor.to(source.dtype)
    if source.dtype.kind == "f" and _in_unit(source):
        return (painted / 255).astype(source.dtype)
    return painted > 127 if source.dtype.kind == "b" else painted.astype(source.dtype)


def _in_unit(source: Any) -> bool:
    return float(source.max()) <= 1 if math.prod(source.shape) else True
