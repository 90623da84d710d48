"""Put ``@mmcache.cached`` on functions of an image: bare, with options, ``async``, and for batches.

A function is known by its code and by what the code names; the settings of an image processor are part of that.
"""

import asyncio
import io
import logging
from collections import Counter
from typing import Any

import numpy as np
import torch
from PIL import Image
from tiny_qwen2_vl import photographs, same_bits
from transformers import CLIPImageProcessor, Qwen2VLImageProcessor

import mmcache

log = logging.getLogger("decorator")
clip = CLIPImageProcessor()
qwen = Qwen2VLImageProcessor()
encoder = torch.nn.Conv2d(3, 8, kernel_size=32, stride=32).requires_grad_(False)


@mmcache.cached
def prepare(image: Image.Image, crop: int = 224) -> dict[str, torch.Tensor]:
    """The image is the first argument; the others are part of the key."""
    log.info("prepare")
    return dict(clip(image, crop_size=crop, return_tensors="pt"))


def embed(label: str, picture: Image.Image) -> dict[str, torch.Tensor]:
    """It names a model, which has no identity short of its weights: so somebody has to give it a version."""
    log.info("embed")
    return {label: encoder(clip(picture, return_tensors="pt")["pixel_values"]).mean((2, 3))}


cached_embed = mmcache.cached(source="picture", version="encoder of 3 March")(embed)


@mmcache.cached
async def decode(data: bytes) -> Any:
    """A loader is a cached function like any other; tasks that want the same bytes wait for one decoding."""
    log.info("decode")
    return await asyncio.to_thread(lambda: np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


@mmcache.cached(
    # Without verification, to count only what is needed: else first batches are also run plainly, and compared.
    cache=mmcache.Cache("256MiB", verify_rate=0),
    layout={
        "pixel_values": mmcache.layout.FlatFromSizes("image_grid_thw"),
        "image_grid_thw": mmcache.layout.Batched(),
    },
)
def prepare_batch(images: list[Image.Image]) -> dict[str, torch.Tensor]:
    """The layout says how single outputs make a batch; only missing images are processed, in lists of one."""
    log.info("prepare_batch")
    return dict(qwen(images, return_tensors="pt"))


class CountRuns(logging.Handler):
    """Counts messages: a counter that a function names would be part of its identity, and change with each run."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = Counter[str]()

    def emit(self, record: logging.LogRecord) -> None:
        """Count one message."""
        self.runs[record.getMessage()] += 1


async def decoded_at_once(data: bytes, tasks: int) -> list[Any]:
    return await asyncio.gather(*(decode(data) for _ in range(tasks)))


def main() -> None:
    log.setLevel(logging.INFO)
    log.addHandler(count := CountRuns())
    astronaut, cat, coffee = photographs("astronaut", "chelsea", "coffee").values()

    crops = [prepare(cat), prepare(cat), prepare(cat, crop=112), prepare(cat, 112)]
    try:
        mmcache.cached(embed)
    except mmcache.NotIdentifiable as refused:
        print("without a version:", refused)
    features = [cached_embed("cat", cat), cached_embed("cat", cat)]

    png = io.BytesIO()
    cat.save(png, "png")
    decoded = asyncio.run(decoded_at_once(png.getvalue(), tasks=5))

    prepare_batch([astronaut, cat])
    batch = prepare_batch([coffee, astronaut, cat, coffee])

    print("runs:", dict(count.runs))
    assert count.runs == {"prepare": 2, "embed": 1, "decode": 1, "prepare_batch": 3}

    assert same_bits(crops[1], prepare.__wrapped__(cat))
    assert same_bits(crops[3], prepare.__wrapped__(cat, 112))
    assert same_bits(features[1], embed("cat", cat))
    assert all(pixels.tobytes() == cat.tobytes() for pixels in decoded)
    assert same_bits(batch, prepare_batch.__wrapped__([coffee, astronaut, cat, coffee]))
    print("every output is the plain one, bit for bit")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
