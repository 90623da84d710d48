"""The photographs of the demo: cut from those that scikit-image carries, or the files of a folder."""

import importlib.util
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmcache.errors import BadArgument, MissingExtra

if TYPE_CHECKING:
    from PIL.Image import Image

# The side in pixels of what Qwen2-VL makes one token of; its limits are best thought of as numbers of tokens.
_TOKEN_SIDE = 28

# Numbers of tokens that requests ask for at least and at most. Five and three, so that the pairs differ.
_LEAST_TOKENS = (4, 16, 64)
_MOST_TOKENS = (1280, 512, 1024, 256, 768)

# Photographs in scikit-image's own package (others it would download), the colourful ones first.
_PHOTOGRAPHS = (
    "astronaut.png", "coffee.png", "chelsea.png", "rocket.jpg", "motorcycle_left.png", "hubble_deep_field.jpg",
    "retina.jpg", "camera.png", "coins.png", "ihc.png", "moon.png", "brick.png", "gravel.png", "grass.png",
)  # fmt: skip

# The parts of a photograph that are pictures of their own: left, upper, right, lower, as shares of its sides.
_PARTS = ((0.0, 0.0, 1.0, 1.0), (0.0, 0.0, 0.75, 0.7), (0.3, 0.25, 1.0, 1.0), (0.1, 0.2, 0.7, 0.95))

# Large enough for a mean that means something, small enough for a demo of seconds.
_HOW_MANY = 32

# Longer sides in pixels, as pictures in chats have them: nine, which fall on the four parts in turn.
_LEAST_SIDE, _MOST_SIDE, _SIDE_STEP = 480, 1100, 70

# Qwen2-VL refuses pictures that are so much longer than wide.
_MOST_ASPECT = 200


@dataclass(frozen=True)
class Picture:
    """A photograph with the limits, in pixels, that its request asks the processor to keep."""

    name: str
    image: "Image"
    min_pixels: int
    max_pixels: int

    @property
    def options(self) -> dict[str, Any]:
        """The options of the processor's call: what ``min_pixels`` and ``max_pixels`` are called since 5.0."""
        return {"size": {"shortest_edge": self.min_pixels, "longest_edge": self.max_pixels}}


def carried_pictures() -> list[Picture]:
    """Cut 32 distinct pictures, 480 to 1100 pixels on the longer side, from photographs that need no network.

    Raises:
        MissingExtra: scikit-image is not installed.
    """
    views = itertools.islice(_views(_carried_files()), _HOW_MANY)
    pictures = [_limited(number, name, image) for number, (name, image) in enumerate(views)]
    if not pictures:
        raise MissingExtra("scikit-image", "demo", "mmcache demo without --images")
    return pictures


def pictures_in(folder: Path, note: Callable[[str], None]) -> list[Picture]:
    """Read every picture under a folder, upright and in RGB, as engines do; ``note`` is told what is skipped and why.

    Raises:
        BadArgument: there is no picture in it.
    """
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    read = ((str(file.relative_to(folder)), _read(file, note)) for file in files)
    found = [(name, image) for name, image in read if image is not None]
    if not found:
        raise BadArgument("--images", str(folder), "a folder with at least one picture that Pillow can read")
    return [_limited(number, name, image) for number, (name, image) in enumerate(found)]


def _limited(number: int, name: str, image: "Image") -> Picture:
    least, most = _LEAST_TOKENS[number % len(_LEAST_TOKENS)], _MOST_TOKENS[number % len(_MOST_TOKENS)]
    return Picture(name, image, least * _TOKEN_SIDE**2, most * _TOKEN_SIDE**2)


def _carried_files() -> list[Path]:
    """Find the photographs without importing scikit-image, which takes seconds and may look for a network."""
    package = importlib.util.find_spec("skimage")
    if package is None or package.origin is None:
        return []
    files = (Path(package.origin).parent / "data" / name for name in _PHOTOGRAPHS)
    return [file for file in files if file.is_file()]


def _views(files: Iterable[Path]) -> Iterator[tuple[str, "Image"]]:
    """Yield the parts of each photograph, each enlarged or reduced to a size of its own."""
    from PIL import Image

    longer_sides = itertools.cycle(range(0, _MOST_SIDE - _LEAST_SIDE, _SIDE_STEP))
    for file in files:
        with Image.open(file) as opened:
            photograph = opened.convert("RGB")
        for number, part in enumerate(_PARTS, start=1):
            yield f"{file.stem} {number}", _cut(photograph, part, _LEAST_SIDE + next(longer_sides))


def _cut(photograph: "Image", part: tuple[float, ...], longer_side: int) -> "Image":
    left, upper, right, lower = (share * side for share, side in zip(part, photograph.size * 2, strict=True))
    scale = longer_side / max(right - left, lower - upper)
    size = round((right - left) * scale), round((lower - upper) * scale)
    return photograph.resize(size, box=(left, upper, right, lower))


def _read(file: Path, note: Callable[[str], None]) -> "Image | None":
    from PIL import Image, ImageOps

    try:
        with Image.open(file) as opened:
            image = ImageOps.exif_transpose(opened).convert("RGB")
    except Exception as error:  # noqa: BLE001 - decoders raise what they like; the file is skipped, and it is said why
        note(f"skipped {file}: {error}")
        return None
    if max(image.size) >= _MOST_ASPECT * min(image.size):
        note(f"skipped {file}: {image.width} by {image.height} pixels is longer than the processor takes")
        return None
    return image
