"""Where in a value the part lies that cannot be encoded: looked for only after a failure, so that success is fast."""

from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

# Keys that say in a message what they are; anything else is shown by its type.
_PLAIN_KEYS = (str, int, bool, float, type(None))


def path_to(culprit: object, value: object, *, again: bool) -> str:
    """Return how the culprit is reached from the value, such as ``value['size'][2]``.

    With ``again`` it is a container that contains itself, and the path leads to where it comes again.
    """
    return _search(culprit, value, again, "value", frozenset()) or "value"


def _search(culprit: object, value: object, again: bool, path: str, inside: frozenset[int]) -> str:
    if value is culprit and (id(value) in inside or not again):
        return path
    if id(value) in inside:
        return ""
    for step, member in _members(value):
        if found := _search(culprit, member, again, path + step, inside | {id(value)}):
            return found
    return ""


def _members(value: object) -> Iterable[tuple[str, object]]:
    if isinstance(value, (list, tuple)):
        return ((f"[{index}]", member) for index, member in enumerate(value))
    if isinstance(value, (dict, UserDict, MappingProxyType)):
        return _mapping_members(value)
    if isinstance(value, (set, frozenset)):
        return ((" (a member of the set)", member) for member in value)
    return ()


def _mapping_members(value: Mapping[object, object]) -> Iterator[tuple[str, object]]:
    for key, member in value.items():
        shown = repr(key) if type(key) in _PLAIN_KEYS else f"<{type(key).__name__}>"
        yield f" (key {shown})", key
        yield f"[{shown}]", member
