"""Conversions: tensors and arrays made of what a processor gives in lists, to the bit, and only where that was tried."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import BatchFeature

import mmcache
from mmcache.errors import NotJoinable
from mmcache.layout.compare import difference
from mmcache.layout.conversion import KINDS, Conversion, find_conversion
from tests.pictures import counted, picture

ROWS = torch.arange(12.0).reshape(3, 4)


def rows() -> torch.Tensor:
    return ROWS.clone()


# What return_tensors=None gives, and as which kind what is made of it.
CONVERTED: dict[str, tuple[Any, str, Any]] = {
    "a tensor in a list": ([rows()], "pt", rows()[None]),
    "arrays in a list": ([rows().numpy(), rows().numpy()], "pt", torch.stack([rows(), rows()])),
    "tensors as arrays": ([rows(), rows()], "np", np.stack([ROWS.numpy()] * 2)),
    "a tensor": (rows(), "pt", rows()),
    "a tensor as an array": (rows(), "np", rows().numpy()),
    "an array that is turned": ([rows().numpy().T], "np", np.ascontiguousarray(rows().numpy().T)[None]),
    "an array with negative strides": ([rows().numpy()[::-1]], "pt", rows().flip(0)[None]),
    "sizes": ([(300, 400)], "pt", torch.tensor([[300, 400]])),
    "counts": ([3], "np", np.array([3])),
    "scalars": ([torch.tensor(3)], "pt", torch.tensor([3])),
    "no rows": ([torch.empty(0, 4)], "pt", torch.empty(1, 0, 4)),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_what_was_asked_for_is_made_of_lists(name: str) -> None:
    value, kind, asked = CONVERTED[name]
    conversion = find_conversion(kind, [(BatchFeature({"x": value}), BatchFeature({"x": asked}))])
    assert conversion is not None
    assert difference(BatchFeature({"x": asked}), conversion.apply(BatchFeature({"x": value}))) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_a_bare_output_is_converted_too(kind: str) -> None:
    asked: Any = ROWS[None] if kind == "pt" else ROWS[None].numpy()
    conversion = find_conversion(kind, [([rows()], asked)])
    assert conversion == Conversion(kind, frozenset({""}), frozenset({""}))
    assert difference(asked, conversion.apply([rows()])) == ""


def test_outputs_that_stay_lists_stay_as_they_are() -> None:
    lists = {"pixels": [rows()], "tiles": [[4]]}
    asked = {"pixels": ROWS[None], "tiles": [[4]]}
    assert find_conversion("pt", [(lists, asked)]) == Conversion(
        "pt", frozenset({"pixels"}), frozenset({"pixels", "tiles"})
    )


@pytest.mark.parametrize(
    ("lists", "asked"),
    [
        ({"x": [ROWS]}, {"x": ROWS[None] * 2}),
        ({"x": [ROWS]}, {"x": ROWS}),
        ({"x": [ROWS]}, {"x": ROWS[None].double()}),
        ({"x": [ROWS]}, {"y": ROWS[None]}),
        ({"x": [ROWS]}, ROWS[None]),
        ({"x": [ROWS, ROWS[:2]]}, {"x": ROWS[None]}),
        ({"x": "text"}, {"x": ROWS}),
        ({"x": [[0] * 2000]}, {"x": torch.zeros(1, 2000, dtype=torch.int64)}),
        ({"x": [ROWS]}, {"x": ROWS.T.contiguous().T[None]}),
    ],
    ids=[
        "other values", "another rank", "another dtype", "another name", "bare or not", "unequal sizes", "a text",
        "long lists", "another order in memory",
    ],
)  # fmt: skip
def test_what_differs_is_not_converted(lists: Any, asked: Any) -> None:
    assert find_conversion("pt", [(lists, asked)]) is None


def test_outputs_that_no_picture_of_the_trial_had_are_not_converted() -> None:
    conversion = find_conversion("pt", [({"x": [ROWS]}, {"x": ROWS[None]})])
    assert conversion is not None
    with pytest.raises(NotJoinable, match="not tried"):
        conversion.apply({"x": [ROWS], "late": [ROWS]})


def test_one_pair_that_differs_is_enough() -> None:
    fine = ({"x": [ROWS]}, {"x": ROWS[None]})
    assert find_conversion("pt", [fine, fine]) is not None
    assert find_conversion("pt", [fine, ({"x": [ROWS]}, {"x": -ROWS[None]})]) is None


def test_what_cannot_be_converted_says_so() -> None:
    with pytest.raises(NotJoinable, match="unequal sizes"):
        Conversion("pt", frozenset({"x"}), frozenset({"x"})).apply({"x": [ROWS, ROWS[:2]]})


@pytest.mark.parametrize("name", ["CLIPImageProcessor", "CLIPImageProcessorPil", "LlavaNextImageProcessor"])
def test_lists_tensors_and_arrays_are_made_of_one_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    plain = getattr(transformers, name)()
    pictures = [picture(1), picture(2, 80, 120)]
    with mmcache.Cache("256MiB", verify_rate=0) as cache:
        wrapped = mmcache.wrap(plain, cache)
        for tensors in ("pt", "np", None):  # the trials run here
            wrapped([picture(8), picture(9)], return_tensors=tensors)
        with counted(type(plain)) as runs:
            found = [wrapped(pictures, return_tensors=tensors) for tensors in ("np", "pt", None, "pt", "np")]
            assert runs == [1, 1]
        for output, tensors in zip(found, ("np", "pt", None, "pt", "np"), strict=True):
            assert difference(plain(pictures, return_tensors=tensors), output) == ""


class HalfOnlyInTensors(transformers.CLIPImageProcessor):
    """What it gives in lists is not what it gives in tensors, for pictures that are wide."""

    def preprocess(self, images: Any, *args: Any, **options: Any) -> Any:
        output = super().preprocess(images, *args, **options)
        first = images[0] if isinstance(images, list) else images
        if options.get("return_tensors") == "pt" and first.width > 2000:
            output["pixel_values"] = output["pixel_values"] / 2
        return output


@pytest.mark.parametrize("traffic", [(None, "pt", "pt"), ("pt", "pt")], ids=["a hit", "a miss"])
def test_a_conversion_that_the_trial_was_fooled_about_is_seen_in_traffic(
    traffic: tuple[str | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    plain, wide = HalfOnlyInTensors(), picture(3, 2100, 40)
    with mmcache.Cache("256MiB") as cache:
        wrapped = mmcache.wrap(plain, cache)
        for tensors in traffic:
            assert difference(plain(wide, return_tensors=tensors), wrapped(wide, return_tensors=tensors)) == ""
        assert cache.cache_info().mismatches == 1


class TensorsUnlessAsked(transformers.CLIPImageProcessor):
    """Its own signature says what is given where nothing is asked for."""

    def preprocess(self, images: Any, return_tensors: Any = "pt", do_normalize: bool = False, **options: Any) -> Any:
        return super().preprocess(images, return_tensors=return_tensors, do_normalize=do_normalize, **options)


class OnlyIfBoth(transformers.CLIPImageProcessorPil):
    """Has a default in its signature, and reads the attribute all the same."""

    def preprocess(self, images: Any, do_normalize: bool = True, **options: Any) -> Any:
        return super().preprocess(images, do_normalize=do_normalize and self.do_normalize, **options)


def test_an_attribute_counts_beside_a_default_in_the_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    with mmcache.Cache("256MiB", verify_rate=0) as cache:
        for plain in (OnlyIfBoth(), OnlyIfBoth(do_normalize=False), OnlyIfBoth()):
            assert difference(plain(picture(4)), mmcache.wrap(plain, cache)(picture(4))) == ""
        assert cache.cache_info().hits == 1


@pytest.mark.parametrize("subclass", [TensorsUnlessAsked, transformers.Emu3ImageProcessor])
def test_a_default_in_the_signature_is_not_the_attribute(subclass: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    plain: Any = subclass()
    asked: list[dict[str, Any]] = [{}, {"return_tensors": None}, {"return_tensors": "pt"}, {"do_normalize": True}]
    asked += [{"do_pad": False}, {"do_pad": True}]
    with mmcache.Cache("256MiB", verify_rate=0) as cache:
        wrapped = mmcache.wrap(plain, cache)
        for options in (*asked, *reversed(asked)):
            assert difference(plain(picture(4), **options), wrapped(picture(4), **options)) == "", options


class AttributeUnlessAsked(transformers.CLIPImageProcessor):
    """Gives what its attribute says where nothing is asked for, even where that is said."""

    return_tensors: Any

    def preprocess(self, images: Any, return_tensors: Any = None, **options: Any) -> Any:
        return super().preprocess(images, return_tensors=return_tensors or self.return_tensors, **options)


def test_what_an_attribute_asks_for_is_not_taken_for_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    arrays: Any = AttributeUnlessAsked(return_tensors="np")
    lists: Any = AttributeUnlessAsked()
    with mmcache.Cache("256MiB", verify_rate=0) as cache:
        for plain, asked in ((arrays, "pt"), (lists, None), (lists, "pt"), (arrays, None)):
            found = mmcache.wrap(plain, cache)(picture(5), return_tensors=asked)
            assert difference(plain(picture(5), return_tensors=asked), found) == "", asked
