"""Scaling a processor down for its trial: the structure is tried, not the numbers, and small pictures are fast."""

import copy
import time
from collections.abc import Callable
from typing import Any

# Worth scaling: at this cost of one small picture the whole trial takes about a second.
_SLOW_SECONDS = 0.015

# Sizes in pixels are larger than this; patches, merges and counts are not and must stay as they are.
_SMALLEST_SIZE = 100
_FACTOR = 4


def scaled_down(processor: Any, options: dict[str, Any], run: Callable[[Any, dict[str, Any]], Any]) -> tuple[Any, Any]:
    """Return a copy of a processor and its options with sizes a fourth as large, if that is faster and it lets us.

    ``run(processor, options)`` processes one small picture. Else the processor and options are returned as they are.
    """
    seconds = _seconds(run, processor, options)
    if seconds is None or seconds < _SLOW_SECONDS:
        return processor, options
    twin = copy.copy(processor)
    vars(twin).update({name: _scaled(value) for name, value in vars(processor).items()})
    fewer = {name: _scaled(value) for name, value in options.items()}
    faster = _seconds(run, twin, fewer)
    return (twin, fewer) if faster is not None and faster < seconds / 2 else (processor, options)


def _seconds(run: Callable[[Any, dict[str, Any]], Any], processor: Any, options: dict[str, Any]) -> float | None:
    """Return how long one picture takes, the second time; None if it is refused."""
    try:
        run(processor, options)
        started = time.perf_counter()
        run(processor, options)
    except Exception:  # noqa: BLE001 - a refusal decides: these numbers are not for this processor
        return None
    return time.perf_counter() - started


def _scaled(value: Any) -> Any:
    """Return sizes a fourth as large wherever they stand: in sizes by name, and in lists of resolutions."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return -(-value // _FACTOR) if value > _SMALLEST_SIZE else value
    if type(value) in (list, tuple):
        return type(value)(_scaled(member) for member in value)
    if type(value) is dict:
        return {name: _scaled(member) for name, member in value.items()}
    if type(value).__name__ == "SizeDict":
        return type(value)(**{name: _scaled(member) for name, member in dict(value).items()})
    return value
