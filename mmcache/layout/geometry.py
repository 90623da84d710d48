"""Geometry: everything about an image's outputs but its pixels, small enough to be remembered and to travel."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mmcache.items.codes import Coded
from mmcache.items.item import copy_tree, is_tensor

# Integers up to this number of elements are geometry (grids, sizes, counts of crops); larger ones are masks.
_MAX_GEOMETRY_ELEMENTS = 1024


def outline(output: Any) -> Any:
    """Return an output with its pixels taken out: integers and lists as they are, large or real tensors as shapes.

    A tensor's shape is a tensor on the ``meta`` device, an array's an array that repeats one element.
    """
    return copy_tree(output, _outline_leaf)


def filled(outlined: Any) -> Any:
    """Return an outline whose shapes can be read by code that expects real tensors: zeros that take no memory."""
    return copy_tree(outlined, _fill_leaf)


def summary(outlined: Any) -> dict[str, Any]:
    """Return an outline in plain Python: for each output a nested list of its integers, or the shape of its pixels.

    An output that is no mapping has the name ``""``.
    """
    if not isinstance(outlined, Mapping):
        outlined = {"": outlined}
    return {name: _plain(value) for name, value in outlined.items()}


def _outline_leaf(leaf: Any) -> Any:
    if isinstance(leaf, Coded):
        return _outline_of_codes(leaf)
    if is_tensor(leaf):
        if leaf.dtype.is_floating_point or leaf.element_size() == 1 or leaf.numel() > _MAX_GEOMETRY_ELEMENTS:
            return leaf.new_empty(leaf.shape, device="meta")
        return leaf.clone()
    if isinstance(leaf, np.ndarray):
        if leaf.dtype.kind == "f" or leaf.itemsize == 1 or leaf.size > _MAX_GEOMETRY_ELEMENTS:
            return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
        return leaf.copy()
    return leaf


def _outline_of_codes(coded: Coded) -> Any:
    if coded.kind == "np":
        return np.broadcast_to(np.zeros((), coded.dtype), coded.shape)
    return coded.codes.new_empty(coded.shape, dtype=coded.dtype, device="meta")


def _fill_leaf(leaf: Any) -> Any:
    if is_tensor(leaf) and leaf.is_meta:
        return leaf.new_zeros((), device="cpu").expand(leaf.shape)
    return leaf


def _plain(value: Any) -> Any:
    if is_tensor(value):
        return tuple(value.shape) if value.is_meta else value.tolist()
    if isinstance(value, np.ndarray):
        return tuple(value.shape) if 0 in value.strides and value.size else value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(child) for child in value]
    return value
