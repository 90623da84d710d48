"""Fields: the rules by which one named output of single images joins to that of a batch.

A part is what the processor gives for *one* image (a batch of one): a tensor or array whose dim 0 is the image or its
rows, or a list. Misses run one by one, so parts are always whole: a batch is joined from them, never split.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from mmcache.errors import NotJoinable
from mmcache.items.item import copy_tree, is_tensor
from mmcache.layout.compare import difference


class Field(Protocol):
    """One rule. Fields are values: equal ones join alike."""

    def join(self, parts: Sequence[Any]) -> Any:
        """Return the batch's output in fresh memory, or raise `NotJoinable`."""
        ...


@dataclass(frozen=True)
class Batched:
    """One row per image, or several: parts follow each other on dim 0; their other dims must agree."""

    def join(self, parts: Sequence[Any]) -> Any:
        """Concatenate on dim 0."""
        return _join(parts, axis=0)


@dataclass(frozen=True)
class FlatFromSizes:
    """Rows per image given by another output, such as Qwen's ``pixel_values`` by ``image_grid_thw``.

    ``sizes`` names that output; an image has as many rows as the product of its sizes.
    """

    sizes: str

    def join(self, parts: Sequence[Any]) -> Any:
        """Concatenate on dim 0."""
        return _join(parts, axis=0)


@dataclass(frozen=True)
class Padded:
    """Parts follow each other on dim 0 and are padded at the end of every other dim to the largest of the batch."""

    value: float = 0

    def join(self, parts: Sequence[Any]) -> Any:
        """Pad with ``value``, concatenate on dim 0."""
        return _join(parts, axis=0, pad=self.value)


@dataclass(frozen=True)
class PerImageList:
    """A list with one entry per image; the entries may have different shapes."""

    def join(self, parts: Sequence[Any]) -> Any:
        """Append the lists to each other."""
        if not all(isinstance(part, list) for part in parts):
            raise NotJoinable(f"PerImageList joins lists, not {type(parts[0]).__name__}")
        return _join(parts, axis=0)


@dataclass(frozen=True)
class Nested:
    """Images of one sample: a flat list is *one* sample, its images follow each other on dim 1 (Idefics3)."""

    value: float = 0

    def join(self, parts: Sequence[Any]) -> Any:
        """Pad with ``value``, concatenate on dim 1."""
        return _join(parts, axis=1, pad=self.value)


@dataclass(frozen=True)
class Same:
    """An output that does not depend on the image: all parts are equal."""

    def join(self, parts: Sequence[Any]) -> Any:
        """Return a copy of the first part, having compared the others with it."""
        for part in parts[1:]:
            if found := difference(parts[0], part):
                raise NotJoinable(f"an output declared the same for all images differs: {found}")
        return copy_tree(parts[0])


@dataclass(frozen=True)
class Layout:
    """A processor's fields: how single outputs join to a flat list's, and how samples join to a nested list's.

    ``samples`` is None where a nested list gives what the flat list of its images gives. A bare tensor or array as
    output has the one field ``""``.
    """

    fields: Mapping[str, Field]
    samples: Mapping[str, Field] | None = field(default=None)

    def join(self, outputs: Sequence[Any]) -> Any:
        """Return the output of a flat list from those of its images, in fresh memory."""
        return join_outputs(self.fields, outputs)

    def join_nested(self, outputs: Sequence[Any], counts: Sequence[int]) -> Any:
        """Return the output of a nested list from those of its images; ``counts`` is the number per sample."""
        if self.samples is None:
            return self.join(outputs)
        images = iter(outputs)
        return join_outputs(self.samples, [self.join([next(images) for _ in range(count)]) for count in counts])


