"""Items: nothing done outside reaches what is kept, and what is kept is given again bit for bit."""

import enum
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from transformers import BatchFeature

from mmcache.items import NotStorable, copy_tree, freeze
from mmcache.layout.compare import difference

Pair = namedtuple("Pair", ["left", "right"])


class Typed(NamedTuple):
    image: Any
    size: int = 3


class Color(enum.Enum):
    RED = 1


class Feature(UserDict[str, Any]):
    """A mapping with attributes beside its data."""


DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.uint8, torch.int64, torch.complex64)

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5),
    st.complex_numbers(), st.just(Color.RED), st.just(torch.float16), st.just(...),
    npst.arrays(st.sampled_from([np.dtype(name) for name in ("u1", "f4", "?", ">i4", "U3")]), npst.array_shapes(min_dims=0, max_side=3)),
    st.builds(
        lambda shape, dtype: torch.ones(shape).to(dtype), st.lists(st.integers(0, 3), max_size=3), st.sampled_from(DTYPES)
    ),
)  # fmt: skip
trees = st.recursive(
    leaves,
    lambda children: st.one_of(
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), children, max_size=3),
        st.dictionaries(st.text(max_size=3), children, max_size=3).map(OrderedDict),
        st.dictionaries(st.text(max_size=3), children, max_size=3).map(BatchFeature),
        st.tuples(children, children).map(lambda pair: Pair(*pair)),
    ),
    max_leaves=8,
)


@given(trees)
@settings(deadline=None, max_examples=150)
def test_what_is_kept_is_given_again_bit_for_bit_and_shares_no_memory(tree: Any) -> None:
    item = freeze(tree, seconds=1.5)
    assert difference(tree, item.thaw()) == ""
    assert difference(tree, item.thaw()) == ""
    assert item.seconds == 1.5
    assert item.nbytes > 0 or not leaves_of(tree)
    taken = {pointer for tree in (tree, item.value) for pointer in pointers(tree)}
    assert not taken & set(pointers(item.thaw()))


def leaves_of(tree: Any) -> list[Any]:
    found: list[Any] = []
    copy_tree(tree, lambda leaf: found.append(leaf))
    return found


def pointers(tree: Any) -> list[int]:
    tensors = [leaf.data_ptr() for leaf in leaves_of(tree) if isinstance(leaf, torch.Tensor) and leaf.numel()]
    return tensors + [leaf.ctypes.data for leaf in leaves_of(tree) if isinstance(leaf, np.ndarray) and leaf.size]


def test_nothing_done_to_an_output_reaches_the_item() -> None:
    output: Any = BatchFeature({"a": torch.zeros(2), "b": [np.zeros(2), {"c": torch.zeros(1)}]})
    item = freeze(output)
    expected = item.thaw()
    for reached in (output, item.thaw()):
        reached["a"].fill_(1)
        reached["b"][0][:] = 1
        reached["b"][1]["c"].fill_(1)
        reached["b"].append(1)
        reached["d"] = 1
        del reached["a"]
        assert difference(expected, item.thaw()) == ""


def test_attributes_beside_the_data_are_carried_and_copied() -> None:
    feature = Feature(a=1)
    feature.extra = [torch.zeros(2)]  # type: ignore[attr-defined]
    batch = BatchFeature({"x": [1]}, skip_tensor_conversion=["x"])
    thawed, batch_thawed = freeze(feature).thaw(), freeze(batch).thaw()
    assert type(thawed) is Feature
    feature.extra[0].fill_(1)  # type: ignore[attr-defined]
    feature.extra.append(2)  # type: ignore[attr-defined]
    assert difference([torch.zeros(2)], vars(thawed)["extra"]) == ""
    assert vars(batch_thawed) == vars(batch)


def test_named_tuples_and_orders_of_keys_stay() -> None:
    tree = {"b": Typed(torch.zeros(1)), "a": OrderedDict([("z", 1), ("y", 2)])}
    thawed = freeze(tree).thaw()
    assert list(thawed) == ["b", "a"]
    assert list(thawed["a"]) == ["z", "y"]
    assert type(thawed["b"]) is Typed
    assert thawed["b"].size == 3


def test_an_item_counts_what_it_keeps_and_a_view_does_not_pin_its_base() -> None:
    base = torch.zeros(1_000_000)
    assert 10 <= freeze(base[:10]).nbytes < 1_000
    assert 10 <= freeze(base.numpy()[:10]).nbytes < 1_000
    assert freeze(base).nbytes >= 4_000_000
    assert freeze(base.expand(3, -1)).nbytes >= 12_000_000
    assert freeze(base.numpy()).nbytes >= 4_000_000
    assert freeze("x" * 100_000).nbytes >= 100_000
    assert freeze([1.5] * 10_000).nbytes >= 10_000 * 24
    item = freeze(base[5:10])
    assert item.value.untyped_storage().nbytes() == 20
    assert freeze(base.numpy()[::100_000]).value.base is None


def test_memory_orders_and_byte_orders_stay() -> None:
    fortran = np.asfortranarray(np.arange(6, dtype=">f8").reshape(2, 3))
    channels_last = torch.zeros(1, 3, 4, 5).to(memory_format=torch.channels_last)
    thawed = freeze([fortran, channels_last]).thaw()
    assert thawed[0].flags.f_contiguous
    assert thawed[0].dtype.str == ">f8"
    assert thawed[1].stride() == channels_last.stride()


def test_a_tensor_made_under_inference_mode_is_an_ordinary_one_afterwards() -> None:
    with torch.inference_mode():
        item = freeze(torch.ones(2) * 2)
    thawed = item.thaw()
    assert not item.value.is_inference()
    assert not thawed.is_inference()
    thawed.requires_grad_().sum().backward()


def test_freezing_records_no_graph_and_needs_none() -> None:
    with torch.enable_grad():
        tensor = torch.ones(2)
        item = freeze(tensor)
    assert item.value.grad_fn is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.ones(1, requires_grad=True), "requires grad"),
        (torch.ones(1, device="meta"), "meta"),
        (torch.ones(2).to_sparse(), "dense"),
        (torch.ones(2, dtype=torch.complex64).conj(), "dense"),
        (torch.nn.Parameter(torch.ones(1), requires_grad=False), "Parameter"),
        (np.array([None]), "Python objects"),
        (np.zeros(2, dtype=[("a", object)]), "Python objects"),
        (np.ma.masked_array([1]), "MaskedArray"),
        (defaultdict(list), "defaultdict"),
        ({1}, "set"),
        (bytearray(b"a"), "bytearray"),
        (object(), "builtins.object"),
        (torch.ones(2).max(0), "return_types"),
        (iter([1]), "list_iterator"),
        (type("Int", (int,), {})(3), "Int"),
        (lambda: 3, "function"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_given_again_exactly_is_refused_with_its_type(value: Any, reason: str) -> None:
    for tree in (value, [1, value], {"a": (value,)}, BatchFeature({"a": value}), Typed(value)):
        with pytest.raises(NotStorable, match=reason):
            freeze(tree)


def test_a_tree_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append({"again": loop})
    with pytest.raises(NotStorable, match="itself"):
        freeze(loop)


def test_leaves_can_be_replaced_without_touching_the_containers() -> None:
    tree = {"a": [1, (2,)], "b": Typed(3)}
    assert copy_tree(tree, lambda leaf: leaf * 10) == {"a": [10, (20,)], "b": Typed(30, 30)}
    assert tree == {"a": [1, (2,)], "b": Typed(3)}
