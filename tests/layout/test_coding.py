"""Coding: found where the usual output is a table of whole values, to the bit, and nowhere else."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers

import mmcache
from mmcache.items import expanded
from mmcache.items.codes import Coded, NotCodable, Rule
from mmcache.layout import (
    Along,
    Batched,
    FlatFromSizes,
    Layout,
    Nested,
    Padded,
    RunningOffset,
    Same,
    Sometimes,
)
from mmcache.layout.coding import find_coding
from mmcache.layout.compare import difference
from mmcache.layout.fields import Field
from tests.pictures import counted, picture

# Every value in every place of its channel, and noise.
VALUES = [
    torch.arange(256, dtype=torch.uint8).repeat(3, 2).reshape(1, 3, 16, 32),
    torch.from_numpy(np.random.default_rng(1).integers(0, 256, (1, 3, 16, 32), np.uint8)),
]
MEAN, STD = torch.tensor([0.48, 0.45, 0.40]).view(3, 1, 1) * 255, torch.tensor([0.26, 0.27, 0.28]).view(3, 1, 1) * 255


def usual(values: torch.Tensor) -> torch.Tensor:
    return (values.float() - MEAN) / STD


def pairs(change: Any = lambda output: output) -> list[tuple[Any, Any]]:
    return [({"pixel_values": change(usual(values))}, {"pixel_values": values.clone()}) for values in VALUES]


def test_a_table_for_each_channel_is_found_with_its_two_steps() -> None:
    coding, unseen = find_coding(pairs())
    assert coding is not None
    assert unseen == []
    expansion = coding.expansions["pixel_values"]
    assert expansion.rule == Rule(-3, 3)
    assert expansion.steps is not None
    (coded,) = coding.coded({"pixel_values": VALUES[1]}).values()
    assert isinstance(coded, Coded)
    assert difference(usual(VALUES[1]), coded.expanded()) == ""


def test_one_table_for_all_is_preferred_and_values_that_were_not_shown_are_named() -> None:
    some = torch.tensor([[[[0, 1, 7, 255]]]], dtype=torch.uint8)
    coding, unseen = find_coding([({"x": some.float() / 255}, {"x": some})])
    assert coding is not None
    assert coding.expansions["x"].rule == Rule(-1, 1)
    assert unseen == sorted(set(range(256)) - {0, 1, 7, 255})


def test_a_table_without_two_steps_is_looked_up() -> None:
    coding, _ = find_coding([({"x": values.float().sqrt()}, {"x": values}) for values in VALUES])
    assert coding is not None
    assert coding.expansions["x"].steps is None
    assert difference(VALUES[1].float().sqrt(), coding.coded({"x": VALUES[1]})["x"].expanded()) == ""


def test_bits_decide_and_not_equality() -> None:
    """-0.0 equals 0.0, and is another value all the same."""
    signed = [values.float() * 0 for values in VALUES]
    signed[0][..., 0] = -0.0
    assert find_coding([({"x": s}, {"x": v}) for s, v in zip(signed, VALUES, strict=True)])[0] is None


@pytest.mark.parametrize(
    "change",
    [
        lambda output: torch.nn.functional.pad(output, (0, 1)),
        lambda output: output * torch.linspace(0, 1, 32),
        lambda output: output.flip(-1),
        lambda output: torch.where(torch.arange(32) < 2, 0.0, output),
        lambda output: output.tolist(),
    ],
    ids=["another shape", "depends on the place", "elsewhere", "zeros put in afterwards", "lists"],
)
def test_what_is_no_table_is_not_coded(change: Any) -> None:
    assert find_coding(pairs(change))[0] is None


def test_outputs_that_are_the_same_either_way_stay_as_they_are() -> None:
    grid = torch.tensor([[1, 16, 32]])
    both = [({**one, "grid": grid}, {**other, "grid": grid.clone()}) for one, other in pairs()]
    coding, _ = find_coding(both)
    assert coding is not None
    assert set(coding.expansions) == {"pixel_values"}


def test_outputs_that_only_some_pictures_have_are_coded_too_and_others_stop_it() -> None:
    both = pairs()
    for at, part in enumerate(both[1]):
        part["tiles"] = usual(VALUES[0]) if at == 0 else VALUES[0]
    coding, _ = find_coding(both)
    assert coding is not None
    assert set(coding.expansions) == {"pixel_values", "tiles"}
    with pytest.raises(NotCodable, match="late"):
        coding.coded({"pixel_values": VALUES[0], "late": VALUES[0]})


def test_an_output_that_changes_and_is_no_table_forbids_all() -> None:
    both = [({**one, "mean": torch.tensor(0.5)}, {**other, "mean": torch.tensor(0.7)}) for one, other in pairs()]
    assert find_coding(both)[0] is None


def test_nothing_is_gained_where_values_come_out_as_they_are() -> None:
    assert find_coding([({"x": values}, {"x": values}) for values in VALUES])[0] is None


# Live processors: what they store, and that nothing shows.

CODED = [
    "CLIPImageProcessor", "CLIPImageProcessorPil", "Qwen2VLImageProcessor", "Qwen2VLImageProcessorPil",
    "SiglipImageProcessor", "LlavaNextImageProcessor", "PixtralImageProcessor", "Gemma3ImageProcessor",
]  # fmt: skip


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    with mmcache.Cache("512MiB", name="codes", verify_rate=0) as cache:
        yield cache


@pytest.mark.parametrize("name", CODED)
def test_items_are_codes_and_outputs_are_the_plain_ones(name: str, cache: mmcache.Cache) -> None:
    plain = getattr(transformers, name)()
    wrapped = mmcache.wrap(plain, cache)
    pictures = [picture(1, 300, 200), picture(2, 200, 320), picture(3, 64, 64).point(lambda v: 255 * (v > 127))]
    total = 0
    for batch in ([pictures[0]], pictures[:1] * 2, pictures, pictures[1]):
        for tensors in ("pt", "np"):
            try:
                expected = plain(batch, return_tensors=tensors)
            except ValueError:  # unequal sizes that make no batch
                continue
            for _ in range(2):
                assert difference(expected, wrapped(batch, return_tensors=tensors)) == ""
    for image in pictures:
        total += plain([image], return_tensors="pt")["pixel_values"].nbytes
    info = cache.cache_info()
    assert info.items == 3
    assert info.currsize < total / (7 if name.startswith("Qwen") else 3.8) + 3 * 2048
    assert info.errors == 0


def test_a_picture_that_is_no_table_of_values_is_kept_as_it_came(cache: mmcache.Cache) -> None:
    class Bright(transformers.CLIPImageProcessor):
        """Scales the values of pictures that are white in a corner, before they are rescaled."""

        def preprocess(self, images: Any, *args: Any, **options: Any) -> Any:
            output = super().preprocess(images, *args, **options)
            first = images[0] if isinstance(images, list) else images
            if hasattr(first, "getpixel") and first.size == (50, 50) and not options.get("do_rescale", True):
                output["pixel_values"] = [value * 0.5 for value in output["pixel_values"]]
            return output

    plain = Bright()
    wrapped = mmcache.wrap(plain, cache)
    odd, even = picture(4, 50, 50), picture(5, 60, 50)
    for image in (even, odd, even, odd):
        assert difference(plain([image], return_tensors="pt"), wrapped([image], return_tensors="pt")) == ""
    with counted(Bright) as runs:
        wrapped([odd, even], return_tensors="pt")
        assert runs == []


@pytest.mark.parametrize("kind", ["pt", "np"])
@pytest.mark.parametrize(
    "field",
    [Batched(), Padded(0.5), Nested(), Same(), Along(-1), FlatFromSizes("sizes"), Sometimes(Padded(), empty_rows=1)],
    ids=repr,
)
def test_every_field_joins_codes_as_what_they_stand_for(field: Field, kind: str) -> None:
    """And beside them moves indices by their sizes."""
    coding, _ = find_coding(pairs())
    assert coding is not None
    layout = Layout({"pixel_values": field, "at": RunningOffset("pixel_values", 4)})
    coded = [
        {"pixel_values": coding.coded({"pixel_values": VALUES[1]})["pixel_values"].as_kind(kind), "at": torch.arange(3)}
        for _ in range(3)
    ]
    expected = layout.join(expanded(coded))
    assert int(expected["at"].max()) == 2 + 2 * VALUES[1].numel()
    assert difference(expected, layout.join(coded)) == ""


def test_pictures_with_and_without_codes_make_one_batch(cache: mmcache.Cache) -> None:
    plain = transformers.CLIPImageProcessor()
    wrapped = mmcache.wrap(plain, cache)
    clear = picture(6).convert("RGBA")
    clear.putalpha(picture(7).convert("L"))
    batch = [picture(6), clear, picture(8).convert("L"), picture(9).convert("P")]
    for _ in range(2):
        assert difference(plain(batch, return_tensors="pt"), wrapped(batch, return_tensors="pt")) == ""


def test_what_fails_without_the_last_steps_runs_with_them(cache: mmcache.Cache) -> None:
    class NeedsThem(transformers.CLIPImageProcessor):
        def preprocess(self, images: Any, *args: Any, **options: Any) -> Any:
            first = images[0] if isinstance(images, list) else images
            if getattr(first, "size", None) == (50, 50) and options.get("do_rescale") is False:
                raise ValueError("what would that be?")
            return super().preprocess(images, *args, **options)

    plain = NeedsThem()
    wrapped = mmcache.wrap(plain, cache)
    wrapped([picture(5)], return_tensors="pt")
    assert difference(plain([picture(4, 50, 50)]), wrapped([picture(4, 50, 50)])) == ""
    assert cache.cache_info().errors == 0
