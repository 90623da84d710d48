"""The image processors of the benchmark, made without a download, from torchvision or PIL."""

import importlib.util
from dataclasses import dataclass, field
from typing import Any, Literal

from mmcache.cli.bench_engine import LeftOut

Backend = Literal["torchvision", "pil"]

# What the model card of Qwen2-VL calls the default range of tokens, times the pixels of one.
_QWEN_PIXELS = {"shortest_edge": 4 * 28 * 28, "longest_edge": 16384 * 28 * 28}


@dataclass(frozen=True)
class Family:
    """A processor class, by its plain name, with the options that it is constructed with."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


QWEN2_VL = Family("Qwen2VLImageProcessor", {"size": _QWEN_PIXELS})
QWEN2_VL_DEFAULT = Family("Qwen2VLImageProcessor")
QWEN2_VL_TINY = Family("Qwen2VLImageProcessor", {"size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 16384}})
CLIP = Family("CLIPImageProcessor")
SIGLIP_384 = Family("SiglipImageProcessor", {"size": {"height": 384, "width": 384}})
LLAVA_NEXT = Family("LlavaNextImageProcessor")
IDEFICS3 = Family("Idefics3ImageProcessor")


def image_processor(family: Family, backend: Backend = "torchvision") -> Any:
    """Construct an image processor; raise `LeftOut` where there is none for this backend."""
    if backend == "torchvision" and importlib.util.find_spec("torchvision") is None:
        raise LeftOut("torchvision is not installed")
    import transformers

    # Since 5.0 the plain name is torchvision's, and PIL's has a suffix; before, PIL had the plain name.
    suffixes = {"torchvision": "Fast", "pil": ""}
    if hasattr(transformers, f"{family.name}Pil"):
        suffixes = {"torchvision": "", "pil": "Pil"}
    return getattr(transformers, family.name + suffixes[backend])(**family.options)