def join_outputs(fields: Mapping[str, Field], outputs: Sequence[Any]) -> Any:
    """Join whole outputs (mappings with equal keys in equal order, or bare values) field by field."""
    first = outputs[0]
    if "" in fields:
        return fields[""].join(outputs)
    names = list(first)
    if set(names) != set(fields) or any(list(output) != names for output in outputs):
        raise NotJoinable(f"outputs with the names {sorted(fields)} expected, got {[list(o) for o in outputs]}")
    joined = {name: fields[name].join([output[name] for output in outputs]) for name in names}
    return with_values(first, joined)


def with_values(shell: Any, values: Mapping[str, Any]) -> Any:
    """Return a mapping of the same kind as ``shell`` (attributes included) with these values."""
    if isinstance(shell, dict):
        return type(shell)(values)
    twin = object.__new__(type(shell))
    attributes = {name: copy_tree(value) for name, value in vars(shell).items() if name != "data"}
    twin.__dict__.update(attributes, data=dict(values))
    return twin


def _join(parts: Sequence[Any], axis: int, pad: float | None = None) -> Any:
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        raise NotJoinable(f"parts of different types: {sorted({type(part).__name__ for part in parts})}")
    if isinstance(first, list):
        return _join_lists(parts, axis, pad)
    if is_tensor(first) or isinstance(first, np.ndarray):
        return _join_arrays(parts, axis, pad)
    raise NotJoinable(f"a {type(first).__name__} cannot be joined, only tensors, arrays and lists")


def _join_lists(parts: Sequence[list[Any]], axis: int, pad: float | None) -> list[Any]:
    if axis > 0:
        if len({len(part) for part in parts}) > 1:
            raise NotJoinable(f"lists of different lengths: {[len(part) for part in parts]}")
        return [_join(rows, axis - 1, pad) for rows in zip(*parts, strict=True)]
    entries = [entry for part in parts for entry in part]
    arrays = all(is_tensor(entry) or isinstance(entry, np.ndarray) for entry in entries)
    if pad is None or not arrays:
        return [copy_tree(entry) for entry in entries]
    target = _largest([entry.shape for entry in entries])
    return [_place([entry], target, 0, pad) for entry in entries]


def _join_arrays(parts: Sequence[Any], axis: int, pad: float | None) -> Any:
    shapes = [tuple(part.shape) for part in parts]
    if len({len(shape) for shape in shapes}) > 1 or len(shapes[0]) <= axis or len({part.dtype for part in parts}) > 1:
        raise NotJoinable(f"parts of different ranks or dtypes: {[(p.dtype, tuple(p.shape)) for p in parts]}")
    others = {shape[:axis] + shape[axis + 1 :] for shape in shapes}
    if pad is None and len(others) > 1:
        raise NotJoinable(f"parts of unequal sizes: {shapes}")
    target = list(_largest(shapes))
    target[axis] = sum(shape[axis] for shape in shapes)
    return _place(parts, tuple(target), axis, pad)


def _fill(whole: Any, pad: Any) -> None:
    try:
        whole[...] = pad
    except (OverflowError, RuntimeError, ValueError):
        raise NotJoinable(f"{pad!r} is no value of {whole.dtype} to pad with") from None


def _largest(shapes: Sequence[Any]) -> tuple[int, ...]:
    if len({len(shape) for shape in shapes}) > 1:
        raise NotJoinable(f"parts of different ranks: {[tuple(shape) for shape in shapes]}")
    return tuple(max(dims) for dims in zip(*shapes, strict=True))


def _place(parts: Sequence[Any], target: tuple[int, ...], axis: int, pad: float | None) -> Any:
    """Write each part once, straight into its place in a new array of the shape ``target``."""
    first = parts[0]
    padded = sum(math.prod(part.shape) for part in parts) < math.prod(target)
    whole = first.new_empty(target) if is_tensor(first) else np.empty(target, dtype=first.dtype)
    if padded:
        _fill(whole, pad)
    start = 0
    for part in parts:
        place = [slice(0, size) for size in part.shape]
        if len(place):
            place[axis] = slice(start, start + part.shape[axis])
            start += part.shape[axis]
        whole[tuple(place)] = part
    return whole
