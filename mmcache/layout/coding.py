"""Coding: which outputs can be kept as codes, found by comparing a processor with itself with its last steps left out.

Each element of the usual output must be a function of the whole value in its place and of its channel: the same for all
pictures, for every value from 0 to 255, to the bit. Where the channels are is found by trying.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmcache.items.codes import VALUES, Coded, Expansion, NotCodable, Rule, blocks
from mmcache.items.item import is_tensor
from mmcache.layout.arrays import is_array
from mmcache.layout.compare import difference
from mmcache.layout.fields import with_values

# The options that leave out what codes stand for: with them a processor gives values of 0 to 255.
WITHOUT_LAST_STEPS = {"do_rescale": False, "do_normalize": False}

# Colours; and the frames that a still picture is made of where a model takes clips (Qwen2-VL and its relatives).
_CHANNELS, _FRAMES = 3, 2

# Neighbours of a float that are tried as a step: a table of rounded values tells its steps to within a few of them.
_NEIGHBOURS = 8


@dataclass(frozen=True, eq=False)
class Coding:
    """The outputs that are kept as codes, each with its way back; a bare output has the name ``""``.

    ``names`` are all outputs that were looked at: what has another one (it may come with larger pictures) is not coded.
    """

    expansions: Mapping[str, Expansion]
    names: frozenset[str]

    def coded(self, values: Any) -> Any:
        """Return what a processor gives without its last steps, with codes for pixels; raise `NotCodable`."""
        named = _named(values)
        if unknown := set(named) - self.names:
            raise NotCodable(f"outputs that were not tried: {sorted(unknown)}")
        changed = {
            name: _mapped(value, self._leaf(name)) if name in self.expansions else value
            for name, value in named.items()
        }
        return with_values(values, changed) if named is values else changed[""]

    def _leaf(self, name: str) -> Callable[[Any], Coded]:
        return lambda leaf: Coded.of(leaf, self.expansions[name])


def find_coding(pairs: Sequence[tuple[Any, Any]]) -> tuple[Coding | None, list[int]]:
    """Return the coding that explains all pairs (the usual output, the one without the last steps) of single pictures.

    And the values from 0 to 255 that no picture has shown in some channel: while there are any, nothing is proved.
    None if there is no coding, or nothing to gain.
    """
    named = [(_named(usual), _named(values)) for usual, values in pairs]
    if any(list(usual) != list(values) for usual, values in named):
        return None, []
    expansions, unseen = {}, set[int]()
    names = dict.fromkeys(name for usual, _ in named for name in usual)
    for name in names:
        columns = [(usual[name], values[name]) for usual, values in named if name in usual]
        leaves = [leaf for usual, values in columns for leaf in _leaves(usual, values)]
        changed = any(difference(usual, values) for usual, values in columns)
        found = _expansion(leaves) if changed or all(map(_is_bytes, leaves)) else None
        if found is not None:
            expansions[name], missing = found
            unseen |= missing
        elif changed:
            return None, []
    return (Coding(expansions, frozenset(names)) if expansions else None), sorted(unseen)


def _named(output: Any) -> Any:
    return output if hasattr(output, "keys") else {"": output}


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)([_mapped(child, change) for child in value])
    return change(value)


def _leaves(usual: Any, values: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the arrays of two outputs in pairs; anything that does not pair is an uncodable pair."""
    if isinstance(usual, list | tuple) and isinstance(values, list | tuple) and len(usual) == len(values):
        for one, other in zip(usual, values, strict=True):
            yield from _leaves(one, other)
    else:
        yield usual, values


def _is_bytes(leaf: tuple[Any, Any]) -> bool:
    """Whether an output is of values already, of which only repeated frames could be left out."""
    return is_array(leaf[0]) and str(leaf[0].dtype).endswith("uint8")


def _expansion(leaves: Sequence[tuple[Any, Any]]) -> tuple[Expansion, set[int]] | None:
    if not all(is_array(u) and type(u) is type(v) and u.shape == v.shape for u, v in leaves):
        return None
    pairs = [(_tensor(usual), _tensor(values)) for usual, values in leaves]
    if len({(usual.dtype, usual.ndim) for usual, _ in pairs}) > 1 or not all(_whole(values) for _, values in pairs):
        return None
    for rule in _rules(pairs[0][0].ndim):
        table, seen = _table(rule, pairs)
        if table is not None:
            gains = rule.repeats > 1 or table.element_size() > 1
            missing = set((~seen).any(0).nonzero().reshape(-1).tolist())
            return (Expansion(rule, table, _steps(table)), missing) if gains else None
    return None


