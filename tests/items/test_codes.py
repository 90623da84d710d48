"""Codes: what is kept of pixels gives them again to the bit, wherever they are written and as whatever dtype."""

import itertools
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcache.items import Coded, NotCodable, copy_tree, expanded, freeze
from mmcache.items import codes as codes_module
from mmcache.items.buffers import empty, is_large
from mmcache.items.codes import Expansion, Rule
from mmcache.layout.compare import difference

quick = settings(deadline=None, max_examples=60)

# Where channels are, and a shape that has them there; the third has two frames of each channel.
RULES = {
    "one table": (Rule(-1, 1), (2, 5, 7)),
    "channels first": (Rule(-3, 3), (2, 3, 5, 7)),
    "patches of two frames": (Rule(-1, 3, 2), (6, 3 * 2 * 4)),
    "channels last": (Rule(-1, 3), (5, 7, 3)),
    "tiles": (Rule(-3, 3), (2, 4, 3, 6, 6)),
}


def expansion(rule: Rule, dtype: torch.dtype = torch.float32, *, steps: bool = False) -> Expansion:
    first, second = torch.linspace(100, 130, rule.channels), torch.linspace(60, 70, rule.channels)
    table = ((torch.arange(256.0) - first[:, None]) / second[:, None]).to(dtype)
    return Expansion(rule, table, (first, second) if steps else None)


def values(rule: Rule, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    before, channels, repeats, rest = rule.view(shape)
    once = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (before, channels, 1, rest), np.uint8))
    return once.expand(before, channels, repeats, rest).reshape(shape)


