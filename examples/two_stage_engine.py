"""An engine in small, on `mmcache.Stages`: requests come in, are scheduled by their tokens, and are executed.

    ask ──▶ front end ──▶ scheduler ──▶ worker
            add_request   token budget  execute, generate

The front end needs to know how many tokens an image takes, the worker needs its pixels. Each image is processed once
for both, and for all turns of all chats about it; the answers are those of the plain processor and model.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from PIL import Image
from tiny_qwen2_vl import counted_runs, photographs, same_bits, tiny_qwen2_vl
from transformers import Qwen2VLImageProcessor

import mmcache

QUESTIONS = ("What do you see?", "Which colours does it have?", "Where was it taken, and when?")
LENGTH = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
TOKEN_BUDGET = 512  # prompt tokens in one batch

# Limits on an image's size in pixels, which come with each request; 28 * 28 pixels become one token.
LOW = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 64}
HIGH = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 192}

Tokens = list[int]


class Asked(NamedTuple):
    """What a user sends."""

    text: str
    image: Image.Image
    size: dict[str, int]
    answer: "Future[Tokens]"


class Waiting(NamedTuple):
    """What the front end makes of it: token ids with the image's placeholders, and a ticket for its pixels."""

    request: mmcache.Request
    answer: "Future[Tokens]"

    @property
    def num_tokens(self) -> int:
        """The length of the prompt, most of it the image's tokens."""
        return int(self.request.inputs["input_ids"].shape[1])


class Engine:
    """A front end and a worker, each in a thread of its own."""

    def __init__(self, stages: mmcache.Stages, model: Any) -> None:
        self.stages, self.model = stages, model
        self.batches: list[list[int]] = []  # the prompts' lengths in each batch that was executed
        self._asked: queue.Queue[Asked | None] = queue.Queue()
        self._waiting: queue.Queue[Waiting | None] = queue.Queue()

    def ask(self, text: str, image: Image.Image, size: dict[str, int]) -> Tokens:
        """Return the tokens of the answer; to be called from any number of threads."""
        asked = Asked(text, image, size, Future())
        self._asked.put(asked)
        return asked.answer.result()

    @contextmanager
    def running(self) -> Iterator["Engine"]:
        """Answer requests until the end of the block."""
        threads = [threading.Thread(target=target) for target in (self._front_end, self._worker)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._asked.put(None)
            for thread in threads:
                thread.join()

    def _front_end(self) -> None:
        for text, image, size, answer in iter(self._asked.get, None):
            try:
                request = self.stages.add_request(text, [image], size=size)
            except Exception as refused:  # noqa: BLE001 - whoever asked is told; the others are served
                answer.set_exception(refused)
            else:
                self._waiting.put(Waiting(request, answer))
        self._waiting.put(None)

    def _scheduled(self) -> Iterator[list[Waiting]]:
        """Give what waits in batches: in order, as many requests as the budget allows, and at least one."""
        batch: list[Waiting] = []
        for waiting in iter(self._waiting.get, None):
            if batch and sum(member.num_tokens for member in (*batch, waiting)) > TOKEN_BUDGET:
                yield batch
                batch = []
            batch.append(waiting)
            if self._waiting.empty():  # an engine does not keep a request back for others that may come
                yield batch
                batch = []
        if batch:
            yield batch

    def _worker(self) -> None:
        for batch in self._scheduled():
            self.batches.append([waiting.num_tokens for waiting in batch])
            try:
                answers = self._executed([waiting.request for waiting in batch])
            except Exception as failed:  # noqa: BLE001 - whoever waits for this batch is told; the next one is executed
                for waiting in batch:
                    waiting.answer.set_exception(failed)
            else:
                for waiting, tokens in zip(batch, answers, strict=True):
                    waiting.answer.set_result(tokens)

    def _executed(self, requests: list[mmcache.Request]) -> list[Tokens]:
        images = self.stages.execute([ticket for request in requests for ticket in request.tickets])
        texts = {
            name: self._padded(name, [request.inputs[name] for request in requests]) for name in requests[0].inputs
        }
        output = self.model.generate(**texts, **images, **LENGTH)
        answers: list[Tokens] = output[:, texts["input_ids"].shape[1] :].tolist()
        return answers

    def _padded(self, name: str, rows: list[torch.Tensor]) -> torch.Tensor:
        """Make one tensor of prompts of different lengths, padded on the left."""
        padding = self.model.config.text_config.pad_token_id if name == "input_ids" else 0
        longest = max(row.shape[1] for row in rows)
        return torch.cat([torch.nn.functional.pad(row, (longest - row.shape[1], 0), value=padding) for row in rows])


def chat(processor: Any, ask: Callable[..., Tokens], image: Image.Image, size: dict[str, int]) -> list[Tokens]:
    """Ask one question after the other; each prompt holds the image and all that was said so far."""
    said: list[dict[str, Any]] = []
    answers = []
    for question in QUESTIONS:
        parts = [{"type": "text", "text": question}]
        said.append({"role": "user", "content": parts if said else [{"type": "image"}, *parts]})
        answers.append(ask(processor.apply_chat_template(said, add_generation_prompt=True), image, size))
        said.append({"role": "assistant", "content": processor.decode(answers[-1], skip_special_tokens=True)})
    return answers


def main() -> None:
    pictures = photographs("astronaut", "chelsea", "coffee")
    users = [("astronaut", LOW), ("chelsea", HIGH), ("coffee", HIGH), ("astronaut", HIGH), ("chelsea", HIGH)]
    processor, model = tiny_qwen2_vl()

    def plain_ask(text: str, image: Image.Image, size: dict[str, int]) -> Tokens:
        inputs = processor(text=text, images=[image], size=size, return_tensors="pt")
        tokens: Tokens = model.generate(**inputs, **LENGTH)[0, inputs["input_ids"].shape[1] :].tolist()
        return tokens

    with (
        counted_runs(Qwen2VLImageProcessor, pictures) as runs,
        mmcache.Cache("1GiB", verify_rate=0) as cache,
        mmcache.Stages(processor, cache=cache) as stages,
        Engine(stages, model).running() as engine,
        ThreadPoolExecutor(len(users)) as threads,
    ):
        chats = [threads.submit(chat, processor, engine.ask, pictures[name], size) for name, size in users]
        answers = [done.result() for done in chats]
        requests = [length for batch in engine.batches for length in batch]
        print(f"{len(requests)} requests of {sum(requests)} tokens in {len(engine.batches)} batches")
        print("runs of the real processor:", dict(sorted(runs.items())))
        assert runs == {"astronaut": 2, "chelsea": 1, "coffee": 1}  # two users want the astronaut in different sizes
        assert all(len(batch) == 1 or sum(batch) <= TOKEN_BUDGET for batch in engine.batches)
        pixels = stages.execute([stages.add(pictures[name], size=size) for name, size in users])

    alone = [processor.image_processor([pictures[name]], size=size, return_tensors="pt") for name, size in users]
    assert same_bits(pixels, {output: torch.cat([one[output] for one in alone]) for output in alone[0]})
    assert answers == [chat(processor, plain_ask, pictures[name], size) for name, size in users]
    print("every answer is the plain one")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
