"""Verification that goes on in traffic: what a trial on small pictures cannot see is caught before it is given."""

import importlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers

import mmcache
from mmcache.layout.compare import difference
from mmcache.verification import Verification
from tests.pictures import counted, picture

PIL = transformers.CLIPImageProcessorPil
A, B, C = picture(1), picture(2), picture(3, 64, 96)


def same(expected: Any, found: Any) -> None:
    assert difference(expected, found) == ""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    monkeypatch.setattr("mmcache.stages.PATIENCE_SECONDS", 120.0)


@pytest.fixture
def cache() -> Iterator[mmcache.Cache]:
    with mmcache.Cache("256MiB", name="verified") as cache:
        yield cache


class Budget(PIL):
    """Darkens a batch whose pictures have more pixels together than any small picture of a trial: a budget."""

    most = 5 * 10**6

    def preprocess(self, images: Any, *args: Any, **options: Any) -> Any:
        output = super().preprocess(images, *args, **options)
        together = sum(image.width * image.height for image in images) if isinstance(images, list) else 0
        if together > self.most:
            output["pixel_values"] = output["pixel_values"] / 2
        return output


class TestWhatIsVerified:
    def test_the_first_misses_and_the_first_of_each_stratum_then_one_in_256(self) -> None:
        verification = Verification(None)
        assert [verification.wants(b"s", 1, missed=True) for _ in range(9)] == [True] * 8 + [False]
        assert verification.wants(b"s", 2, missed=False)
        assert not verification.wants(b"s", 2, missed=False)
        assert verification.wants(b"other", 1, missed=False)
        assert sum(verification.wants(b"s", 1, missed=False) for _ in range(2560)) == 10

    def test_what_needed_no_layout_only_by_its_share(self) -> None:
        verification = Verification(None)
        assert sum(verification.wants(b"s", None, missed=True) for _ in range(512)) == 2

    @pytest.mark.parametrize(("rate", "expected"), [(0, 0), (1, 1000), (0.5, 500), (0.01, 10)])
    def test_a_rate_sets_the_later_share_and_zero_turns_it_off(self, rate: float, expected: int) -> None:
        verification = Verification(rate)
        verification.wants(b"s", 1, missed=False)
        assert sum(verification.wants(b"s", 1, missed=False) for _ in range(1000)) == expected
        assert verification.wants(b"s", 2, missed=True) is (rate != 0)

    @pytest.mark.parametrize("rate", [-1, 1.5, "often", float("nan")])
    def test_a_wrong_rate_is_refused(self, rate: Any) -> None:
        with pytest.raises(mmcache.BadArgument, match="a share from 0"):
            mmcache.Cache(verify_rate=rate)

    def test_the_environment_sets_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MMCACHE_VERIFY_RATE", "0")
        wrapped = mmcache.wrap(PIL(), cache := mmcache.Cache("64MiB"))
        wrapped([A, B])
        assert cache.cache_info().verified == 0

    def test_threads_share_it(self) -> None:
        verification = Verification(0.5)
        wanted: list[bool] = []

        def ask() -> None:
            wanted.extend(verification.wants(b"s", None, missed=False) for _ in range(500))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(wanted) == 2000


def test_first_batches_are_compared_and_counted_apart(cache: mmcache.Cache) -> None:
    wrapped = mmcache.wrap(PIL(), cache)
    for images in ([A, B], [A, B], [B, A], [A, B, C], [C]):
        same(PIL()(images, return_tensors="pt"), wrapped(images, return_tensors="pt"))
    info = cache.cache_info()
    # Two and three pictures, and one whose item of lists was made a tensor.
    assert (info.verified, info.mismatches, info.errors, info.misses) == (3, 0, 0, 3)


def test_a_difference_is_caught_before_it_is_given_and_ends_caching(
    cache: mmcache.Cache, caplog: pytest.LogCaptureFixture
) -> None:
    plain = Budget()
    wrapped = mmcache.wrap(plain, cache)
    small, large = [A, B], [picture(5, 2000, 1500), picture(6, 2000, 1500)]
    same(plain(small, return_tensors="pt"), wrapped(small, return_tensors="pt"))
    for image in large:
        wrapped(image, return_tensors="pt")  # each alone is what it is alone
    same(plain(large, return_tensors="pt"), wrapped(large, return_tensors="pt"))
    info = cache.cache_info()
    assert (info.mismatches, info.items) == (1, 0)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "pixel_values" in record.message
    with counted(Budget) as runs:
        for _ in range(2):
            same(plain(large, return_tensors="pt"), wrapped(large, return_tensors="pt"))
        assert runs.images == 8
    assert any("verification found a difference" in reason for reason in cache.cache_info().bypass_reasons)