def _rules(rank: int) -> Iterator[Rule]:
    """Yield what can be tried: what saves most first, then what asks for more equality before what asks for less."""
    yield Rule(-1, _CHANNELS, _FRAMES)
    yield Rule(-1, 1)
    yield from (Rule(axis, _CHANNELS) for axis in range(-1, -rank - 1, -1))


def _table(rule: Rule, pairs: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return the table that makes every first tensor of the pairs of the second, and which values it was seen for."""
    import torch

    table = torch.zeros((rule.channels, VALUES), dtype=pairs[0][0].dtype)
    seen = torch.zeros((rule.channels, VALUES), dtype=torch.bool)
    views = []
    for usual, values in pairs:
        try:
            view = rule.view(usual.shape)
        except NotCodable:
            return None, seen
        bits, codes = _bits(usual).reshape(view), values.reshape(view)
        if not (_repeated(bits) and _repeated(codes)):
            return None, seen
        views.append((bits[:, :, :1], codes[:, :, :1]))
    as_bits = _bits(table)
    for channel, codes, bits in _by_channel(views):
        as_bits[channel][codes] = bits
        seen[channel][codes] = True
    exact = all(torch.equal(as_bits[channel][codes], bits) for channel, codes, bits in _by_channel(views))
    return (table if exact else None), seen


def _by_channel(views: Sequence[tuple[Any, Any]]) -> Iterator[tuple[int, Any, Any]]:
    """Yield channels with indices and bits, a block at a time: as indices, whole outputs would take eight times as much."""
    for bits, codes in views:
        for place in blocks(codes.shape):
            for channel in range(codes.shape[1]):
                part = (*place[:1], channel, *place[2:])
                yield channel, codes[part].reshape(-1).long(), bits[part].reshape(-1)


def _repeated(view: Any) -> bool:
    import torch

    return all(torch.equal(view[:, :, :1], view[:, :, at : at + 1]) for at in range(1, view.shape[2]))


def _tensor(leaf: Any) -> Any:
    import torch

    return leaf.detach() if is_tensor(leaf) else torch.from_numpy(np.ascontiguousarray(leaf))


def _whole(values: Any) -> bool:
    import torch

    return values.dtype is torch.uint8 or torch.equal(_bits(values.to(torch.uint8).to(values.dtype)), _bits(values))


def _bits(tensor: Any) -> Any:
    """Return a tensor's elements as whole numbers of the same size: comparing floats would miss -0.0 and NaN."""
    import torch

    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(whole[tensor.element_size()])


def _steps(table: Any) -> tuple[Any, Any] | None:
    """Return what is subtracted and divided by in each channel, if two steps of float32 give the table to the bit."""
    import torch

    if table.dtype is not torch.float32:
        return None
    found = [_steps_of(row) for row in table]
    if any(step is None for step in found):
        return None
    first, second = zip(*[step for step in found if step is not None], strict=True)
    return torch.stack(first), torch.stack(second)


def _steps_of(row: Any) -> tuple[Any, Any] | None:
    import torch

    codes, span = torch.arange(VALUES, dtype=torch.float32), float(row[-1]) - float(row[0])
    if not span > 0:
        return None
    second = (VALUES - 1) / span
    for divisor in _neighbours(second):
        for subtrahend in _neighbours(-float(row[0]) * float(divisor)):
            if torch.equal(_bits((codes - subtrahend).div_(divisor)), _bits(row)):
                return subtrahend, divisor
    return None


def _neighbours(value: float) -> list[Any]:
    """Return the float32 that is nearest to a value, and those around it, the nearest first."""
    import torch

    near = np.float32(value)
    below, above = [near], [near]
    for _ in range(_NEIGHBOURS):
        below.append(np.nextafter(below[-1], np.float32(-np.inf)))
        above.append(np.nextafter(above[-1], np.float32(np.inf)))
    ordered = [near, *[both for pair in zip(below[1:], above[1:], strict=True) for both in pair]]
    return [torch.tensor(candidate) for candidate in ordered]
