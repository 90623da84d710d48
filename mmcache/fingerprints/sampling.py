"""Samples: a few elements of a source, to tell at next to no cost that it has not been seen before.

Equal sources have equal samples, nearly always; unequal ones may have equal ones too. So a sample says nothing about
what an image is: it only decides whether finding that out may pay.
"""

import os
from collections.abc import Sequence
from typing import Any

from mmcache.fingerprints.loading import locked

# Where elements are taken, as fractions of 2**16 of a width and a height: few, since each costs a cache miss, and
# spread without order, so that they do not all fall on margins.
_PLACES = (
    (5821, 31_217), (58_213, 12_007), (33_391, 49_801), (19_403, 7_919), (47_111, 61_403), (27_017, 24_001),
    (61_007, 38_113), (12_511, 56_003), (38_011, 17_377), (8_017, 43_037), (53_003, 29_009), (24_593, 36_007),
)  # fmt: skip


def sample(source: Any) -> int | None:
    """Return a number of 64 bits for a source; None where nothing can be said without more work."""
    try:
        if isinstance(source, str | bytes):
            return hash((len(source), source[:: len(source) // len(_PLACES) + 1]))
        if hasattr(source, "getpixel"):
            return _sample_of_image(source)
        return _sample_of_array(source)
    except (AttributeError, IndexError, OSError, RuntimeError, TypeError, ValueError):
        return None


def samples_of(images: Sequence[Any]) -> list[int]:
    """Return a sample of each image in a list, which may be nested, of those that one can be taken of."""
    flat = [i for image in images for i in (image if isinstance(image, list | tuple) else [image])]
    return [taken for image in flat if (taken := sample(image)) is not None]


def _sample_of_image(image: Any) -> int | None:
    width, height = image.size
    if getattr(image, "tile", None):  # loading it is the business of whoever wants its pixels, and how
        return _sample_of_file(image)
    pixels = image.load()
    return hash((image.mode, width, height, *[pixels[x * width >> 16, y * height >> 16] for x, y in _PLACES]))


def _sample_of_file(image: Any) -> int | None:
    """Take a few bytes of the file that an image is still to be decoded from, and leave it at its position."""
    with locked(image):
        position = image.fp.tell()
        try:
            length = image.fp.seek(0, os.SEEK_END)
            taken = []
            for place, _ in _PLACES:
                image.fp.seek(place * length >> 16)
                taken.append(image.fp.read(8))
        finally:
            image.fp.seek(position)
    return hash((image.mode, image.size, length, *taken))


def _sample_of_array(array: Any) -> int:
    """Take elements along the two largest dims of an array or tensor, all of the others."""
    rows, columns = sorted(range(array.ndim), key=lambda dim: array.shape[dim])[-2:]
    taken = []
    for x, y in _PLACES:
        place: list[Any] = [slice(None)] * array.ndim
        place[rows], place[columns] = x * array.shape[rows] >> 16, y * array.shape[columns] >> 16
        taken.append(array[tuple(place)])
    return hash((str(array.dtype), tuple(array.shape), str([element.tolist() for element in taken])))
