"""Fields against a slow and independent reference, over all kinds of arrays."""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BatchFeature

from mmcache import NotJoinable
from mmcache.layout import Batched, FlatFromSizes, Layout, Nested, Padded, PerImageList, Same
from mmcache.layout.compare import difference

quick = settings(deadline=None, max_examples=80)

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.uint8, torch.int64, torch.float64)


def reference(parts: Sequence[Any], axis: int, pad: float) -> Any:
    """Write element by element what the parts are to become, in plain Python."""
    shapes = [tuple(part.shape) for part in parts]
    target = [max(dims) for dims in zip(*shapes, strict=True)]
    target[axis] = sum(shape[axis] for shape in shapes)
    first = parts[0]
    filled = np.empty(target, dtype=object)
    filled[...] = None
    start = 0
    for part, shape in zip(parts, shapes, strict=True):
        for index in np.ndindex(*shape):
            place = tuple(i + start * (dim == axis) for dim, i in enumerate(index))
            filled[place] = part[index].item() if isinstance(part, torch.Tensor) else part[index]
        start += shape[axis]
    flat = [pad if value is None else value for value in filled.reshape(-1).tolist()]
    if isinstance(first, torch.Tensor):
        return torch.tensor(flat, dtype=first.dtype).reshape(target)
    return np.array(flat, dtype=first.dtype).reshape(target)


@st.composite
def parts_of_equal_rank(draw: Callable[..., Any], axis: int, ragged: bool) -> list[Any]:
    rank = draw(st.integers(axis + 1, 4))
    sizes = draw(st.lists(st.integers(0 if not ragged else 1, 3), min_size=rank, max_size=rank))
    dtype, arrays = draw(st.sampled_from(DTYPES)), draw(st.booleans())
    parts: list[Any] = []
    for seed in range(draw(st.integers(1, 4))):
        shape = [
            draw(st.integers(0, 3)) if dim == axis else draw(st.integers(0, 3)) if ragged else size
            for dim, size in enumerate(sizes)
        ]
        values = torch.from_numpy(np.random.default_rng(seed).integers(0, 2 if dtype is torch.bool else 100, shape))
        part = values.to(dtype)
        if draw(st.booleans()) and part.ndim > 1:
            part = part.transpose(0, 1).contiguous().transpose(0, 1)
        parts.append(part.numpy() if arrays and dtype is not torch.bfloat16 else part)
    if len({type(part) for part in parts}) > 1:
        parts = [torch.as_tensor(part) for part in parts]
    return parts


@given(parts_of_equal_rank(0, ragged=False))
@quick
def test_batched_parts_follow_each_other(parts: list[Any]) -> None:
    for field in (Batched(), FlatFromSizes("image_grid_thw"), Padded(1)):
        assert difference(reference(parts, 0, 0), field.join(parts)) == ""


@given(parts_of_equal_rank(0, ragged=True), st.sampled_from([0, 1, True, 0.0]))
@quick
def test_padding_is_at_the_end_of_every_other_dim(parts: list[Any], pad: float) -> None:
    assert difference(reference(parts, 0, pad), Padded(pad).join(parts)) == ""


@given(parts_of_equal_rank(1, ragged=True), st.sampled_from([0, 1, -0.0]))
@quick
def test_nested_parts_follow_each_other_on_dim_1(parts: list[Any], pad: float) -> None:
    assert difference(reference(parts, 1, pad), Nested(pad).join(parts)) == ""


def split(whole: Any, shapes: Sequence[tuple[int, ...]], axis: int) -> list[Any]:
    """Cut the parts out of a batch by their shapes, which is what padding hides."""
    starts = itertools.accumulate((shape[axis] for shape in shapes), initial=0)
    return [
        whole[tuple(slice(start * (dim == axis), start * (dim == axis) + size) for dim, size in enumerate(shape))]
        for start, shape in zip(starts, shapes, strict=False)
    ]


@given(parts_of_equal_rank(1, ragged=True), st.sampled_from([(Padded(1), 0), (Nested(), 1)]))
@quick
def test_to_join_and_split_is_the_identity(parts: list[Any], rule: tuple[Any, int]) -> None:
    field, axis = rule
    found = split(field.join(parts), [tuple(part.shape) for part in parts], axis)
    assert difference(parts, found) == ""
    assert difference(field.join(parts), field.join(found)) == ""


