"""Wrap an image processor: the same photographs are processed once, and looked up from then on.

The wrapped processor is called like the plain one and gives the same bits.
"""

import logging

import torch
from tiny_qwen2_vl import counted_runs, photographs, same_bits
from transformers import Qwen2VLImageProcessor

import mmcache


def main() -> None:
    pictures = photographs("astronaut", "chelsea", "coffee")
    with (
        counted_runs(Qwen2VLImageProcessor, pictures) as runs,
        mmcache.Cache("1GiB", name="quickstart", verify_rate=0) as cache,
    ):
        plain = Qwen2VLImageProcessor()
        processor = mmcache.wrap(plain, cache)

        first = processor(list(pictures.values()), return_tensors="pt")
        second = processor(list(pictures.values()), return_tensors="pt")
        alone = processor(pictures["chelsea"].copy(), return_tensors="pt")  # equal pixels, another object: a hit
        print("runs of the real processor:", dict(runs))
        assert dict(runs) == {"astronaut": 1, "chelsea": 1, "coffee": 1}

        info = cache.cache_info()
        print(f"{info.hits} hits, {info.misses} misses, {info.items} items, {info.currsize / 2**20:.1f} MiB")

    assert same_bits(first, plain(list(pictures.values()), return_tensors="pt"))
    assert same_bits(second, first)
    assert same_bits(alone, plain(pictures["chelsea"], return_tensors="pt"))
    print("every output is the plain one, bit for bit")


if __name__ == "__main__":
    # mmcache writes a line at most every ten seconds, and one when a cache is closed; it sets up no logging itself.
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    torch.set_num_threads(1)
    main()
