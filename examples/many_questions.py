"""Ask many questions about each picture: with ``model.generate``, and with a transformers ``pipeline``.

A chat sends its picture again with every turn. The wrapped ``Processor`` takes the place of the plain one.
"""

from typing import Any

import torch
from PIL import Image
from tiny_qwen2_vl import counted_runs, photographs, same_bits, tiny_qwen2_vl
from transformers import Qwen2VLImageProcessor, pipeline

import mmcache

QUESTIONS = ("What do you see?", "Which colours does it have?", "Where was it taken, and when?")
LENGTH = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}

Chat = list[dict[str, Any]]


def question(text: str, picture: Image.Image | None = None) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "image", "image": picture}] if picture is not None else []
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def conversation(processor: Any, model: Any, picture: Image.Image) -> list[str]:
    """Ask one question after the other; each prompt holds the picture and all that was said so far."""
    chat: Chat = [question(QUESTIONS[0], picture)]
    answers = []
    for following in (*QUESTIONS[1:], "Thank you."):
        prompt = processor.apply_chat_template(chat, add_generation_prompt=True)
        inputs = processor(text=prompt, images=[picture], return_tensors="pt")
        output = model.generate(**inputs, **LENGTH)[0, inputs["input_ids"].shape[1] :]
        answers.append(processor.decode(output, skip_special_tokens=True))
        chat += [{"role": "assistant", "content": answers[-1]}, question(following)]
    return answers


def piped(processor: Any, model: Any, picture: Image.Image) -> list[str]:
    """Ask each question in a chat of its own, through the pipeline."""
    ask: Any = pipeline("image-text-to-text", model=model, processor=processor)
    chats: list[Chat] = [[question(text, picture)] for text in QUESTIONS]
    return [ask(text=chat, return_full_text=False, generate_kwargs=LENGTH)[0]["generated_text"] for chat in chats]


def main() -> None:
    pictures = photographs("astronaut", "chelsea", "coffee")
    plain, model = tiny_qwen2_vl()
    with counted_runs(Qwen2VLImageProcessor, pictures) as runs, mmcache.Cache("1GiB", verify_rate=0) as cache:
        processor = mmcache.wrap(plain, cache)
        answers = {name: conversation(processor, model, picture) for name, picture in pictures.items()}
        by_pipeline = {name: piped(processor, model, picture) for name, picture in pictures.items()}
        print(f"{2 * len(QUESTIONS)} questions about each picture, runs of the real processor:", dict(runs))
        assert dict(runs) == dict.fromkeys(pictures, 1)
        print(f"{cache.cache_info().hit_rate:.0%} of the look-ups were hits")
        inputs = processor(text="<|image_pad|>", images=[pictures["coffee"]], return_tensors="pt")

    assert same_bits(inputs, plain(text="<|image_pad|>", images=[pictures["coffee"]], return_tensors="pt"))
    assert answers == {name: conversation(plain, model, picture) for name, picture in pictures.items()}
    assert by_pipeline == {name: piped(plain, model, picture) for name, picture in pictures.items()}
    print("every answer is the plain one")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