def looked_up(pixels: torch.Tensor, made: Expansion) -> torch.Tensor:
    view = made.rule.view(pixels.shape)
    channel = torch.arange(view[1]).view(1, -1, 1, 1).expand(view)
    found: torch.Tensor = made.table[channel, pixels.reshape(view).long()].reshape(pixels.shape)
    return found


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("steps", [False, True], ids=["table", "steps"])
def test_codes_give_what_they_stand_for(name: str, steps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, shape = RULES[name]
    made, pixels = expansion(rule, steps=steps), values(rule, shape)
    for block in (1, 7, 1 << 16):
        monkeypatch.setattr(codes_module, "_BLOCK_ELEMENTS", block)
        assert difference(looked_up(pixels, made), Coded.of(pixels, made).expanded()) == ""


@pytest.mark.parametrize("name", RULES)
def test_arrays_and_whole_floats_are_coded_too(name: str) -> None:
    rule, shape = RULES[name]
    made, pixels = expansion(rule), values(rule, shape)
    expected = looked_up(pixels, made)
    assert difference(expected.numpy(), Coded.of(pixels.numpy(), made).expanded()) == ""
    assert difference(expected, Coded.of(pixels.float(), made).expanded()) == ""
    turned = pixels.float().numpy().copy(order="F")
    assert difference(expected.numpy(), Coded.of(turned, made).expanded()) == ""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("steps", [False, True], ids=["table", "steps"])
def test_expanded_into_another_dtype_they_are_what_casting_gives(dtype: torch.dtype, steps: bool) -> None:
    rule, shape = RULES["patches of two frames"]
    made, pixels = expansion(rule, steps=steps), values(rule, shape)
    found = Coded.of(pixels, made).destined(dtype, None).expanded()
    assert difference(looked_up(pixels, made).to(dtype), found) == ""


@given(
    st.sampled_from(sorted(RULES)), st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    st.lists(st.integers(1, 9), min_size=2, max_size=2), st.integers(0, 99),
)  # fmt: skip
@quick
def test_looked_up_in_pairs_they_are_the_same(name: str, dtype: torch.dtype, sizes: list[int], seed: int) -> None:
    rule, (*_, last) = RULES[name]
    shape = (sizes[0], *RULES[name][1][1:-1], last if rule.axis == -1 and rule.channels > 1 else sizes[1])
    made, pixels = expansion(rule, dtype), values(rule, shape, seed)
    with mock.patch.object(codes_module, "_MANY_CODES", 1), mock.patch.object(codes_module, "_BLOCK_ELEMENTS", 40):
        assert difference(looked_up(pixels, made), Coded.of(pixels, made).expanded()) == ""


def test_an_item_of_many_codes_is_looked_up_in_pairs() -> None:
    made, pixels = expansion(Rule(-1, 3, 2)), values(Rule(-1, 3, 2), (2000, 1176))
    with mock.patch.object(Expansion, "_look_up", None):
        assert difference(looked_up(pixels, made), Coded.of(pixels, made).expanded()) == ""


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_looked_up_on_another_device_they_are_the_same(name: str, dtype: torch.dtype) -> None:
    """Which device it is does not matter to a look-up: here it is done on the CPU."""
    rule, shape = RULES[name]
    made, pixels = expansion(rule, steps=True), values(rule, shape)
    out = torch.empty(rule.view(shape), dtype=dtype)
    made.write_far(Coded.of(pixels, made).codes, out)
    assert difference(looked_up(pixels, made).to(dtype), out.reshape(shape)) == ""


@given(st.sampled_from(sorted(RULES)), st.booleans(), st.integers(0, 99))
@quick
def test_written_into_a_larger_output_they_touch_their_place_only(name: str, steps: bool, seed: int) -> None:
    rule, shape = RULES[name]
    made, pixels = expansion(rule, steps=steps), values(rule, shape, seed)
    whole = torch.full((3, *[size + 1 for size in shape]), 7.0)
    place: Any = (1, *[slice(0, size) for size in shape])
    Coded.of(pixels, made).write(whole[place])
    assert difference(looked_up(pixels, made), whole[place].clone()) == ""
    whole[place] = 7.0
    assert bool((whole == 7.0).all())


def test_repeated_frames_are_kept_once_and_uint8_takes_a_fourth_of_float32() -> None:
    rule, shape = RULES["patches of two frames"]
    coded = Coded.of(values(rule, shape), expansion(rule))
    assert coded.nbytes * 8 == coded.expanded().nbytes
    item = freeze({"pixel_values": coded, "grid": torch.tensor([[1, 2, 3]])})
    assert coded.nbytes < item.nbytes < coded.nbytes + 1024


@pytest.mark.parametrize(
    "pixels",
    [
        torch.tensor([[0.5, 1.0, 2.0]]),
        torch.tensor([[256.0, 1.0, 2.0]]),
        torch.tensor([[-1.0, 1.0, 2.0]]),
        torch.tensor([[float("nan"), 1.0, 2.0]]),
        torch.tensor([[float("inf"), 1.0, 2.0]]),
    ],
    ids=["not whole", "too large", "negative", "not a number", "infinite"],
)
def test_other_values_are_not_coded(pixels: torch.Tensor) -> None:
    with pytest.raises(NotCodable):
        Coded.of(pixels, expansion(Rule(-1, 1)))


def test_frames_that_differ_are_not_coded() -> None:
    rule, shape = RULES["patches of two frames"]
    pixels = values(rule, shape).clone()
    pixels.view(6, 3, 2, 4)[5, 2, 1, 3] ^= 1
    with pytest.raises(NotCodable, match="frames"):
        Coded.of(pixels, expansion(rule))


def test_shapes_without_channels_in_their_place_are_not_coded() -> None:
    with pytest.raises(NotCodable, match="channels"):
        Coded.of(torch.zeros(4, 5, dtype=torch.uint8), expansion(Rule(-3, 3)))
    with pytest.raises(NotCodable, match="channels"):
        Coded.of(torch.zeros(4, 5, dtype=torch.uint8), expansion(Rule(-1, 3)))


def test_neither_the_source_nor_an_output_reaches_the_codes() -> None:
    rule, shape = RULES["channels first"]
    made, pixels = expansion(rule), values(rule, shape).clone()
    expected, coded = looked_up(pixels, made), Coded.of(pixels, made)
    pixels.zero_()
    for output in (coded.expanded(), copy_tree([coded])[0], expanded({"x": coded})["x"]):
        assert difference(expected, output) == ""
        output.zero_()
    assert difference(expected, coded.expanded()) == ""


@pytest.mark.parametrize("shape", [(0,), (3, 0), (5,), (1 << 20,), (3, 1 << 20), (2, 1 << 20, 2)])
def test_memory_for_outputs_is_ordinary_memory(shape: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        tensor = empty(shape, dtype)
        assert (tuple(tensor.shape), tensor.dtype, tensor.is_contiguous()) == (shape, dtype, True)
        tensor.fill_(1)
        assert int(tensor.sum(dtype=torch.float64)) == tensor.numel()
    assert is_large(8 << 20)


def test_tables_of_every_channel_order_are_used_where_they_belong() -> None:
    """One value in each channel at a time, so that a table in the wrong channel shows."""
    for name, (rule, shape) in RULES.items():
        made = expansion(rule)
        for value, channel in itertools.product((0, 255), range(rule.channels)):
            pixels: Any = torch.full(rule.view(shape), 128, dtype=torch.uint8)
            pixels[:, channel] = value
            pixels = pixels.reshape(shape)
            assert difference(looked_up(pixels, made), Coded.of(pixels, made).expanded()) == "", name