def test_a_batch_that_the_plain_processor_refuses_raises_its_error(cache: mmcache.Cache) -> None:
    class Few(PIL):
        def preprocess(self, images: Any, *args: Any, **options: Any) -> Any:
            if isinstance(images, list) and len(images) > 8:
                raise ValueError("at most eight")
            return super().preprocess(images, *args, **options)

    wrapped = mmcache.wrap(Few(), cache)
    with pytest.raises(ValueError, match="at most eight"):
        wrapped([A, B, C] * 3, return_tensors="pt")
    assert cache.cache_info().mismatches == 1


def test_hits_are_compared_by_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that is not what it was, in a way that its identity does not see: a library patched inside."""
    backends: Any = importlib.import_module("transformers.image_processing_backends")

    with mmcache.Cache("64MiB", verify_rate=1) as cache:
        wrapped = mmcache.wrap(PIL(), cache)
        wrapped(A, return_tensors="pt")
        original = backends.np_rescale
        monkeypatch.setattr(backends, "np_rescale", lambda image, **options: original(image, **options) * 2)
        same(PIL()(A, return_tensors="pt"), wrapped(A, return_tensors="pt"))
        assert cache.cache_info().mismatches == 1


def test_an_image_that_is_written_to_meanwhile_is_no_mismatch(
    cache: mmcache.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    wrapped = mmcache.wrap(PIL(), cache)
    wrapped([np.asarray(A).copy(), np.asarray(B).copy()], return_tensors="pt")
    array = np.asarray(A).copy()
    # Where the method is defined: a new member of the class itself would change the identity of its code.
    owner = next(base for base in PIL.__mro__ if "preprocess" in vars(base))
    original = vars(owner)["preprocess"]

    def writing(self: Any, images: Any, *args: Any, **options: Any) -> Any:
        if isinstance(images, list) and len(images) == 3:
            array.fill(7)
        return original(self, images, *args, **options)

    writing.__mmcache_original__ = original  # type: ignore[attr-defined]
    monkeypatch.setattr(owner, "preprocess", writing)
    before = cache.cache_info().verified
    wrapped([array, np.asarray(B).copy(), np.asarray(C).copy()], return_tensors="pt")
    info = cache.cache_info()
    assert (info.mismatches, info.errors, info.verified) == (0, 0, before + 1)


GREY, LARGE = B.convert("L"), picture(9, 200, 300)
SQUARES = [picture(seed, 64, 64) for seed in (4, 5, 6)]

# Batches of pictures that are known, and others that differ from them in one thing.
STRATA: dict[str, tuple[Any, Any]] = {
    "number of images, as large together": ([A, B], SQUARES),
    "pixels": ([A, B], [A, LARGE]),
    "kinds of images": ([A, B], [A, GREY]),
    "samples": ([[A], [B]], [[A, B]]),
}


@pytest.mark.parametrize(("usual", "new"), STRATA.values(), ids=STRATA)
def test_the_first_batch_of_a_stratum_is_compared_though_each_picture_is_known(
    usual: Any, new: Any, cache: mmcache.Cache
) -> None:
    wrapped = mmcache.wrap(PIL(), cache)
    for image in (A, B, GREY, LARGE, *SQUARES):
        wrapped(image)

    def verified(images: Any) -> int:
        before = cache.cache_info().verified
        same(PIL()(images), wrapped(images))
        return cache.cache_info().verified - before

    assert [verified(images) for images in (usual, usual, new, new)] == [1, 0, 1, 0]


def test_batch_functions_are_verified_too(cache: mmcache.Cache) -> None:
    @mmcache.cached(cache=cache, version="1", layout={"mean": mmcache.layout.Batched()})
    def means(images: list[Any]) -> dict[str, Any]:
        values = torch.tensor([float(image.width) for image in images])
        return {"mean": values - values.min()}  # depends on the neighbours

    expected = means.__wrapped__([A, C])
    for _ in range(2):
        same(expected, means([A, C]))
    info = cache.cache_info()
    assert (info.mismatches, info.items) == (1, 0)
    assert any("verification found a difference" in reason for reason in info.bypass_reasons)


def test_tickets_are_verified_as_the_one_call_that_gives_the_same(cache: mmcache.Cache) -> None:
    with mmcache.Stages(Budget(), cache=cache) as stages:
        large = [picture(7, 2000, 1500), picture(8, 2000, 1500)]
        tickets = [stages.add(image) for image in large]
        same(Budget()(large, return_tensors="pt"), stages.execute(tickets))
        assert cache.cache_info().mismatches == 1
        same(Budget()(large, return_tensors="pt"), stages.execute(tickets))


def test_a_source_changed_since_add_is_no_mismatch(cache: mmcache.Cache) -> None:
    import numpy as np

    with mmcache.Stages(PIL(), cache=cache, pixels="now") as stages:
        arrays = [np.asarray(A).copy(), np.asarray(B).copy()]
        tickets = [stages.add(array) for array in arrays]
        expected = PIL()([array.copy() for array in arrays], return_tensors="pt")
        arrays[0].fill(0)
        same(expected, stages.execute(tickets))
        assert cache.cache_info().mismatches == 0
