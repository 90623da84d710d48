"""Finding fields: for each output, the first of all known rules that explains every batch to the bit."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mmcache.errors import NotJoinable
from mmcache.items.item import is_tensor
from mmcache.layout.arrays import Pad, is_array, is_integer
from mmcache.layout.compare import difference
from mmcache.layout.fields import Batched, Field, Nested, Padded, Same, join_field
from mmcache.layout.rare import Along, Largest, PaddedLists, RunningOffset, Sometimes

# Outputs of the images of a batch, and what the processor gave for the batch; bare values have no names.
Tried = Sequence[tuple[Sequence[Any], Any]]

# Padding is made of rows only in small tables, such as masks over tiles.
_LONGEST_ROW = 64


class Unexplained(Exception):
    """No layout explains the batches; its text says which output."""


def find_fields(tried: Tried, *, flat: bool) -> Mapping[str, Field]:
    """Return the fields by which the batches are made of their images (``flat``), or of their samples.

    Batches whose outcome is an exception say nothing. Raises `Unexplained`.
    """
    tried = [(outputs, outcome) for outputs, outcome in tried if not isinstance(outcome, Exception)]
    if not tried:
        raise Unexplained("no batch of the trial's small pictures runs")
    if not hasattr(tried[0][1], "keys"):
        bare = [([{"": output} for output in outputs], {"": outcome}) for outputs, outcome in tried]
        return {"": _first_fitting("", bare, _candidates("", bare, flat=flat))}
    return {name: _field(name, tried, flat=flat) for name in _names(tried)}


def _names(tried: Tried) -> list[str]:
    """Return all names of outputs in order; a batch must have those that one of its images has, and no others."""
    for outputs, batch in tried:
        if set(batch) != {name for output in outputs for name in output}:
            raise Unexplained("the names of the outputs depend on the batch")
    names: list[str] = max((list(batch) for _, batch in tried), key=len)
    everything = [output for outputs, batch in tried for output in (*outputs, batch)]
    if any(list(output) != [name for name in names if name in output] for output in everything):
        raise Unexplained("the names of the outputs have no order")
    return names


def _field(name: str, tried: Tried, *, flat: bool) -> Field:
    """Return the field of a name; an output that comes and goes must have been seen to do both in one batch."""
    there = [(outputs, batch) for outputs, batch in tried if name in batch]
    mixed = [any(name not in output for output in outputs) for outputs, _ in there]
    if len(there) == len(tried) and not any(mixed):
        return _first_fitting(name, there, _candidates(name, there, flat=flat))
    if not any(mixed):
        raise Unexplained(f"no batch shows what becomes of images without the output {name!r}")
    inner = list(_plain_candidates(name, there, flat=flat))
    return _first_fitting(name, there, (Sometimes(field, rows) for rows in (0, 1) for field in inner))


def _first_fitting(name: str, tried: Tried, candidates: Iterable[Field]) -> Field:
    for candidate in candidates:
        try:
            if not any(difference(batch[name], join_field(candidate, name, outputs)) for outputs, batch in tried):
                return candidate
        except NotJoinable:
            continue
    raise Unexplained(f"no layout explains how {name or 'output'!r} of a batch is made from single images")


def _candidates(name: str, tried: Tried, *, flat: bool) -> Iterator[Field]:
    """Yield fields to try: the usual before the rare, and what asks for more equality before what asks for less."""
    yield from _plain_candidates(name, tried, flat=flat)
    yield from (Along(-1), Along(-2), Same(), Largest())
    yield from _offsets(name, tried)


def _plain_candidates(name: str, tried: Tried, *, flat: bool) -> Iterator[Field]:
    values = [batch[name] for _, batch in tried]
    pads = [*_pad_values(values), *_pad_rows(values)]
    yield Batched()
    yield from map(Padded, pads)
    if flat:
        yield from map(Nested, pads)
    yield from map(PaddedLists, _list_pads(values))


def _pad_values(values: Sequence[Any]) -> Iterable[Pad]:
    """Return 0, 1 and every last element seen in a batch: padding is always at the end."""
    lasts = (leaf.reshape(-1)[-1].item() for value in values for leaf in _leaves(value))
    return dict.fromkeys(itertools.chain((0, 1), lasts))


def _pad_rows(values: Sequence[Any]) -> Iterable[Pad]:
    """Return every last row seen in a batch that is not of one value, of small tables of whole numbers."""
    tables = (leaf for value in values for leaf in _leaves(value) if len(leaf.shape) > 1 and is_integer(leaf))
    rows = (tuple(leaf.reshape(-1, leaf.shape[-1])[-1].tolist()) for leaf in tables if leaf.shape[-1] <= _LONGEST_ROW)
    return dict.fromkeys(row for row in rows if len(set(row)) > 1)


def _list_pads(values: Sequence[Any]) -> Iterable[Any]:
    """Return every last entry of lists in a list (``False`` and ``0`` are two)."""
    entries = (entry for value in values if isinstance(value, list) for entry in value if isinstance(entry, list))
    lasts = [entry[-1] for entry in entries if entry and isinstance(entry[-1], bool | int | float)]
    return {(type(value), value): value for value in lasts}.values()


def _offsets(name: str, tried: Tried) -> Iterator[Field]:
    """Yield running offsets by all sizes of all outputs, for whole numbers only."""
    outputs, batch = tried[0]
    if not (is_array(batch[name]) and is_integer(batch[name])):
        return
    for other in outputs[0]:
        if is_array(outputs[0][other]):
            yield from (RunningOffset(other, dims) for dims in range(len(outputs[0][other].shape) + 1))


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the arrays and tensors in a value that have elements."""
    if hasattr(value, "values") and not is_tensor(value):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for child in value:
            yield from _leaves(child)
    elif is_array(value) and value.shape and min(value.shape) and not getattr(value.dtype, "hasobject", False):
        yield value
