"""What type checkers know of cached functions. Not run: lines with an ``ignore`` are errors, and must be."""

from collections.abc import Awaitable, Callable
from typing import Any, assert_type

import numpy as np
import torch
from PIL import Image

import mmcache
from mmcache.layout import Batched


@mmcache.cached
def bare(image: Image.Image, size: int = 224, *, mode: str = "fit") -> torch.Tensor:
    return torch.zeros(size)


@mmcache.cached(cache=mmcache.Cache("1MiB"), source="image", version="1")
def with_options(prompt: str, image: bytes) -> dict[str, np.ndarray[Any, Any]]:
    return {}


@mmcache.cached(layout={"pixel_values": Batched()})
def batch(images: list[Image.Image]) -> dict[str, torch.Tensor]:
    return {}


@mmcache.cached
async def asynchronous(path: str) -> int:
    return 1


class Reader:
    @mmcache.cached(version="1")
    def read(self, image: Image.Image) -> int:
        return 1


def right(image: Image.Image) -> None:
    assert_type(bare(image), torch.Tensor)
    assert_type(bare(image, 3), torch.Tensor)
    assert_type(bare(image=image, size=3, mode="fill"), torch.Tensor)
    assert_type(with_options("a", image=b""), dict[str, np.ndarray[Any, Any]])
    assert_type(batch([image]), dict[str, torch.Tensor])
    assert_type(bare.cache, mmcache.Cache)
    assert_type(bare.cache_info(), mmcache.CacheInfo)
    assert_type(bare.cache_info().hits, int)
    assert_type(bare.cache_clear(), None)
    assert_type(bare.__wrapped__(image, 3), torch.Tensor)
    assert_type(Reader().read(image), int)
    takes: Callable[[Image.Image, int], torch.Tensor] = bare
    takes(image, 3)


async def awaited() -> None:
    assert_type(await asynchronous("a"), int)
    waiting: Awaitable[int] = asynchronous(path="a")
    await waiting


def wrong(image: Image.Image) -> None:
    bare()  # type: ignore[call-arg]  # pyright: ignore
    bare(image, sise=3)  # type: ignore[call-arg]  # pyright: ignore
    bare(image, 3, "fit")  # type: ignore[call-arg]  # pyright: ignore
    bare("a.png")  # type: ignore[arg-type]  # pyright: ignore
    bare(image, "3")  # type: ignore[arg-type]  # pyright: ignore
    bare(image).no_such_attribute  # type: ignore[attr-defined]  # pyright: ignore  # noqa: B018
    bare.no_such_attribute  # type: ignore[attr-defined]  # pyright: ignore  # noqa: B018
    with_options(b"", "a")  # type: ignore[arg-type]  # pyright: ignore
    batch(image)  # type: ignore[arg-type]  # pyright: ignore
    number: str = bare.cache_info().hits  # type: ignore[assignment]  # pyright: ignore
    print(number)
    mmcache.cached(sauce="image")  # type: ignore[call-overload]  # pyright: ignore
    mmcache.cached(version=3)  # type: ignore[call-overload]  # pyright: ignore
    mmcache.cached(3)  # type: ignore[call-overload]  # pyright: ignore
    mmcache.cached(layout=[Batched()])  # type: ignore[call-overload]  # pyright: ignore
