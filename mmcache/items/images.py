"""PIL images in items: what loaders give.

Only ``PIL.Image.Image`` itself, which has its pixels in memory: the classes of opened files hold a file and a decoder,
and what they give depends on when they are asked.
"""

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

from mmcache.items.storable import CONSTANTS, NotStorable

if TYPE_CHECKING:
    from PIL.Image import Image

# Attributes that an image is born with, and what ``save`` leaves behind for itself.
_OWN = frozenset({"_im", "_mode", "_size", "palette", "info", "readonly", "_readonly", "_exif"})
_LEFT_BY_SAVE = frozenset({"encoderconfig", "_default_encoderinfo"})

# Bytes a pixel in Pillow's memory; all other modes have four.
_PIXEL_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}

# The address of each row.
_ROW_BYTES = 8


def is_image(value: Any) -> "TypeGuard[Image]":
    """Whether this is a PIL image of any class; asks without importing Pillow."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def check_image(image: "Image") -> None:
    """Raise `NotStorable` for an image that a copy of its pixels, palette and ``info`` would not be equal to."""
    from PIL.Image import Image
    from PIL.ImagePalette import ImagePalette

    kind = type(image)
    if kind is not Image:
        raise NotStorable(f"an output image of {kind.__module__}.{kind.__qualname__}, not loaded and closed (copy it)")
    named = vars(image).keys() - _OWN - _LEFT_BY_SAVE
    if named - ({"encoderinfo"} if vars(image).get("encoderinfo") == {} else set()):
        raise NotStorable(f"an output image with attributes of its own: {', '.join(sorted(named))}")
    if type(image.palette) not in ((ImagePalette,) if image.mode in ("P", "PA") else (type(None),)):
        raise NotStorable(f"an output image of mode {image.mode} with a {type(image.palette).__name__} as its palette")
    try:
        image.getim()  # loads a palette that was just put
    except Exception as error:  # noqa: BLE001 - such as closed: whatever it is, its caller has the image
        raise NotStorable(f"an output image without pixels: {error}") from None
    _check_exif(image)


def _check_exif(image: "Image") -> None:
    """Raise `NotStorable` if the EXIF that somebody has read (and changed) is not what ``info`` says."""
    if getattr(image, "_exif", None) is None:
        return
    try:
        fresh = image.copy().getexif()
        same = dict(image.getexif()) == dict(fresh) and image.getexif().tobytes() == fresh.tobytes()
    except Exception:  # noqa: BLE001 - EXIF that cannot be written
        same = False
    if not same:
        raise NotStorable("an output image whose EXIF was changed in place")


def copy_image(image: "Image") -> "Image":
    """Return an image with memory of its own for all that can be written to."""
    twin = image.copy()
    twin.info = _own(image.info)
    return twin


def image_bytes(image: "Image") -> int:
    """Return what the pixels of an image take in Pillow's memory, and its ``info``."""
    pixels = image.height * (image.width * _PIXEL_BYTES.get(image.mode, 4) + _ROW_BYTES)
    return pixels + _deep_bytes(image.info)


def _deep_bytes(value: Any) -> int:
    members = [*value, *value.values()] if type(value) is dict else value if type(value) in (list, tuple) else ()
    return sys.getsizeof(value) + sum(map(_deep_bytes, members))


def _own(value: Any) -> Any:
    """Copy a value of ``info``; raise `NotStorable` for one that is not made of constants."""
    from PIL.PngImagePlugin import iTXt
    from PIL.TiffImagePlugin import IFDRational

    kind = type(value)
    if kind in CONSTANTS or kind is IFDRational:
        return value
    if kind is iTXt:
        return iTXt(str(value), value.lang, value.tkey)
    if kind is dict:
        return {_own(key): _own(member) for key, member in value.items()}
    if kind in (list, tuple):
        return kind(map(_own, value))
    raise NotStorable(f"an output image with a {kind.__module__}.{kind.__qualname__} in its info")