@given(parts_of_equal_rank(0, ragged=True))
@quick
def test_joined_parts_are_fresh_memory_and_parts_stay_as_they_are(parts: list[Any]) -> None:
    before = [part.clone() if isinstance(part, torch.Tensor) else part.copy() for part in parts]
    for join in (Padded().join, PerImageList().join, Same().join):
        given_parts: list[Any] = [[part] for part in parts] if join.__self__ == PerImageList() else parts  # type: ignore[attr-defined]
        if join.__self__ == Same():  # type: ignore[attr-defined]
            given_parts = [parts[0]] * 2
        joined = join(given_parts)
        for whole in joined if isinstance(joined, list) else [joined]:
            whole[...] = 1
    assert difference(before, parts) == ""


@given(
    st.lists(
        st.lists(parts_of_equal_rank(0, ragged=True).map(lambda parts: parts[0]), max_size=3), min_size=1, max_size=4
    )
)
@quick
def test_lists_per_image_are_appended_whatever_their_shapes(parts: list[list[Any]]) -> None:
    expected = [entry for part in parts for entry in part]
    assert difference(expected, PerImageList().join(parts)) == ""
    assert difference(expected, Batched().join(parts)) == ""


def test_padded_lists_of_arrays_are_padded_to_one_shape() -> None:
    joined = Padded(7).join([[np.zeros((2, 1))], [np.zeros((1, 3)), np.zeros((1, 1))]])
    assert isinstance(joined, list)
    expected = [[[0, 7, 7], [0, 7, 7]], [[0, 0, 0], [7, 7, 7]], [[0, 7, 7], [7, 7, 7]]]
    assert [entry.tolist() for entry in joined] == expected


def test_nested_lists_join_inside_their_samples() -> None:
    assert Nested().join([[["a"], ["b"]], [["c"], ["d"]]]) == [["a", "c"], ["b", "d"]]
    assert Nested().join([[[1]], [[2]], [[3]]]) == [[1, 2, 3]]
    rows = Nested(1).join([[torch.zeros(1, 2)], [torch.zeros(2, 1)]])
    assert difference([torch.tensor([[0.0, 0], [0, 1], [0, 1]])], rows) == ""


@pytest.mark.parametrize("value", [float("-inf"), -1, 0.5, 1e30])
def test_any_value_of_the_dtype_pads(value: float) -> None:
    joined = Padded(value).join([torch.zeros(1, 1), torch.zeros(1, 2)])
    assert difference(torch.tensor([[0.0, value], [0, 0]]), joined) == ""


def test_nan_pads() -> None:
    joined = Padded(float("nan")).join([np.zeros((1, 1)), np.zeros((1, 2))])
    assert difference(np.array([[0.0, float("nan")], [0, 0]]), joined) == ""


@pytest.mark.parametrize(
    ("field", "parts"),
    [
        (Batched(), [torch.zeros(1, 2), torch.zeros(1, 3)]),
        (Batched(), [torch.zeros(1, 2), torch.zeros(1, 2, 1)]),
        (Batched(), [torch.zeros(1), torch.zeros(1, dtype=torch.float64)]),
        (Batched(), [torch.zeros(()), torch.zeros(())]),
        (Batched(), [torch.zeros(1), np.zeros(1)]),
        (Batched(), [torch.zeros(1), [1]]),
        (Batched(), [1, 2]),
        (Batched(), ["a", "b"]),
        (Batched(), [None, None]),
        (Batched(), [{"a": 1}, {"a": 1}]),
        (Padded(), [torch.zeros(1, 2), torch.zeros(1, 2, 1)]),
        (Padded(), [[np.zeros(1)], [np.zeros((1, 1))]]),
        (Padded(300), [np.zeros((1, 1), np.uint8), np.zeros((1, 2), np.uint8)]),
        (Padded(300), [torch.zeros(1, 1, dtype=torch.uint8), torch.zeros(1, 2, dtype=torch.uint8)]),
        (Padded(-1), [np.zeros((1, 1), np.uint8), np.zeros((1, 2), np.uint8)]),
        (Padded(float("nan")), [np.zeros((1, 1), np.int64), np.zeros((1, 2), np.int64)]),
        (Padded(float("inf")), [np.zeros((1, 1), np.int64), np.zeros((1, 2), np.int64)]),
        (Nested(), [torch.zeros(1), torch.zeros(1)]),
        (Nested(), [[["a"], ["b"]], [["c"]]]),
        (PerImageList(), [torch.zeros(1), torch.zeros(1)]),
        (PerImageList(), [[1], (2,)]),
        (PerImageList(), [(1,), (2,)]),
        (Same(), [1, 2]),
        (Same(), [torch.tensor([0.0]), torch.tensor([-0.0])]),
        (Same(), [1, True]),
        (Same(), [{"a": 1, "b": 2}, {"b": 2, "a": 1}]),
    ],
)
def test_what_makes_no_batch_is_not_joined(field: Any, parts: list[Any]) -> None:
    with pytest.raises(NotJoinable):
        field.join(parts)


