"""The fields of few processors, each against plain Python."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcache import NotJoinable
from mmcache.layout import Along, Batched, Largest, Layout, Padded, PaddedLists, RunningOffset, Sometimes
from mmcache.layout.compare import difference
from mmcache.layout.geometry import outline

quick = settings(deadline=None, max_examples=60)

INTEGERS = (torch.int32, torch.int64, torch.int16)


def numbers(seed: int, shape: tuple[int, ...], dtype: torch.dtype = torch.int64, low: int = -3) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(low, 50, shape)).to(dtype)


def as_kind(tensor: torch.Tensor, kind: str) -> Any:
    return tensor.numpy() if kind == "array" else tensor


kinds = st.sampled_from(["tensor", "array"])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.sampled_from([-1, -2]), kinds)
@quick
def test_parts_follow_each_other_on_any_dim(sizes: list[int], axis: int, kind: str) -> None:
    shapes = [tuple(size if dim == axis % 3 else 2 for dim in range(3)) for size in sizes]
    parts = [numbers(seed, shape) for seed, shape in enumerate(shapes)]
    expected = torch.cat(parts, dim=axis)
    assert difference(as_kind(expected, kind), Along(axis).join([as_kind(part, kind) for part in parts])) == ""


@given(st.lists(st.lists(st.lists(st.booleans(), max_size=4), max_size=3), min_size=1, max_size=4))
@quick
def test_lists_are_padded_to_the_longest_of_the_batch(parts: list[list[list[bool]]]) -> None:
    longest = max((len(entry) for part in parts for entry in part), default=0)
    expected = []
    for part in parts:
        for entry in part:
            filled = list(entry)
            while len(filled) < longest:
                filled.append(False)
            expected.append(filled)
    before = [[list(entry) for entry in part] for part in parts]
    joined = PaddedLists(False).join(parts)
    assert difference(expected, joined) == ""
    for entry in joined:
        entry.append(True)
    assert parts == before, "a part was handed out"


@given(st.lists(st.integers(0, 99), min_size=1, max_size=5), kinds, st.sampled_from(INTEGERS))
@quick
def test_of_the_largest_nothing_but_the_largest_remains(values: list[int], kind: str, dtype: torch.dtype) -> None:
    assert Largest().join(values) == max(values)
    for shape in ((), (1,), (2, 1)):
        rows = [torch.full(shape, value, dtype=dtype) for value in values]
        expected = torch.full(shape, max(values), dtype=dtype)
        assert difference(as_kind(expected, kind), Largest().join([as_kind(row, kind) for row in rows])) == ""


def test_the_largest_is_taken_element_by_element() -> None:
    assert Largest().join([torch.tensor([1, 9]), torch.tensor([5, 2])]).tolist() == [5, 9]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=5),
    st.integers(0, 2), kinds, st.sampled_from(INTEGERS),
)  # fmt: skip
@quick
def test_indices_move_on_by_the_sizes_of_the_images_before(
    images: list[tuple[int, int, int]], dims: int, kind: str, dtype: torch.dtype
) -> None:
    outputs, expected, offset = [], [], 0
    for seed, (rows, tall, wide) in enumerate(images):
        indices = numbers(seed, (rows, 2), dtype)
        expected += [[index if index < 0 else index + offset for index in row] for row in indices.tolist()]
        offset += (1, tall, tall * wide)[dims]
        outputs.append({"at": as_kind(indices, kind), "pixels": as_kind(torch.zeros(tall, wide, 1), kind)})
    joined = Layout({"at": RunningOffset("pixels", dims), "pixels": Padded()}).join(outputs)
    wanted = as_kind(torch.tensor(expected, dtype=dtype).reshape(-1, 2), kind)
    assert difference(wanted, joined["at"]) == ""


@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_rows_that_are_not_constant_pad_as_whole_rows(kind: str) -> None:
    parts = [as_kind(torch.tensor([[[1, 1, 0]]]), kind), as_kind(torch.tensor([[[1, 1, 1], [1, 1, 0]]]), kind)]
    joined = Padded((1, 0, 0)).join(parts)
    assert joined.tolist() == [[[1, 1, 0], [1, 0, 0]], [[1, 1, 1], [1, 1, 0]]]
    assert difference(parts[0].dtype, joined.dtype) == ""


SOMETIMES = Layout(
    {"x": Batched(), "crops": Sometimes(Batched()), "mask": Sometimes(PaddedLists(False), 1), "n": Batched()}
)


def image(number: int, crops: int) -> dict[str, Any]:
    local = {"crops": torch.full((crops, 2), float(number)), "mask": [[True] * crops]} if crops else {}
    return {"x": torch.tensor([[number]]), **local, "n": [crops]}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5))
@quick
def test_outputs_that_come_and_go_are_joined_in_their_place(counts: list[int]) -> None:
    outputs = [image(number, crops) for number, crops in enumerate(counts)]
    expected: dict[str, Any] = {"x": torch.arange(len(counts))[:, None]}
    if any(counts):
        expected["crops"] = torch.cat([torch.full((crops, 2), float(i)) for i, crops in enumerate(counts)])
        expected["mask"] = [[True] * crops + [False] * (max(counts) - crops) for crops in counts]
    expected["n"] = counts
    assert difference(expected, SOMETIMES.join(outputs)) == ""


@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_images_without_an_output_may_stand_there_as_rows_of_padding(kind: str) -> None:
    layout = Layout({"x": Batched(), "mask": Sometimes(Padded(7), empty_rows=2)})
    there = as_kind(torch.tensor([[1, 2]]), kind)
    joined = layout.join([{"x": [0]}, {"x": [1], "mask": there}])
    assert joined["mask"].tolist() == [[7, 7], [7, 7], [1, 2]]


def test_an_outline_of_small_and_large_outputs_is_joined_too() -> None:
    outputs = [{"at": numbers(n, (rows, 2)), "pixels": torch.zeros(rows, 3)} for n, rows in enumerate((3, 2000))]
    layout = Layout({"at": RunningOffset("pixels", 1), "pixels": Batched()})
    whole = layout.join([outline(output) for output in outputs])
    assert {name: tuple(value.shape) for name, value in whole.items()} == {"at": (2003, 2), "pixels": (2003, 3)}
    assert all(value.is_meta for value in whole.values())


@pytest.mark.parametrize(
    ("field", "parts"),
    [
        (Along(-1), [torch.zeros(1, 2), torch.zeros(2, 2)]),
        (Along(-3), [torch.zeros(1, 2), torch.zeros(1, 2)]),
        (Along(-1), [[1], [2]]),
        (PaddedLists(), [[1], [2]]),
        (PaddedLists(), [torch.zeros(1, 1), torch.zeros(1, 1)]),
        (Largest(), [torch.zeros(1), torch.ones(1)]),
        (Largest(), [torch.tensor([1]), torch.tensor([1, 2])]),
        (Largest(), [torch.tensor([1]), torch.tensor([2], dtype=torch.int32)]),
        (Largest(), [True, False]),
        (Largest(), [1, torch.tensor(1)]),
        (Largest(), [[1], [2]]),
        (RunningOffset("x", 1), [torch.tensor([1]), torch.tensor([2])]),
        (Padded((1, 0)), [torch.zeros(1, 1, 3), torch.zeros(1, 2, 3)]),
        (Sometimes(Batched()), [torch.zeros(1, 2), torch.zeros(1, 3)]),
    ],
)
def test_what_makes_no_batch_is_not_joined(field: Any, parts: list[Any]) -> None:
    with pytest.raises(NotJoinable):
        field.join(parts)


@pytest.mark.parametrize(
    "beside",
    [{}, {"x": [1]}, {"x": torch.zeros(())}, {"x": None}],
    ids=["missing", "a list", "too few dims", "nothing"],
)
def test_without_sizes_beside_them_indices_do_not_move(beside: dict[str, Any]) -> None:
    outputs = [{"at": torch.tensor([1]), **beside}] * 2
    with pytest.raises(NotJoinable):
        Layout({"at": RunningOffset("x", 1), **dict.fromkeys(beside, Batched())}).join(outputs)


@pytest.mark.parametrize("at", [torch.zeros(1), torch.zeros(1, dtype=torch.bool), np.zeros(1), [1]])
def test_only_whole_numbers_are_indices(at: Any) -> None:
    with pytest.raises(NotJoinable):
        Layout({"at": RunningOffset("x", 1), "x": Batched()}).join([{"at": at, "x": torch.zeros(1)}] * 2)


@pytest.mark.parametrize("at", [torch.zeros(1, dtype=torch.int8), np.zeros(1, np.int8)])
def test_indices_do_not_overflow(at: Any) -> None:
    with pytest.raises(NotJoinable, match="no value"):
        Layout({"at": RunningOffset("x", 1), "x": Batched()}).join([{"at": at, "x": torch.zeros(200)}] * 2)


@pytest.mark.parametrize(
    "outputs",
    [
        [{"n": [1], "x": torch.zeros(1, 1)}],
        [{"x": torch.zeros(1, 1)}, {"x": torch.zeros(1, 1), "n": [1]}],
        [{"x": torch.zeros(1, 1), "n": [1], "more": 1}],
        [{"x": torch.zeros(1, 1), "mask": [[True]], "crops": torch.zeros(1, 2), "n": [1]}],
    ],
    ids=["another order", "a constant one missing", "one too many", "another order of those that come and go"],
)
def test_only_what_may_come_and_go_does(outputs: list[dict[str, Any]]) -> None:
    with pytest.raises(NotJoinable, match="names"):
        SOMETIMES.join(outputs)


def test_whole_samples_are_not_made_of_images() -> None:
    layout = Layout({"x": Batched()}, {"x": Padded()}, whole_samples=True)
    parts = [{"x": torch.ones(1, 1)}, {"x": torch.ones(2, 2)}]
    with pytest.raises(NotJoinable, match="whole samples"):
        layout.join_nested(parts, [1, 1])
    assert layout.join_samples(parts)["x"].tolist() == [[1, 0], [1, 1], [1, 1]]


def test_rare_fields_are_values_and_travel() -> None:
    fields = [Along(-1), PaddedLists(0), PaddedLists(2), Largest(), RunningOffset("a", 1), Sometimes(Batched(), 1)]
    assert len(set(fields)) == len(fields)
    assert pickle.loads(pickle.dumps(fields)) == fields
