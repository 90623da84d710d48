"""What a function may read of a PIL image besides its pixels.

Processors read nothing of it. A function of the user's may turn an image as EXIF says, or write its resolution into a
prompt, so for functions all of it counts.
"""

import io
import os
from enum import Enum
from typing import TYPE_CHECKING

from mmcache.errors import NotEncodable, UnsupportedSource
from mmcache.fingerprints.encoding import encode
from mmcache.fingerprints.loading import locked

if TYPE_CHECKING:
    from PIL.Image import Exif, Image

# Directories of their own inside EXIF: of the camera, of the place, of interoperability.
_SUB_DIRECTORIES = (0x8769, 0x8825, 0xA005)


# Attributes of Pillow's own that are counted elsewhere or that no function's output can depend on.
_MACHINERY = frozenset(
    {
        "_im", "im", "_mode", "_size", "palette", "info", "readonly", "_readonly", "pyaccess", "_exif", "fp", "_fp",
        "_exclusive_fp", "_close_exclusive_fp_after_loading", "encoderinfo", "_default_encoderinfo", "encoderconfig",
        "map", "png",
    }
)  # fmt: skip


class _PillowType(Enum):
    """Marks values of Pillow's own types; an enum, since no metadata can hold this one."""

    RATIONAL = "IFDRational"
    TEXT = "iTXt"


def encode_metadata(image: "Image", *, lazy: bool = False) -> bytes:
    """Encode an image's class, format, all of ``info``, EXIF with its directories, and its other attributes.

    The EXIF of a ``lazy`` image is left in its file, unless somebody has read it already: reading it may load a PNG.

    Raises ``NotEncodable`` for an entry that cannot be hashed exactly, and ``UnsupportedSource`` for an image of
    several frames, any of which a function may read, and where the metadata cannot be read.
    """
    try:
        with locked(image):
            animated = getattr(image, "is_animated", False)
            unread = lazy and getattr(image, "_exif", None) is None
            exif = None if unread else image.getexif()
            directories = None if exif is None else {tag: _directory(exif, tag) for tag in _SUB_DIRECTORIES}
    except Exception as error:
        raise UnsupportedSource(f"an image whose metadata cannot be read: {error}") from error
    if animated:
        raise UnsupportedSource("an image of several frames: a function may read any of them")
    parts = {
        "class": f"{type(image).__module__}.{type(image).__qualname__}",
        "format": image.format,
        "mode and size": (image.mode, image.size),
        "info": dict(image.info),
        "exif": None if exif is None else dict(exif),
        "directories": directories,
        "attributes": _attributes(image),
    }
    return encode(_plain(parts))


def lazy_file(image: "Image") -> bytes | None:
    """Return the bytes of the file that a lazily opened image is still to be decoded from; None for any other."""
    with locked(image):
        file = getattr(image, "fp", None)
        if file is None or not getattr(image, "tile", None):
            return None
        position = file.tell()
        try:
            file.seek(0)
            return bytes(file.read())
        finally:
            file.seek(position)


def encode_handed_over(source: object) -> bytes:
    """Encode what a function may see of encoded bytes or a path beside the bytes: type, position, and the path."""
    kind = f"{type(source).__module__}.{type(source).__qualname__}"
    if isinstance(source, io.BytesIO):
        return encode((kind, source.getvalue()[: source.tell()]))
    return encode((kind, os.fspath(source) if isinstance(source, str | os.PathLike) else None))


def _attributes(image: "Image") -> dict[str, object]:
    """Return what somebody put on an image, and what Pillow's plugin for its format left there, as far as it is known.

    What cannot be encoded is Pillow's machinery (the file, decoders) on an image of a plugin; on a plain image it is
    somebody's, and then the image cannot be identified.
    """
    from PIL.Image import Image

    plain = type(image) is Image
    found: dict[str, object] = {}
    for name, value in vars(image).items():
        if name in _MACHINERY:
            continue
        try:
            encode(_plain(value))
        except NotEncodable:
            if plain:
                raise
            continue
        found[name] = value
    return found


def _directory(exif: "Exif", tag: int) -> dict[int, object] | None:
    try:
        return dict(exif.get_ifd(tag))
    except KeyError:  # Pillow below 13: the directory that this one lies in is not there
        return None


def _plain(value: object) -> object:
    """Replace values of Pillow's own types by their parts, at any depth."""
    from PIL.PngImagePlugin import iTXt
    from PIL.TiffImagePlugin import IFDRational

    if isinstance(value, IFDRational):
        return _PillowType.RATIONAL, _plain(value.numerator), _plain(value.denominator)
    if isinstance(value, iTXt):
        return _PillowType.TEXT, str(value), value.lang, value.tkey
    if type(value) is dict:
        return {key: _plain(member) for key, member in value.items()}
    if type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return tuple(_plain(member) for member in value)
    if type(value) is list:
        return [_plain(member) for member in value]
    return value
