"""Codes: an item's pixels as the uint8 values that they were before rescaling and normalising, with the way back.

Nearly every processor gives, with rescaling and normalising off, whole values of 0 to 255 from which its usual output
is a table. They take a fourth of the memory of float32 (an eighth where frames are repeated along a time axis), and are
expanded into an output in one pass. Where a trial has shown that the processor's own two steps (subtract, divide) give the
table to the bit, they are used, since they are faster than looking up.
"""

import functools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mmcache.items.buffers import empty

# Expanded at once: small enough to stay in the second-level cache over all steps (a megabyte of float32), large enough
# that Python's part does not count.
_BLOCK_ELEMENTS = 1 << 18

VALUES = 256

# Codes in an item from which on a table of pairs is worth its two milliseconds and megabytes.
_MANY_CODES = 1 << 20


class NotCodable(Exception):
    """Pixels that are no whole values of 0 to 255, or not repeated where they should be: kept as they came."""


@dataclass(frozen=True)
class Rule:
    """Where the channels are: on dim ``axis`` (negative), in ``channels`` parts, each ``repeats`` times in a row.

    Qwen2-VL's rows are channels by frames by pixels: ``Rule(-1, 3, 2)``. One channel means one table for all.
    """

    axis: int
    channels: int
    repeats: int = 1

    def view(self, shape: Sequence[int]) -> tuple[int, int, int, int]:
        """Return a shape as (before, channels, repeats, rest); raise `NotCodable` if it cannot be seen so."""
        if self.channels == self.repeats == 1:
            return 1, 1, 1, math.prod(shape)
        parts = self.channels * self.repeats
        if len(shape) < -self.axis or shape[self.axis] % parts:
            raise NotCodable(f"no {self.channels} channels on dim {self.axis} of {tuple(shape)}")
        before = math.prod(shape[: self.axis])
        return before, self.channels, self.repeats, math.prod(shape[self.axis :]) // parts


@dataclass(frozen=True, eq=False)
class Expansion:
    """The way back from codes: a table (channels, 256) in the output's dtype, and two steps where they are exact.

    With ``steps`` (two tensors of one element per channel) an element is ``(code - first) / second``.
    """

    rule: Rule
    table: Any
    steps: tuple[Any, Any] | None = None

    def write(self, codes: Any, out: Any) -> None:
        """Expand codes (before, channels, 1, rest) into a tensor (before, channels, repeats, rest) on any device."""
        if out.device.type != "cpu":
            return self.write_far(codes, out)
        once = out[:, :, :1]
        write_block = self._step if self.steps else self._look_up_pairs if self._pairs_pay(codes) else self._look_up
        for place in blocks(codes.shape):
            write_block(codes[place], once[place])
            if out.shape[2] > 1:
                out[place][:, :, 1:] = once[place]
        return None

    def write_far(self, codes: Any, out: Any) -> None:
        """Have the codes travel to another device, and look them up there: the two steps need not be exact on it."""
        far = replace(self, table=self.table.to(out.device), steps=None)
        far._look_up(codes.to(out.device), out)

    def _step(self, codes: Any, out: Any) -> None:
        assert self.steps is not None, "only where there are steps"
        block = out if out.dtype == self.table.dtype else out.new_empty(out.shape, dtype=self.table.dtype)
        block.copy_(codes)
        block.sub_(self.steps[0].view(1, -1, 1, 1)).div_(self.steps[1].view(1, -1, 1, 1))
        if block is not out:
            out.copy_(block)

    def _look_up(self, codes: Any, out: Any) -> None:
        for channel, row in enumerate(self.table):
            index = codes[:, channel].reshape(-1).int()
            out[:, channel] = row.index_select(0, index).view(codes[:, channel].shape)

    def _look_up_pairs(self, codes: Any, out: Any) -> None:
        """Take two neighbours as one index into a table of pairs: half as many steps."""
        import torch

        for channel, row in enumerate(_pairs(self)):
            index = codes[:, channel].reshape(-1).view(torch.uint16).int()
            out[:, channel] = row.index_select(0, index).view(self.table.dtype).view(codes[:, channel].shape)

    def _pairs_pay(self, codes: Any) -> bool:
        in_pairs = codes.shape[3] % 2 == 0 and self.table.element_size() in _PAIR and sys.byteorder == "little"
        return in_pairs and codes.numel() >= _MANY_CODES


# As what two entries of a table are looked up at once, by their size in bytes.
_PAIR = {2: "int32", 4: "int64"}


