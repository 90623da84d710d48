"""Conversions: what ``return_tensors`` asks for, made from what a processor gives without it.

``"pt"`` and ``"np"`` nearly always are the very numbers that ``return_tensors=None`` gives in lists, tensors or arrays.
Where a trial shows that, one item serves all three: a trainer that asks for lists when it generates and for tensors when
it learns has each picture processed once.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmcache.errors import NotJoinable
from mmcache.items.codes import Coded
from mmcache.items.item import expanded, is_tensor
from mmcache.layout.arrays import is_array
from mmcache.layout.compare import difference
from mmcache.layout.fields import with_values

# The values of ``return_tensors`` that are made from None: torch's and numpy's.
KINDS = ("pt", "np")

# Longer lists of numbers are masks and the like: to make tensors of them at each hit costs more than to keep tensors.
_MOST_NUMBERS = 1024


@dataclass(frozen=True)
class Conversion:
    """Which outputs become tensors (``kind`` "pt") or arrays ("np"); the others stay as they are.

    A bare output has the name ``""``. ``seen`` are all outputs that were looked at: there may be others, of pictures unlike
    those.
    """

    kind: str
    names: frozenset[str]
    seen: frozenset[str]

    def apply(self, output: Any) -> Any:
        """Return an output of ``return_tensors=None`` as what was asked for; its memory is shared where possible.

        Raises `NotJoinable` where no tensor can be made, as of parts of unequal sizes.
        """
        if not hasattr(output, "keys"):
            return _stacked(output, self.kind) if "" in self.names else output
        if unknown := set(output) - self.seen:
            raise NotJoinable(f"outputs that were not tried: {sorted(unknown)}")
        values = {n: _stacked(value, self.kind) if n in self.names else value for n, value in output.items()}
        return with_values(output, values)


def find_conversion(kind: str, pairs: Sequence[tuple[Any, Any]]) -> Conversion | None:
    """Return the conversion that makes every second output of the pairs from the first, bit for bit; None if none does."""
    if not all(hasattr(lists, "keys") == hasattr(asked, "keys") for lists, asked in pairs):
        return None
    named = [(_named(lists), _named(asked)) for lists, asked in pairs]
    if any(list(lists) != list(asked) for lists, asked in named):
        return None
    seen = frozenset(itertools.chain.from_iterable(lists for lists, _ in named))
    stacked = frozenset(
        name for name in seen if any(name in lists and difference(lists[name], asked[name]) for lists, asked in named)
    )
    conversion = Conversion(kind, stacked, seen)
    try:
        exact = all(_alike(asked, conversion.apply(lists)) for lists, asked in pairs)
    except NotJoinable:
        return None
    return conversion if exact else None


def _named(output: Any) -> Mapping[str, Any]:
    return output if hasattr(output, "keys") else {"": output}


def _alike(asked: Any, found: Any) -> bool:
    """Whether two outputs are equal to the bit, and equally contiguous: code that reshapes in place can tell."""
    pairs = zip(_named(asked).values(), _named(found).values(), strict=True)
    return not difference(asked, found) and all(_contiguous(one) == _contiguous(other) for one, other in pairs)


def _contiguous(value: Any) -> bool:
    if is_tensor(value):
        return bool(value.is_contiguous())
    return bool(value.flags.c_contiguous) if isinstance(value, np.ndarray) else True


def _stacked(value: Any, kind: str) -> Any:
    """Return a tensor or array of a list's entries along a new dim 0, or of numbers; a view where there is one entry."""
    if isinstance(value, Coded):
        return value.as_kind(kind)
    if is_array(value):
        return _as_kind(value, kind)
    if not isinstance(value, list | tuple) or not value:
        raise NotJoinable(f"no tensor is made of a {type(value).__name__}")
    if len(value) == 1 and isinstance(value[0], Coded):
        return value[0].as_kind(kind).alone()
    value = expanded(value)
    if not all(map(is_array, value)):
        return _of_numbers(value, kind)
    entries = [_as_kind(entry, kind) for entry in value]
    if len({(entry.dtype, tuple(entry.shape)) for entry in entries}) > 1:
        raise NotJoinable(f"entries of unequal sizes: {[tuple(entry.shape) for entry in entries]}")
    if len(entries) == 1:
        return _made_contiguous(entries[0])[None]
    if kind == "np":
        return np.stack(entries)
    import torch

    return torch.stack(entries)


def _as_kind(array: Any, kind: str) -> Any:
    if is_tensor(array) == (kind == "pt"):
        return array
    try:
        if kind == "np":
            return array.numpy()
        import torch

        return torch.from_numpy(_made_contiguous(array))
    except (TypeError, ValueError) as refusal:
        raise NotJoinable(str(refusal)) from None


def _made_contiguous(array: Any) -> Any:
    return array.contiguous() if is_tensor(array) else np.ascontiguousarray(array).reshape(array.shape)


def _of_numbers(numbers: Any, kind: str) -> Any:
    if not _are_few(numbers):
        raise NotJoinable(f"more than {_MOST_NUMBERS} numbers in lists, or something else than numbers")
    try:
        if kind == "np":
            return np.array(numbers)
        import torch

        return torch.tensor(numbers)
    except (TypeError, ValueError, RuntimeError) as refusal:
        raise NotJoinable(str(refusal)) from None


def _are_few(numbers: Any) -> bool:
    leaves = list(itertools.islice(_leaves(numbers), _MOST_NUMBERS + 1))
    return len(leaves) <= _MOST_NUMBERS and all(type(leaf) in (bool, int, float) for leaf in leaves)


def _leaves(value: Any) -> Any:
    if isinstance(value, list | tuple):
        for child in value:
            yield from _leaves(child)
    else:
        yield value
