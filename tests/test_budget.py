"""The budget: a cache steps aside where nothing comes back, says so, and is back soon after something does."""

import logging
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPImageProcessorPil

import mmcache
from mmcache.budget import Budget
from mmcache.fingerprints import samples_of
from mmcache.layout.compare import difference
from tests.pictures import picture

CLIP = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[mmcache.Cache]:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    with mmcache.Cache("64MiB", name="passing", verify_rate=0, max_overhead=0.02) as cache:
        yield cache


def exhausted(share: float | None = None) -> Budget:
    budget = Budget(share)
    for _ in range(70):
        budget.pay(0.001, 1)
    return budget


def test_it_begins_with_something_and_look_ups_use_it_up() -> None:
    budget = Budget(None)
    assert not budget.exhausted
    for _ in range(100):
        budget.pay(0.001, 1)
    assert budget.exhausted


def test_hits_and_processing_fill_it_again() -> None:
    budget = exhausted()
    budget.earn(1.0)
    assert not budget.exhausted
    budget = exhausted()
    budget.processed(1.0)
    assert budget.exhausted
    for _ in range(10):
        budget.processed(1.0)
    assert not budget.exhausted


def test_a_long_time_of_hits_pays_for_a_short_one_without() -> None:
    budget = Budget(None)
    for _ in range(1000):
        budget.earn(100.0)
    for _ in range(1000):
        budget.pay(0.002, 1)
    assert budget.exhausted


def test_with_a_share_of_one_nothing_ever_passes() -> None:
    assert not exhausted(1.0).exhausted


def test_a_repeat_does_not_pass_though_nothing_is_left() -> None:
    budget = exhausted()
    budget.earn(0.05)
    passed = [budget.lets_pass(lambda: [7]) for _ in range(20)]
    assert passed[0]
    assert not all(passed)
    assert not budget.lets_pass(lambda: [7]), "after a repeat every call is looked at"
    assert budget.lets_pass(lambda: [8])


def test_repeats_that_are_no_hits_do_not_cost_without_end() -> None:
    budget = exhausted()
    looked_up = 0
    for _ in range(2000):
        if not budget.lets_pass(lambda: [7]):
            looked_up += 1
            budget.pay(0.001, 1)
    assert looked_up <= 100


def test_samples_are_bounded() -> None:
    budget = exhausted()
    for number in range(500_000):
        budget.lets_pass(lambda number=number: [number])  # type: ignore[misc]
    assert len(budget._seen) + len(budget._seen_before) <= 32_768


SOURCES: dict[str, Any] = {
    "RGB": picture(1), "L": picture(2).convert("L"), "RGBA": picture(3).convert("RGBA"), "P": picture(4).convert("P"),
    "1": picture(5).convert("1"), "I;16": Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30)),
    "F": picture(6).convert("F"), "narrow": picture(7, 1, 900), "array": np.asarray(picture(8)),
    "channels first": np.ascontiguousarray(np.asarray(picture(9)).transpose(2, 0, 1)),
    "tensor": torch.from_numpy(np.asarray(picture(10)).copy()), "floats": torch.rand(3, 40, 50), "flat": torch.rand(40, 50),
    "bytes": bytes(range(256)) * 9, "path": "/some/where.jpg",
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_equal_sources_have_equal_samples_and_others_have_others(name: str) -> None:
    source = SOURCES[name]
    twin = source.copy() if hasattr(source, "copy") else source.clone() if hasattr(source, "clone") else source
    assert samples_of([source]) == samples_of([twin])
    assert len(samples_of([source])) == 1
    others = [other for kind, other in SOURCES.items() if kind != name]
    assert not set(samples_of([source])) & set(samples_of(others))


def test_what_no_sample_can_be_taken_of_has_none() -> None:
    broken = Image.new("RGB", (8, 8))
    assert samples_of([None, object(), [picture(1), None], np.empty((0, 3)), torch.zeros(())]) == samples_of(
        [picture(1)]
    )
    assert len(samples_of([broken, [broken]])) == 2


def passing(cache: mmcache.Cache) -> None:
    while not cache._budget.exhausted:
        cache._budget.pay(0.001, 1)


def test_images_that_pass_are_plain_and_counted_and_it_is_said_once(
    cache: mmcache.Cache, caplog: pytest.LogCaptureFixture
) -> None:
    wrapped = mmcache.wrap(CLIP, cache)
    wrapped([picture(90)], return_tensors="np")
    passing(cache)
    with caplog.at_level(logging.INFO, logger="mmcache"):
        for seed in range(6):
            batch = [picture(seed), picture(seed + 10)]
            assert difference(CLIP(batch, return_tensors="np"), wrapped(batch, return_tensors="np")) == ""
    info = cache.cache_info()
    assert (info.passed, info.misses, info.bypassed, info.errors) == (12, 1, 0, 0)
    (line,) = [record.message for record in caplog.records if "stepped aside" in record.message]
    assert "max_overhead" in line


def test_errors_of_images_that_pass_are_the_plain_ones(cache: mmcache.Cache) -> None:
    passing(cache)
    with pytest.raises(Exception) as plain:  # noqa: PT011 - whatever it is, it is the same
        CLIP(cast(Any, [object()]), return_tensors="np")
    with pytest.raises(type(plain.value), match=str(plain.value)[:20]):
        mmcache.wrap(CLIP, cache)(cast(Any, [object()]), return_tensors="np")


def test_traffic_that_repeats_brings_the_cache_back_within_a_few_hundred_images(cache: mmcache.Cache) -> None:
    wrapped = mmcache.wrap(CLIP, cache)
    wrapped([picture(90)], return_tensors="np")
    passing(cache)
    pictures = [picture(seed, 640, 480) for seed in range(20)]
    for number in range(400):
        wrapped([pictures[number % 20]], return_tensors="np")
    hits = cache.cache_info().hits
    assert hits > 100
    for image in pictures:
        wrapped([image], return_tensors="np")
    assert cache.cache_info().hits == hits + 20


def test_functions_that_cost_less_than_a_look_up_are_called(cache: mmcache.Cache) -> None:
    @mmcache.cached(cache=cache, version="1")
    def size(image: Any) -> tuple[int, int]:
        return (image.width, image.height)

    for seed in range(400):
        assert size(picture(seed)) == (96, 64)
    assert cache.cache_info().passed > 100


def test_tickets_are_always_redeemed(cache: mmcache.Cache) -> None:
    passing(cache)
    with mmcache.Stages(CLIP, cache=cache, pixels="now") as stages:
        for seed in range(8):
            stages.execute([stages.add(picture(seed))])
    assert (cache.cache_info().misses, cache.cache_info().passed) == (8, 0)
