"""Nasty processors: each is served right, refused by the trial, or caught in traffic before a wrong tensor is given."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CLIPImageProcessorPil

import mmcache
from mmcache.layout.compare import difference
from tests.pictures import picture

Images = list[np.ndarray[Any, Any]]

A, B, C = picture(1), picture(2), picture(3, 64, 96)
LARGE, LARGER = picture(4, 1200, 900), picture(5, 1210, 920)
WIDE = picture(6, 1400, 40)
# Of values 0 and 1 only: as whole numbers they cannot be told from fractions of one.
DARK = C.point(lambda value: value & 1)


class Nasty(CLIPImageProcessorPil):
    """A small and fast processor that treats its images (channels first) in a way of its own before all else."""

    def __init__(self, **options: Any) -> None:
        super().__init__(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}, **options)

    def _preprocess(self, images: Any, *args: Any, **options: Any) -> Any:
        return super()._preprocess(self.treated(images), *args, **options)

    def treated(self, images: Images) -> Images:
        return images


class ThresholdInSize(Nasty):
    """Darkens an image that is wider than any of the trial's."""

    def treated(self, images: Images) -> Images:
        return [image // 2 if image.shape[2] > 1300 else image for image in images]


class CroppedByContent(Nasty):
    """Cuts an image down to its upper left part if that is dark."""

    def treated(self, images: Images) -> Images:
        return [image[:, :20, :20] if image[:, :20, :20].mean() < 127 else image for image in images]


class DividedByItsMaximum(Nasty):
    """Divides an image only if its maximum exceeds 1."""

    def treated(self, images: Images) -> Images:
        return [image // 255 if image.max() > 1 else image for image in images]


class ThresholdInSizeOfANeighbour(Nasty):
    """Darkens all images if one of them is wider than any of the trial's."""

    def treated(self, images: Images) -> Images:
        return [image // 2 for image in images] if any(image.shape[2] > 1300 for image in images) else images


class BudgetOverTheBatch(Nasty):
    """Darkens all images if together they have more pixels than any batch of the trial."""

    def treated(self, images: Images) -> Images:
        return [image // 2 for image in images] if sum(image[0].size for image in images) > 2_000_000 else images


class DividedByTheMaximumOfTheBatch(Nasty):
    """Divides all images only if the maximum over all of them exceeds 1; in the trial's batches it always does."""

    def treated(self, images: Images) -> Images:
        return [image // 2 for image in images] if max(image.max() for image in images) > 1 else images


class CountAboveTheTrials(Nasty):
    """Darkens the images of batches that are larger than the trial's."""

    def treated(self, images: Images) -> Images:
        return [image // 2 for image in images] if len(images) > 9 else images


class ContentOfANeighbour(Nasty):
    """Darkens all images if one of them is mostly red, as none of the trial's is."""

    def treated(self, images: Images) -> Images:
        reddest = max(float(image[0].mean() - image[1:].mean()) for image in images)
        return [image // 2 for image in images] if reddest > 100 else images


class Count(Nasty):
    """Darkens an image by the number of its neighbours."""

    def treated(self, images: Images) -> Images:
        return [image // len(images) for image in images]


class Order(Nasty):
    """Darkens the first image of a batch."""

    def treated(self, images: Images) -> Images:
        return [image // 2 if len(images) > 1 and position == 0 else image for position, image in enumerate(images)]


class Neighbours(Nasty):
    """Makes all images of a batch as light as the first."""

    def treated(self, images: Images) -> Images:
        return [(image * (images[0].mean() / 255)).astype(np.uint8) for image in images]


class Calls(Nasty):
    """Darkens images by the number of calls before, which is kept on the object."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls = 0

    def treated(self, images: Images) -> Images:
        self.calls += 1
        return [image // self.calls for image in images]


class LastImage(Nasty):
    """Makes each image as light as the one before, whichever call that was in."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.last = 255.0

    def treated(self, images: Images) -> Images:
        lightness = [float(image.mean()) for image in images]
        before, self.last = [self.last, *lightness[:-1]], lightness[-1]
        return [(image * (light / 255)).astype(np.uint8) for image, light in zip(images, before, strict=True)]


class RandomNumbers(Nasty):
    """Draws from every generator there is."""

    def treated(self, images: Images) -> Images:
        drawn = random.random() + np.random.random() + float(torch.rand(()))
        return [(image * (drawn / 3)).astype(np.uint8) for image in images]


class Threads(Nasty):
    """Darkens images by the number of torch's threads."""

    def treated(self, images: Images) -> Images:
        return [image // (1 + torch.get_num_threads()) for image in images]


DIVISOR = 1


class GlobalState(Nasty):
    """Darkens images by a global number."""

    def treated(self, images: Images) -> Images:
        return [image // DIVISOR for image in images]


class OwnGenerator:
    """State of a kind that no identity describes."""

    def __init__(self) -> None:
        self.numbers = itertools.count(1)

    def __call__(self) -> int:
        return next(self.numbers)


GENERATOR = OwnGenerator()


class HiddenState(Nasty):
    """Darkens images by a number out of a global object."""

    def treated(self, images: Images) -> Images:
        return [image // (1 + GENERATOR() % 5) for image in images]


RED = picture(7)
RED.paste((250, 0, 0), (8, 0, 96, 64))

TEN = [picture(seed) for seed in range(20, 30)]


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[mmcache.Cache]:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    with mmcache.Cache("64MiB", name="nasty") as cache:
        yield cache


def seeded() -> None:
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)


def outputs(processor: Any, traffic: list[Any]) -> list[Any]:
    """Return what a processor gives for each call of the traffic, and the random numbers that are next then."""
    seeded()
    given = [processor(images, return_tensors="pt") for images in traffic]
    return [*given, random.random(), np.random.random(), float(torch.rand(()))]


def assert_as_plain(plain: Any, wrapped: Any, traffic: list[Any]) -> None:
    for call, (expected, found) in enumerate(zip(outputs(plain, traffic), outputs(wrapped, traffic), strict=True)):
        assert difference(expected, found) == "", f"call {call}"


@pytest.mark.parametrize(
    "nasty", [ThresholdInSize, CroppedByContent, DividedByItsMaximum], ids=lambda nasty: nasty.__name__
)
def test_what_an_image_alone_decides_is_served_right(nasty: type[Nasty], cache: mmcache.Cache) -> None:
    traffic = [A, [A, B], [WIDE, C], [DARK, A], DARK, [LARGE, LARGER, LARGE], [WIDE], [DARK, WIDE, A, B, C, RED]]
    assert_as_plain(nasty(), mmcache.wrap(nasty(), cache), traffic + traffic)
    info = cache.cache_info()
    assert (info.bypassed, info.errors, info.mismatches) == (0, 0, 0), info.bypass_reasons
    assert info.hits > info.misses


REFUSED: dict[type[Nasty], str] = {
    Count: "no layout explains",
    Order: "no layout explains",
    Neighbours: "no layout explains",
    Calls: "one picture processed twice",
    LastImage: "one picture processed twice",
    RandomNumbers: "it draws random numbers",
}


@pytest.mark.parametrize("nasty", REFUSED, ids=lambda nasty: nasty.__name__)
def test_what_the_trial_refuses_is_plain_to_the_last_random_number(nasty: type[Nasty], cache: mmcache.Cache) -> None:
    traffic = [[A, B], [B, A, C], [A, B], [C, C], [B, A, C]]
    assert_as_plain(nasty(), mmcache.wrap(nasty(), cache), traffic)
    info = cache.cache_info()
    assert (info.hits, info.misses, info.errors) == (0, 0, 0)
    assert info.bypassed == sum(map(len, traffic))
    assert any(REFUSED[nasty] in reason for reason in info.bypass_reasons), info.bypass_reasons


# What the trial cannot see, and a batch that shows it: beyond the trial's sizes, counts and budgets each is the first
# of its stratum; what depends on content comes among the first misses.
CAUGHT: dict[type[Nasty], list[Any]] = {
    ThresholdInSizeOfANeighbour: [WIDE, B],
    BudgetOverTheBatch: [LARGE, LARGER],
    DividedByTheMaximumOfTheBatch: [DARK, A],
    CountAboveTheTrials: TEN,
    ContentOfANeighbour: [RED, B],
}


@pytest.mark.parametrize("nasty", CAUGHT, ids=lambda nasty: nasty.__name__)
def test_what_the_trial_cannot_reach_is_caught_in_traffic_before_a_wrong_tensor_is_given(
    nasty: type[Nasty], cache: mmcache.Cache, caplog: pytest.LogCaptureFixture
) -> None:
    plain, wrapped = nasty(), mmcache.wrap(nasty(), cache)
    assert_as_plain(plain, wrapped, [[A, B], [B, A], [A, B]])
    before = cache.cache_info()
    assert before.hits > 0, before.bypass_reasons
    assert before.mismatches == 0
    offending = CAUGHT[nasty]
    assert_as_plain(plain, wrapped, [offending])
    assert cache.cache_info().mismatches == 1
    assert "ERROR" in {record.levelname for record in caplog.records}
    # From now on this structure is plain, whatever was stored.
    caught = cache.cache_info()
    assert caught.items == 0
    assert_as_plain(plain, wrapped, [offending, [A, B], [*offending, A]])
    after = cache.cache_info()
    assert (after.mismatches, after.hits, after.misses) == (1, caught.hits, caught.misses)
    assert after.bypassed == caught.bypassed + 2 * len(offending) + 3
    assert after.errors == 0


@pytest.mark.parametrize("images", [LARGE, [LARGE], [B, A]], ids=["one", "list of one", "list"])
def test_a_caught_processor_leaves_other_processors_served(images: Any, cache: mmcache.Cache) -> None:
    caught, innocent = mmcache.wrap(CountAboveTheTrials(), cache), mmcache.wrap(ThresholdInSize(), cache)
    caught([A, B], return_tensors="pt")
    caught(TEN, return_tensors="pt")
    assert cache.cache_info().mismatches == 1
    expected = ThresholdInSize()(images, return_tensors="pt")
    before = cache.cache_info().hits
    for _ in range(2):
        assert difference(expected, innocent(images, return_tensors="pt")) == ""
    assert cache.cache_info().hits > before


def test_each_number_of_threads_has_its_own_output(cache: mmcache.Cache) -> None:
    plain, wrapped = Threads(), mmcache.wrap(Threads(), cache)
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 1, 2):
            torch.set_num_threads(number)
            assert_as_plain(plain, wrapped, [A, [A, B], A])
    finally:
        torch.set_num_threads(threads)
    assert cache.cache_info().hits > 0
    assert cache.cache_info().mismatches == 0


def test_each_value_of_a_global_number_has_its_own_output(
    cache: mmcache.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, wrapped = GlobalState(), mmcache.wrap(GlobalState(), cache)
    for divisor in (1, 3, 1, 3):
        monkeypatch.setattr("tests.test_nasty.DIVISOR", divisor)
        assert_as_plain(plain, wrapped, [A, [A, B], A])
    info = cache.cache_info()
    assert info.hits > 0
    assert (info.mismatches, info.bypassed) == (0, 0), info.bypass_reasons


def test_hidden_global_state_is_plain(cache: mmcache.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = [A, [A, B], A, [B, A]]
    found = {}
    for how, processor in (("plain", HiddenState()), ("wrapped", mmcache.wrap(HiddenState(), cache))):
        monkeypatch.setattr("tests.test_nasty.GENERATOR", OwnGenerator())
        found[how] = outputs(processor, traffic)
    assert difference(found["plain"], found["wrapped"]) == ""
    info = cache.cache_info()
    assert (info.hits, info.misses) == (0, 0)
    assert info.bypassed == 6


class RandomSometimes(Nasty):
    """Flips dark images by chance; none of the trial's is dark enough, but for the black one, which it leaves alone."""

    def treated(self, images: Images) -> Images:
        return [image[:, ::-1] if 0 < image.mean() < 9 and random.random() < 0.5 else image for image in images]


def test_numbers_drawn_for_some_pictures_only_are_drawn_each_time(cache: mmcache.Cache) -> None:
    dark = A.point(lambda value: value // 64)
    assert_as_plain(RandomSometimes(), mmcache.wrap(RandomSometimes(), cache), [A, dark, dark, A, dark, dark, dark])
    reasons = cache.cache_info().bypass_reasons
    assert any("random" in reason for reason in reasons), reasons


class LikeTheFirst(Nasty):
    """Makes every picture of a batch as colourful as the first."""

    def preprocess(self, images: Any, *args: Any, **options: Any) -> Any:
        if isinstance(images, list):
            images = [image.convert(images[0].mode) for image in images]
        return super().preprocess(images, *args, **options)


def test_kinds_that_are_fine_apart_and_not_together_are_caught_by_the_trial(cache: mmcache.Cache) -> None:
    plain = LikeTheFirst()
    wrapped = mmcache.wrap(plain, cache)
    grey = [A.convert("L"), B.convert("L")]
    for batch in ([A, B], grey, [grey[0], B], [A, grey[1]], [A, B]):
        assert difference(plain(batch, return_tensors="np"), wrapped(batch, return_tensors="np")) == ""
    info = cache.cache_info()
    assert any("kinds of images together" in reason for reason in info.bypass_reasons)
    assert (info.bypassed, info.hits) == (4, 2)
