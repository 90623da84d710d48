"""Snapshots: whether a value is still what it was, told by its objects at a tenth of the cost of encoding it again."""

import operator
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from mmcache.structure import is_size_dict

# Types whose values cannot change in place: a place that holds one only changes by holding another object.
FIXED = (type(None), bool, int, float, complex, str, bytes)


class NotFixed(Exception):
    """A value that may change where no snapshot would see it, such as an array."""


class Snapshot:
    """The objects that lists, dicts and sizes are made of, all the way down; they are kept alive by it.

    Raises `NotFixed` for a value with anything else in it that is not fixed.
    """

    def __init__(self, *values: Any) -> None:
        """Note what the values hold now."""
        self._sequences: list[tuple[Sequence[Any], tuple[Any, ...]]] = []
        self._mappings: list[tuple[Mapping[Any, Any], dict[Any, Any]]] = []
        for value in values:
            self.add(value)

    def add(self, value: Any, inside: tuple[int, ...] = ()) -> None:
        """Note what one more value holds now; ``inside`` are the containers that it lies in."""
        kind = type(value)
        if kind in FIXED or isinstance(value, Enum) or _is_torch_constant(kind):
            return
        if id(value) in inside:
            raise NotFixed("a value that contains itself")
        for member in self._members(value):
            self.add(member, (*inside, id(value)))

    def unchanged(self) -> bool:
        """Whether every list, dict and size still holds the very same objects (1 and True are equal, and differ)."""
        return all(
            len(sequence) == len(held) and all(map(operator.is_, sequence, held)) for sequence, held in self._sequences
        ) and all(same_objects(mapping, held) for mapping, held in self._mappings)

    def _members(self, value: Any) -> Sequence[Any]:
        """Note what a container holds, if that may change, and return it."""
        kind = type(value)
        if kind is tuple:
            return tuple(value)
        if kind is list:
            self._sequences.append((value, tuple(value)))
            return tuple(value)
        if kind is dict or is_size_dict(kind):
            mapping = value if kind is dict else vars(value)
            self._mappings.append((mapping, dict(mapping)))
            return (*mapping.keys(), *mapping.values())
        raise NotFixed(f"a {kind.__qualname__}")


def same_objects(now: Mapping[Any, Any], then: Mapping[Any, Any]) -> bool:
    """Whether two mappings hold the very same objects under the same keys, in the same order."""
    return len(now) == len(then) and all(map(operator.is_, now.values(), then.values())) and list(now) == list(then)


def _is_torch_constant(kind: type) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and kind in (torch.dtype, torch.device)