@functools.lru_cache(maxsize=8)
def _pairs(expansion: Expansion) -> Any:
    """Return tables (channels, 65536) of two entries each, as whole numbers: 1.5 MB for three channels of float32."""
    import torch

    table = expansion.table
    pairs = torch.stack((table.repeat(1, VALUES), table.repeat_interleave(VALUES, 1)), -1)
    return pairs.view(getattr(torch, _PAIR[table.element_size()]))[..., 0]


def blocks(shape: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Yield the places of blocks of (before, channels, any, rest): some rows, or an even number of columns of one."""
    before, channels, _, rest = shape
    rows = max(1, _BLOCK_ELEMENTS // max(1, channels * rest))
    columns = rest if rows > 1 else max(2, _BLOCK_ELEMENTS // channels // 2 * 2)
    for top in range(0, before, rows):
        for left in range(0, rest, columns):
            yield slice(top, top + rows), slice(None), slice(None), slice(left, left + columns)


def as_bits(array: Any) -> Any:
    """Return a view of an array's elements as whole numbers of their size: to floats, -0.0 equals 0.0."""
    return array.view(f"u{array.itemsize}")


def _write_codes(once: Any, codes: Any) -> None:
    """Write whole values as uint8; raise `NotCodable` for others. Both are arrays of one shape."""
    with np.errstate(invalid="ignore"):  # what is no number or too large is found just below
        np.copyto(codes, once, casting="unsafe")
    if once.dtype != codes.dtype and not np.array_equal(as_bits(codes.astype(once.dtype)), as_bits(once)):
        raise NotCodable("values that are not whole, or not of 0 to 255")


@dataclass(frozen=True, eq=False, slots=True)
class Coded:
    """A tensor or array in an item, as codes.

    ``codes`` is a uint8 tensor (before, channels, 1, rest), private to the item; ``shape`` and ``kind`` ("pt" or "np")
    are those of what it stands for. With ``cast`` it is expanded straight into that dtype of torch's, to the bits that
    casting gives, with ``device`` on that device, to which only the codes travel.
    """

    codes: Any
    expansion: Expansion
    shape: tuple[int, ...]
    kind: str
    cast: Any = None
    device: Any = None

    @classmethod
    def of(cls, pixels: Any, expansion: Expansion) -> "Coded":
        """Code a tensor or array of whole values; raise `NotCodable` for others. Its memory is not kept."""
        import torch

        if not (is_tensor := isinstance(pixels, torch.Tensor)):
            values = pixels
        else:  # NumPy knows no bfloat16, whose whole values are floats
            values = (pixels.float() if pixels.dtype is torch.bfloat16 else pixels).detach().numpy()
        seen = values.reshape(expansion.rule.view(values.shape))
        codes = np.empty((*seen.shape[:2], 1, seen.shape[3]), np.uint8)
        for place in blocks(seen.shape):
            block = seen[place]
            _write_codes(block[:, :, :1], codes[place])
            if not all(np.array_equal(block[:, :, at], block[:, :, 0]) for at in range(1, block.shape[2])):
                raise NotCodable("frames that are not repeated")
        return cls(torch.from_numpy(codes), expansion, tuple(values.shape), "pt" if is_tensor else "np")

    @property
    def dtype(self) -> Any:
        """The dtype of what it stands for, torch's or numpy's."""
        table = self.expansion.table
        return (self.cast or table.dtype) if self.kind == "pt" else table.numpy().dtype

    @property
    def nbytes(self) -> int:
        """What it keeps alive; the expansion is shared."""
        return int(self.codes.nbytes)

    def as_kind(self, kind: str) -> "Coded":
        """Return the same as a tensor or array, with shared codes."""
        return replace(self, kind=kind)

    def destined(self, dtype: Any, device: Any) -> "Coded":
        """Return the same, to be expanded as another dtype of torch's, or elsewhere, with shared codes; None is as it is."""
        return replace(self, cast=dtype, device=device)

    def alone(self) -> "Coded":
        """Return the same with a new dim 0 of one, with shared codes."""
        return replace(self, shape=(1, *self.shape))

    def expanded(self) -> Any:
        """Return what it stands for, in fresh memory."""
        tensor = empty(self.shape, self.cast or self.expansion.table.dtype, self.device)
        self.write(tensor)
        return tensor if self.kind == "pt" else tensor.numpy()

    def write(self, out: Any) -> None:
        """Expand into a tensor or array of its shape, which may be a view and, if a tensor, of another real dtype."""
        import torch

        tensor = out if isinstance(out, torch.Tensor) else torch.from_numpy(out)
        if tensor.is_contiguous():
            self.expansion.write(self.codes, tensor.view(self.expansion.rule.view(self.shape)))
        else:
            tensor.copy_(replace(self, kind="pt").expanded())
