"""What a function may read of a PIL image besides its pixels.

Processors read nothing of it. A function of the user's may turn an image as EXIF says, or write its resolution into a
prompt, so for functions all of it counts.
"""

from enum import Enum
from typing import TYPE_CHECKING

from mmcache.errors import UnsupportedSource
from mmcache.fingerprints.encoding import encode
from mmcache.fingerprints.loading import locked

if TYPE_CHECKING:
    from PIL.Image import Exif, Image

# Directories of their own inside EXIF: of the camera, of the place, of interoperability.
_SUB_DIRECTORIES = (0x8769, 0x8825, 0xA005)


class _PillowType(Enum):
    """Marks values of Pillow's own types; an enum, since no metadata can hold this one."""

    RATIONAL = "IFDRational"
    TEXT = "iTXt"


def encode_metadata(image: "Image") -> bytes:
    """Encode a loaded image's format, all of ``info``, and EXIF with its directories.

    Raises ``NotEncodable`` for an entry that cannot be hashed exactly, and ``UnsupportedSource`` for an image of
    several frames, any of which a function may read, and where the metadata cannot be read.
    """
    try:
        with locked(image):
            animated = getattr(image, "is_animated", False)
            exif = image.getexif()
            directories = {tag: _directory(exif, tag) for tag in _SUB_DIRECTORIES}
    except Exception as error:
        raise UnsupportedSource(f"an image whose metadata cannot be read: {error}") from error
    if animated:
        raise UnsupportedSource("an image of several frames: a function may read any of them")
    info, tags = dict(image.info), dict(exif)
    return encode(_plain({"format": image.format, "info": info, "exif": tags, "directories": directories}))


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
    if type(value) is tuple:
        return tuple(_plain(member) for member in value)
    if type(value) is list:
        return [_plain(member) for member in value]
    return value
