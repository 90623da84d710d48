"""Draw samples for reinforcement learning: groups of equal prompts about one picture, on several workers.

A trainer prepares a picture again for each sample, each worker and each epoch. ``mmcache.install`` puts the cache
under the processors of a process without a change in the trainer.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from PIL import Image
from tiny_qwen2_vl import counted_runs, photographs, same_bits, tiny_qwen2_vl
from transformers import Qwen2VLImageProcessor

import mmcache

EPOCHS, WORKERS, SAMPLES = 2, 2, 3  # samples on each worker: a group has WORKERS * SAMPLES


def share(processor: Any, picture: Image.Image) -> Any:
    """Prepare one worker's share of a group."""
    content = [{"type": "image"}, {"type": "text", "text": "Who or what is in the foreground?"}]
    prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    return processor(text=[prompt] * SAMPLES, images=[[picture]] * SAMPLES, return_tensors="pt")


def group(processor: Any, picture: Image.Image) -> list[Any]:
    """Prepare a group on all workers at once."""
    with ThreadPoolExecutor(WORKERS) as workers:
        return list(workers.map(share, [processor] * WORKERS, [picture] * WORKERS))


def sampled(processor: Any, model: Any, pictures: list[Image.Image]) -> list[list[int]]:
    """Draw all samples of all epochs; this is the trainer, and knows of no cache."""
    torch.manual_seed(0)
    samples: list[list[int]] = []
    for picture in pictures * EPOCHS:
        for inputs in group(processor, picture):
            output = model.generate(**inputs, do_sample=True, max_new_tokens=6, min_new_tokens=6)
            samples += output[:, inputs["input_ids"].shape[1] :].tolist()
    return samples


def main() -> None:
    pictures = photographs("astronaut", "chelsea", "coffee")
    processor, model = tiny_qwen2_vl()
    with (
        counted_runs(Qwen2VLImageProcessor, pictures) as runs,
        mmcache.Cache("1GiB", name="rollouts", verify_rate=0) as cache,
        mmcache.install(cache),
    ):
        # The first call goes to the plain processor, while the cache tries in the background how its batches are made.
        # Without this warm-up the first seconds of training are plain: slower, and not different.
        share(processor, *photographs("rocket").values())
        cache.settle()

        samples = sampled(processor, model, list(pictures.values()))
        inputs = share(processor, pictures["astronaut"])
        print(f"{len(samples)} samples, runs of the real processor:", dict(runs))
        assert dict(runs) == dict.fromkeys(pictures, 1)
        print(f"{cache.cache_info().hit_rate:.1%} of the look-ups needed no run of their own")

    assert same_bits(inputs, share(processor, pictures["astronaut"]))
    assert samples == sampled(processor, model, list(pictures.values()))
    print("every sample is the plain one")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
