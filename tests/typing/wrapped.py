"""What type checkers know of wrapped processors. Not run: lines with an ``ignore`` are errors, and must be."""

from typing import assert_type

import mmcache


class Processor:
    """Stands for a processor's class; its own type stays."""

    size: int = 3

    def __call__(self, text: str) -> bytes:
        return b""


def right(processor: Processor) -> None:
    wrapped = mmcache.wrap(processor)
    assert_type(wrapped, Processor)
    assert_type(wrapped("a"), bytes)
    assert_type(mmcache.wrap(processor, mmcache.Cache("1MiB")).size, int)
    assert_type(mmcache.unwrap(wrapped), Processor)
    with mmcache.install() as installation:
        assert_type(installation, mmcache.Installation)
        assert_type(installation.cache, mmcache.Cache)
    with mmcache.Cache(max_bytes="4GiB", name="x", secret=b"s", log_interval=3) as cache:
        assert_type(cache, mmcache.Cache)
    assert_type(str(mmcache.fingerprint(b"")), str)


def wrong(processor: Processor) -> None:
    mmcache.wrap(processor)(3)  # type: ignore[arg-type]  # pyright: ignore
    mmcache.wrap(processor).sise  # type: ignore[attr-defined]  # pyright: ignore  # noqa: B018
    mmcache.wrap(processor, "4GiB")  # type: ignore[arg-type]  # pyright: ignore
    mmcache.wrap()  # type: ignore[call-arg]  # pyright: ignore
    mmcache.Cache(max_bytes=1.5)  # type: ignore[arg-type]  # pyright: ignore
    mmcache.Cache(1, "name")  # type: ignore[call-arg]  # pyright: ignore
