"""A wrapped processor in the workers of a ``DataLoader``, forked and spawned."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import transformers
from torch.utils.data import DataLoader, Dataset, get_worker_info

import mmcache
from mmcache.layout.compare import difference
from tests.pictures import picture

SIZE = {"shortest_edge": 3136, "longest_edge": 50176}
PICTURES = [picture(41), picture(42, 64, 96), picture(43, 120, 50)]

# Batches go to the two workers in turn, so that each worker sees every picture twice or more.
BATCHES = [[0, 1], [1, 0], [2, 0, 1], [2, 1, 1], [1, 2], [0, 2]]


@dataclass
class Made:
    """What a worker made of a batch, and how its cache stood afterwards."""

    output: dict[str, Any]
    worker: int
    info: mmcache.CacheInfo


class Batches(Dataset[Made]):
    """Batches of processed pictures, by their numbers."""

    def __init__(self, processor: Any, cache: mmcache.Cache) -> None:
        self.processor, self.cache = processor, cache

    def __getitem__(self, numbers: Sequence[int]) -> Made:
        output = self.processor([PICTURES[number] for number in numbers], return_tensors="pt")
        return Made(dict(output), os.getpid(), self.cache.cache_info())


def tried(_: int) -> None:
    """Wait, in a worker, for the trial: these tests are about what is served after it, however loaded the machine is."""
    worker = get_worker_info()
    assert worker is not None
    assert isinstance(worker.dataset, Batches)
    worker.dataset.processor([picture(98), picture(99)], return_tensors="pt")
    worker.dataset.cache.settle()
    worker.dataset.cache.clear()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize(("start", "backend"), [("fork", ""), ("fork", "Pil"), ("spawn", "")])
def test_workers_give_the_plain_batches_and_process_each_picture_once(start: str, backend: str) -> None:
    plain = getattr(transformers, "Qwen2VLImageProcessor" + backend)(size=SIZE)
    with mmcache.Cache("64MiB", name=f"loader-{start}-{backend}", verify_rate=0, max_overhead=1) as cache:
        loader: DataLoader[Made] = DataLoader(
            Batches(mmcache.wrap(plain, cache), cache), batch_size=None, sampler=BATCHES,
            num_workers=2, multiprocessing_context=start, worker_init_fn=tried,
        )  # fmt: skip
        made = list(loader)
        in_the_parent = cache.cache_info()

    for numbers, batch in zip(BATCHES, made, strict=True):
        expected = plain([PICTURES[number] for number in numbers], return_tensors="pt")
        assert difference(dict(expected), batch.output) == ""
    last = {batch.worker: batch.info for batch in made}
    assert len(last) == 2
    assert os.getpid() not in last
    for worker, info in last.items():
        warm_up = 2  # the pictures of `tried`: missed if its trial came in time, else bypassed
        images = sum(len(numbers) for numbers, batch in zip(BATCHES, made, strict=True) if batch.worker == worker)
        assert info.misses + info.bypassed == len(PICTURES) + warm_up
        assert info.bypassed in (0, warm_up), info.bypass_reasons
        assert info.hits + info.coalesced == images - len(PICTURES)
        assert info.errors == 0
    assert in_the_parent.misses == 0, "this ran where it should not"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_what_the_parent_has_processed_harms_no_forked_worker() -> None:
    plain = transformers.Qwen2VLImageProcessor(size=SIZE)
    with mmcache.Cache("64MiB", name="loader-warm", verify_rate=0, max_overhead=1) as cache:
        wrapped = mmcache.wrap(plain, cache)
        warm = wrapped(PICTURES, return_tensors="pt")
        cache.settle()
        loader: DataLoader[Made] = DataLoader(
            Batches(wrapped, cache), batch_size=None, sampler=BATCHES, num_workers=2, multiprocessing_context="fork"
        )
        for numbers, batch in zip(BATCHES, loader, strict=True):
            expected = plain([PICTURES[number] for number in numbers], return_tensors="pt")
            assert difference(dict(expected), batch.output) == ""
            assert batch.info.errors == 0
        assert difference(warm, wrapped(PICTURES, return_tensors="pt")) == ""