def test_same_takes_what_is_equal_in_bits() -> None:
    for value in (None, 3, float("nan"), torch.tensor([float("nan")]), {"a": [np.zeros(2)]}, "x"):
        assert difference(value, Same().join([value, value, value])) == ""


def test_fields_and_layouts_are_values() -> None:
    assert Batched() == Batched()
    assert Padded(1) == Padded(1) != Padded(0)
    assert len({Padded(), Nested(), Batched(), PerImageList(), Same()}) == 5
    assert FlatFromSizes("a") != FlatFromSizes("b")
    assert Layout({"a": Padded(1)}) == Layout({"a": Padded(1)}) != Layout({"a": Padded(1)}, {"a": Batched()})


def outputs(kind: Any) -> list[Any]:
    return [kind({"pixels": torch.full((n, 2), float(n)), "grid": torch.tensor([[n]]), "note": "x"}) for n in (1, 3)]


@pytest.mark.parametrize("kind", [dict, OrderedDict, BatchFeature])
def test_a_layout_joins_every_output_in_the_container_and_order_of_the_singles(kind: Any) -> None:
    layout = Layout({"note": Same(), "grid": Batched(), "pixels": FlatFromSizes("grid")})
    joined: Any = layout.join(outputs(kind))
    assert type(joined) is kind
    assert list(joined) == ["pixels", "grid", "note"]
    assert joined["pixels"].tolist() == [[1.0, 1.0]] + [[3.0, 3.0]] * 3
    assert joined["grid"].tolist() == [[1], [3]]
    assert difference(layout.join(outputs(kind)[:1]), layout.join(outputs(kind)[:1])) == ""


def test_attributes_of_a_batch_feature_are_carried_over() -> None:
    singles = [BatchFeature({"a": [n]}, skip_tensor_conversion=["a"]) for n in (1, 2)]
    joined = Layout({"a": PerImageList()}).join(singles)
    assert difference(BatchFeature({"a": [1, 2]}, skip_tensor_conversion=["a"]), joined) == ""


def test_a_bare_output_has_one_field_without_a_name() -> None:
    joined = Layout({"": Batched()}).join([torch.zeros(1, 2), torch.ones(2, 2)])
    assert difference(torch.tensor([[0.0, 0], [1, 1], [1, 1]]), joined) == ""


@pytest.mark.parametrize("names", [{"pixels"}, {"pixels", "grid", "note", "more"}, set()])
def test_outputs_with_other_names_than_the_layouts_are_not_joined(names: set[str]) -> None:
    with pytest.raises(NotJoinable, match="names"):
        Layout({name: Batched() for name in names}).join(outputs(dict))


def test_outputs_that_disagree_on_their_names_are_not_joined() -> None:
    one, other = outputs(dict)
    layout = Layout({"pixels": Batched(), "grid": Batched(), "note": Same()})
    del other["note"]
    with pytest.raises(NotJoinable, match="names"):
        layout.join([one, other])
    with pytest.raises(NotJoinable, match="names"):
        layout.join([one, {"note": "x", **other}])


def test_samples_join_flat_unless_they_have_fields_of_their_own() -> None:
    images = [{"x": torch.full((1, 1, n), float(n))} for n in (1, 2, 3)]
    flat = Layout({"x": Padded()})
    assert difference(flat.join(images), flat.join_nested(images, [1, 2])) == ""
    nested = Layout({"x": Nested(9)}, samples={"x": Padded(8)})
    joined = nested.join_nested(images, [1, 2])["x"]
    assert joined.tolist() == [[[1, 8, 8], [8, 8, 8]], [[2, 2, 9], [3, 3, 3]]]
