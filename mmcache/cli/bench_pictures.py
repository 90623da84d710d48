"""The pictures of the benchmark: photographs that scikit-image carries, brought to the sizes of cameras and screens."""

import functools
import importlib.util
import io
from typing import TYPE_CHECKING

from mmcache.cli.pictures import carried_pictures
from mmcache.errors import MissingExtra

if TYPE_CHECKING:
    from PIL.Image import Image

Size = tuple[int, int]

FULL_HD, ULTRA_HD, XGA, TINY = (1920, 1080), (3840, 2160), (1024, 768), (32, 32)

# Enlarged photographs are smoother than what a sensor gives, and decode faster: so much noise brings them back.
_NOISE = 4.0

# Pixels by which a cut may be shifted: so many squared are the distinct pictures of one photograph.
_MOST_SHIFT = 48

# Photographs, the whole of each: `carried_pictures` gives four parts of a photograph, the first of which is all of it.
_HOW_MANY, _PARTS = 8, 4

_JPEG_QUALITY = 90


@functools.lru_cache(maxsize=16)
def photograph(size: Size, number: int = 0) -> "Image":
    """Return one of eight photographs at a size; it is shared, so copy it before you change it.

    Raises:
        MissingExtra: scikit-image is not installed.
    """
    import numpy as np
    from PIL import Image, ImageOps

    fitted = ImageOps.fit(_carried()[number % _HOW_MANY], size)
    pixels = np.asarray(fitted) + np.random.default_rng(number).normal(0, _NOISE, (size[1], size[0], 3)).round()
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def distinct(size: Size, number: int) -> "Image":
    """Return one of thousands of distinct pictures, made in a millisecond: photographs, cut a little shifted."""
    shifts, of_photograph = divmod(number, _HOW_MANY)
    down, right = divmod(shifts, _MOST_SHIFT)
    whole = photograph((size[0] + _MOST_SHIFT, size[1] + _MOST_SHIFT), of_photograph)
    return whole.crop((right, down, right + size[0], down + size[1]))


def encoded(image: "Image", form: str) -> bytes:
    """Return a picture as the bytes of a JPEG or PNG file."""
    file = io.BytesIO()
    image.save(file, form, **({"quality": _JPEG_QUALITY} if form == "JPEG" else {}))
    return file.getvalue()


def decoded(data: bytes) -> "Image":
    """Decode a file, and no more than that."""
    from PIL import Image

    image = Image.open(io.BytesIO(data))
    image.load()
    return image


class Changing:
    """A picture that is another one whenever it is asked to be, in one pixel."""

    def __init__(self, image: "Image") -> None:
        """Begin with a copy."""
        self.image = image.copy()
        self._changes = 0

    def change(self) -> None:
        """Make it a picture that it was never before."""
        self._changes += 1
        self.image.putpixel((0, 0), (self._changes & 255, self._changes >> 8 & 255, self._changes >> 16))


@functools.cache
def _carried() -> list["Image"]:
    if importlib.util.find_spec("skimage") is None:
        raise MissingExtra("scikit-image", "bench", "mmcache bench")
    return [picture.image for picture in carried_pictures()[::_PARTS]]
