"""Structures: which numbers of a processor and its options are sizes in pixels, and may change without a new trial.

A size changes how much comes out, and nothing about how it is put together. Every other number may decide what values
become (a mean, a threshold, what is padded with), or how often something is there (tiles, patches). So only a whole
number over 100 counts as a size, and only where its name says that it is one.
"""

from collections.abc import Callable
from typing import Any

_WORDS = ("size", "pixels", "edge", "height", "width", "length", "resolution", "pinpoints")

# Whole numbers up to this are counts and factors, whatever they are called.
_LARGEST_COUNT = 100


def with_sizes(value: Any, change: Callable[[int], Any], *, named: bool = False) -> Any:
    """Return a value in which ``change`` was made to every size, at any depth; ``named`` says that all of it is sizes."""
    kind = type(value)
    if kind is int:
        return change(value) if named and value > _LARGEST_COUNT else value
    if kind is list or kind is tuple:
        return kind([with_sizes(member, change, named=named) for member in value])
    if kind is dict:
        return {name: with_sizes(member, change, named=named or _is_size(name)) for name, member in value.items()}
    if is_size_dict(kind):
        return kind(**with_sizes(dict(value), change, named=True))
    return value


def is_size_dict(kind: type) -> bool:
    """Whether this is transformers' own class for sizes, which is like a dict."""
    return kind.__name__ == "SizeDict" and kind.__module__.startswith("transformers.")


def _is_size(name: Any) -> bool:
    return isinstance(name, str) and any(word in name.lower() for word in _WORDS)
