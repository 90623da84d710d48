"""The fields of few processors: other dims, maxima, running offsets, outputs that come and go."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mmcache.errors import NotJoinable
from mmcache.items.item import copy_tree, expanded, is_tensor
from mmcache.layout.arrays import is_array, is_integer, is_placed, join

if TYPE_CHECKING:
    from mmcache.layout.fields import Field

# Stands among the parts for an image that has no such output (see `Sometimes`).
ABSENT = object()


@dataclass(frozen=True)
class Along:
    """Parts follow each other on another dim, and agree in all others (MiniCPM: the last dim, -1)."""

    axis: int

    def join(self, parts: Sequence[Any]) -> Any:
        """Concatenate on dim ``axis``."""
        return join(parts, axis=self.axis)


@dataclass(frozen=True)
class PaddedLists:
    """A list with one list per image; each is padded at its end to the longest of the batch."""

    value: Any = 0

    def join(self, parts: Sequence[Any]) -> Any:
        """Append the lists to each other, their entries padded with ``value``."""
        if not all(isinstance(part, list) and all(isinstance(entry, list) for entry in part) for part in parts):
            raise NotJoinable(f"PaddedLists joins lists of lists, not {type(parts[0]).__name__}")
        entries = [copy_tree(entry) for part in parts for entry in part]
        longest = max((len(entry) for entry in entries), default=0)
        return [entry + [self.value] * (longest - len(entry)) for entry in entries]


@dataclass(frozen=True)
class Largest:
    """Whole numbers of which a batch has the largest, element by element (Aria's number of crops)."""

    def join(self, parts: Sequence[Any]) -> Any:
        """Return the elementwise maximum."""
        first = parts[0]
        if any(type(part) is not type(first) for part in parts):
            raise NotJoinable(f"parts of different types: {sorted({type(part).__name__ for part in parts})}")
        if type(first) is int:
            return max(parts)
        if not is_array(first) or not is_integer(first):
            raise NotJoinable(f"only whole numbers have a largest here, not {type(first).__name__}")
        if len({(part.dtype, tuple(part.shape)) for part in parts}) > 1:
            raise NotJoinable(f"parts of unequal sizes or dtypes: {[(p.dtype, tuple(p.shape)) for p in parts]}")
        stacked = [part[None] for part in parts]
        return join(stacked, 0).amax(0) if is_tensor(first) else np.asarray(join(stacked, 0).max(0))


@dataclass(frozen=True)
class RunningOffset:
    """Indices into another output of the same image: in a batch they move on by the sizes of the images before.

    An image takes as many places as the product of the first ``dims`` dims of its output ``of`` (0: one place).
    Negative indices point nowhere and stay. Parts follow each other on dim 0 (Molmo2's pooling indices).
    """

    of: str
    dims: int

    def join(self, parts: Sequence[Any]) -> Any:
        """Join a single part; more need the outputs beside them, see `join_beside`."""
        if len(parts) > 1:
            raise NotJoinable("running offsets are joined beside the outputs that they point into")
        return join(parts, axis=0)

    def join_beside(self, parts: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """Concatenate on dim 0, each part's indices moved by what the ``outputs`` before take."""
        if not all(is_array(part) and is_integer(part) for part in parts):
            raise NotJoinable(f"offsets belong to whole numbers, not to {type(parts[0]).__name__}")
        taken = [self._places(output) for output in outputs]
        moved = [_moved(part, by) for part, by in zip(parts, itertools.accumulate([0, *taken[:-1]]), strict=True)]
        return join(moved, axis=0)

    def _places(self, output: Any) -> int:
        beside: Any = output.get(self.of, None)
        if not is_placed(beside) or len(beside.shape) < self.dims:
            raise NotJoinable(f"no sizes to move by: {self.of!r} has not {self.dims} dims")
        return math.prod(beside.shape[: self.dims])


@dataclass(frozen=True)
class Sometimes:
    """An output that some images have and some have not; a batch has it if one of its images does.

    Those that lack it are left out, or with ``empty_rows`` stand there as so many rows of padding. A layout with
    such a field gives its outputs in the order of its own fields.
    """

    field: "Field"
    empty_rows: int = 0

    def join(self, parts: Sequence[Any]) -> Any:
        """Join the parts that are there; `ABSENT` stands for those that are not."""
        there = [part for part in parts if part is not ABSENT]
        if not there:
            raise NotJoinable("no image has this output")
        if self.empty_rows == 0:
            return self.field.join(there)
        return self.field.join([self._empty(there[0]) if part is ABSENT else part for part in parts])

    def _empty(self, like: Any) -> Any:
        like = expanded(like)
        if isinstance(like, list):
            return [[] for _ in range(self.empty_rows)]
        if not is_array(like) or len(like.shape) == 0:
            raise NotJoinable(f"a {type(like).__name__} has no rows")
        shape = (self.empty_rows, *[0] * (len(like.shape) - 1))
        return like.new_empty(shape) if is_tensor(like) else np.empty(shape, like.dtype)


def _moved(part: Any, by: int) -> Any:
    if by == 0:
        return part
    if by >= 1 << (8 * part.dtype.itemsize - 1):
        raise NotJoinable(f"{by} is no value of {part.dtype} to move by")
    moved = part + by
    return part.where(part < 0, moved) if is_tensor(part) else np.where(part < 0, part, moved)
