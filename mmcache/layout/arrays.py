"""Joining tensors, arrays and lists: along one dim, padded at the end of the others, straight into fresh memory."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mmcache.errors import NotJoinable
from mmcache.items.buffers import empty
from mmcache.items.codes import Coded
from mmcache.items.item import copy_tree, is_tensor

# What padding is made of: one value, or a whole row of the last dim.
Pad = float | tuple[float, ...]


def is_array(value: Any) -> bool:
    """Whether this is a tensor or an array."""
    return is_tensor(value) or isinstance(value, np.ndarray)


def is_placed(value: Any) -> bool:
    """Whether this has a shape and takes its place in an array: a tensor, an array, or codes of one."""
    return is_array(value) or isinstance(value, Coded)


def join(parts: Sequence[Any], axis: int, pad: Pad | None = None) -> Any:
    """Return the parts after each other on one dim; a negative ``axis`` counts from the last (arrays only).

    Raises `NotJoinable` for parts of different kinds, dtypes or ranks, and without ``pad`` of different sizes.
    """
    first = parts[0]
    if len({_kind(part) for part in parts}) > 1:
        raise NotJoinable(f"parts of different types: {sorted({type(part).__name__ for part in parts})}")
    if isinstance(first, list) and axis >= 0:
        return _join_lists(parts, axis, pad)
    if is_placed(first):
        return _join_arrays(parts, axis, pad)
    raise NotJoinable(f"a {type(first).__name__} cannot be joined, only tensors, arrays and lists")


def _kind(part: Any) -> Any:
    """Return what a part is joined as: codes as what they stand for."""
    return {"pt": "Tensor", "np": "ndarray"}[part.kind] if isinstance(part, Coded) else type(part).__name__


def is_integer(array: Any) -> bool:
    """Whether a tensor's or array's elements are whole numbers (truth values are not)."""
    if is_tensor(array):
        return not (array.dtype.is_floating_point or array.dtype.is_complex or str(array.dtype) == "torch.bool")
    return array.dtype.kind in "iu"


def _join_lists(parts: Sequence[list[Any]], axis: int, pad: Pad | None) -> list[Any]:
    if axis > 0:
        if len({len(part) for part in parts}) > 1:
            raise NotJoinable(f"lists of different lengths: {[len(part) for part in parts]}")
        return [join(rows, axis - 1, pad) for rows in zip(*parts, strict=True)]
    entries = [entry for part in parts for entry in part]
    if pad is None or not all(is_placed(entry) for entry in entries):
        return [copy_tree(entry) for entry in entries]
    target = _largest([entry.shape for entry in entries])
    return [_place([entry], target, 0, pad) for entry in entries]


def _join_arrays(parts: Sequence[Any], axis: int, pad: Pad | None) -> Any:
    shapes = [tuple(part.shape) for part in parts]
    rank = len(shapes[0])
    if len({len(shape) for shape in shapes}) > 1 or not -rank <= axis < rank or len({part.dtype for part in parts}) > 1:
        raise NotJoinable(f"parts of different ranks or dtypes: {[(p.dtype, tuple(p.shape)) for p in parts]}")
    axis %= rank
    others = {shape[:axis] + shape[axis + 1 :] for shape in shapes}
    if pad is None and len(others) > 1:
        raise NotJoinable(f"parts of unequal sizes: {shapes}")
    target = list(_largest(shapes))
    target[axis] = sum(shape[axis] for shape in shapes)
    return _place(parts, tuple(target), axis, pad)


def _largest(shapes: Sequence[Any]) -> tuple[int, ...]:
    if len({len(shape) for shape in shapes}) > 1:
        raise NotJoinable(f"parts of different ranks: {[tuple(shape) for shape in shapes]}")
    return tuple(max(dims) for dims in zip(*shapes, strict=True))


def _place(parts: Sequence[Any], target: tuple[int, ...], axis: int, pad: Pad | None) -> Any:
    """Write each part once, straight into its place in a new array of the shape ``target``."""
    first, tensors = parts[0], _kind(parts[0]) == "Tensor"
    if tensors and any(getattr(part, "is_meta", False) for part in parts):  # outlines: small ones are real, others not
        return first.new_empty(target, device="meta")
    padded = sum(math.prod(part.shape) for part in parts) < math.prod(target)
    device = next((part.device for part in parts if part.device is not None), None) if tensors else None
    whole = empty(target, first.dtype, device) if tensors else np.empty(target, dtype=first.dtype)
    if padded:
        _fill(whole, pad)
    start = 0
    for part in parts:
        place = [slice(0, size) for size in part.shape]
        if len(place):
            place[axis] = slice(start, start + part.shape[axis])
            start += part.shape[axis]
        if isinstance(part, Coded):
            part.write(whole[tuple(place)])
        else:
            whole[tuple(place)] = part
    return whole


def _fill(whole: Any, pad: Any) -> None:
    try:
        if isinstance(pad, tuple) and len(pad) != whole.shape[-1]:
            raise NotJoinable(f"rows of {whole.shape[-1]} elements cannot be padded with one of {len(pad)}")
        whole[...] = whole.new_tensor(pad) if isinstance(pad, tuple) and is_tensor(whole) else pad
    except (OverflowError, RuntimeError, ValueError):
        raise NotJoinable(f"{pad!r} is no value of {whole.dtype} to pad with") from None
