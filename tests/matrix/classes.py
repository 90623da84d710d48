"""Every image processor class of the installed transformers: found, made without a network, and shown one picture."""

import functools
import importlib
import pkgutil
import random
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import transformers.models
from transformers.image_processing_base import ImageProcessingMixin

from tests.pictures import picture

# How `obstacle` begins for a class that there is nothing to be asked of.
UNMADE = "cannot be made"

# Constructor arguments of classes that need some, or that need another program without them. By the class's name
# without its backend, since those of one family take the same.
_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "ImageGPT": {"clusters": np.random.default_rng(0).uniform(-1, 1, (16, 3)).tolist()},
    "LayoutLMv2": {"apply_ocr": False},
    "LayoutLMv3": {"apply_ocr": False},
    "PerceptionLM": {"tile_size": 448},
}


@functools.cache
def image_processor_classes() -> Mapping[str, type]:
    """Return every class by its name, in alphabetical order."""
    found = {cls for module in _modules() for cls in _defined_in(module)}
    named = {cls.__name__: cls for cls in found}
    assert len(named) == len(found), "classes of equal names"
    return dict(sorted(named.items()))


def sampled(names: Iterable[str], count: int, seed: str) -> list[str]:
    """Return so many of the names, chosen by a seed."""
    everything = sorted(names)
    return sorted(random.Random(seed).sample(everything, min(count, len(everything))))


def _modules() -> Iterator[str]:
    (models,) = transformers.models.__path__
    for model in pkgutil.iter_modules([models]):
        for module in pkgutil.iter_modules([str(Path(models, model.name))]):
            if module.name.startswith("image_processing_"):
                yield f"transformers.models.{model.name}.{module.name}"


def _defined_in(module: str) -> Iterator[type]:
    with warnings.catch_warnings():
        # Old versions of transformers call what new versions of torch deprecate.
        warnings.simplefilter("ignore", FutureWarning)
        members = list(vars(importlib.import_module(module)).values())
    for member in members:
        if isinstance(member, type) and issubclass(member, ImageProcessingMixin) and member.__module__ == module:
            yield member


def construct(cls: type) -> Any:
    """Make an image processor with its default settings, as far as it has any."""
    return cls(**_ARGUMENTS.get(cls.__name__.partition("ImageProcessor")[0], {}))


def backend_of(cls: type) -> str:
    """Return what a class computes with: ``torchvision``, ``pil``, or ``slow`` for those that have no backend."""
    bases = {base.__name__ for base in cls.__mro__}
    if bases & {"TorchvisionBackend", "BaseImageProcessorFast"}:
        return "torchvision"
    return "pil" if "PilBackend" in bases else "slow"


def obstacle(cls: type) -> str:
    """Return why a class cannot be made, or does not run on a plain picture; "" if it does."""
    try:
        processor = construct(cls)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is to be told
        return f"{UNMADE}: {_told(error)}"
    try:
        processor(picture(0, 200, 150), return_tensors="pt")
    except Exception as error:  # noqa: BLE001 - as above
        return f"does not run on a plain picture: {_told(error)}"
    return ""


def _told(error: Exception) -> str:
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line[:120]}"
