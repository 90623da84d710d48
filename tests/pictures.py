"""Pictures and processors for tests: deterministic, small, and counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image


def picture(seed: int, width: int = 96, height: int = 64, mode: str = "RGB") -> Image.Image:
    """Return noise that is the same for a seed and unlike that of any other."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


class Runs(list[int]):
    """How many images each real run of a processor had."""

    @property
    def images(self) -> int:
        """How many images were really processed."""
        return sum(self)


@contextmanager
def counted(cls: type, name: str = "_preprocess") -> Iterator[Runs]:
    """Count the images that really reach a processor class, under whatever stands in front of ``preprocess``."""
    runs = Runs()
    # Where the method is defined: a new member of the class itself would change the identity of its code.
    owner = next(base for base in cls.__mro__ if name in vars(base))
    original = getattr(owner, name)

    def counting(self: Any, images: Any, *args: Any, **options: Any) -> Any:
        nested = bool(images) and isinstance(images[0], list | tuple)
        runs.append(sum(len(sample) for sample in images) if nested else len(images))
        return original(self, images, *args, **options)

    # Invisible to the identity of the class, like mmcache's own wrappers: counting must not change a key.
    counting.__mmcache_original__ = original  # type: ignore[attr-defined]
    setattr(owner, name, counting)
    try:
        yield runs
    finally:
        setattr(owner, name, original)
