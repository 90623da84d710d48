"""Outputs are compared by bits, types and order, where ``==`` and ``torch.equal`` are wrong both ways."""

import re
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BatchFeature

from mmcache.items import copy_tree
from mmcache.layout.compare import difference

NAN = float("nan")
OTHER_NAN = np.array([0x7FC00001], np.uint32).view(np.float32)

EQUAL: list[Any] = [
    None, True, 1, 1.0, "a", b"a", NAN, -0.0, 1j, [], (), {}, [1, [2, (3,)]],
    np.float32(NAN), np.float64(NAN), np.int64(3), np.float32(-0.0),
    torch.tensor([NAN, -0.0]), torch.tensor(NAN, dtype=torch.bfloat16), torch.tensor([], dtype=torch.int64),
    torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.complex64), torch.ones(3, 2).T, torch.ones(2, device="meta"),
    torch.tensor(3, dtype=torch.uint8), np.array([NAN, -0.0]), np.zeros((0, 3)), np.array(3), np.array(["ab", "c"]),
    np.zeros((4, 6))[::2, ::3], np.asfortranarray(np.ones((2, 3))), OrderedDict(a=1), BatchFeature({"a": torch.ones(2)}),
    np.array(["2020-01-01", "NaT"], "M8[D]"),
]  # fmt: skip


@pytest.mark.parametrize("value", EQUAL, ids=lambda value: f"{type(value).__name__} {value}"[:40])
def test_a_copy_does_not_differ(value: Any) -> None:
    twin = copy_tree(value)
    assert difference(value, twin) == ""
    assert difference({"a": [value]}, {"a": [twin]}) == ""


DIFFERENT: list[tuple[Any, Any, str]] = [
    (0.0, -0.0, "output: -0.0 instead of 0.0"),
    (1, True, "bool instead of int"),
    (1, 1.0, "float instead of int"),
    ([1], (1,), "tuple instead of list"),
    ([1, 2], [1], "length 1 instead of 2"),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "keys"),
    ({"a": 1}, OrderedDict(a=1), "OrderedDict instead of dict"),
    ({"a": [0, {"b": 1}]}, {"a": [0, {"b": 2}]}, r"output\['a'\]\[1\]\['b'\]: 2 instead of 1"),
    (torch.tensor([0.0]), torch.tensor([-0.0]), "bits differ"),
    (torch.ones(2), torch.ones(2, dtype=torch.float64), "float64"),
    (torch.ones(2), torch.ones(2, 1), r"\(2, 1\)"),
    (torch.ones(2), torch.ones(2, device="meta"), "meta"),
    (torch.ones(2), np.ones(2, np.float32), "ndarray instead of Tensor"),
    (np.zeros(2), -np.zeros(2), "bits differ"),
    (np.float32(0.0), np.float32(-0.0), "bits differ"),
    (np.array([1], ">i4"), np.array([1], "<i4"), "i4"),
    (OTHER_NAN, np.array([NAN], np.float32), "bits differ"),
    (BatchFeature({"a": 1}), {"a": 1}, "dict instead of BatchFeature"),
    (BatchFeature({"a": 1}, skip_tensor_conversion=["a"]), BatchFeature({"a": 1}), "skip_tensor_conversion"),
    (BatchFeature({"a": torch.zeros(2)}), BatchFeature({"a": torch.ones(2)}), r"\['a'\]: bits"),
    (None, 0, "int instead of NoneType"),
    ("a", "b", "'b' instead of 'a'"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "where"), DIFFERENT, ids=[d[2] for d in DIFFERENT])
def test_what_differs_is_found_both_ways_and_told(one: Any, other: Any, where: str) -> None:
    assert re.search(where, difference(one, other))
    assert difference(other, one)
    assert difference([one], [other])
    assert difference(BatchFeature({"x": one}), BatchFeature({"x": other})).startswith("output['x']")


def test_arrays_of_arrays_are_compared_by_what_is_in_them() -> None:
    ragged = np.empty(2, dtype=object)
    ragged[:] = [np.zeros((2, 3)), np.ones(4)]
    other = ragged.copy()
    assert difference(ragged, other) == ""
    other[1] = np.array([1.0, 1.0, 1.0, -0.0])
    assert "[1]: bits differ" in difference(ragged, other)
