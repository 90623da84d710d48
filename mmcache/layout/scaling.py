"""Scaling a processor down for its trial: the structure is tried, not the numbers, and small pictures are fast."""

import copy
import time
from collections.abc import Callable
from typing import Any

from mmcache.structure import with_sizes

# Worth scaling: at this cost of one small picture the whole trial takes about a second.
_SLOW_SECONDS = 0.015

_FACTOR = 4


def scaled_down(processor: Any, options: dict[str, Any], run: Callable[[Any, dict[str, Any]], Any]) -> tuple[Any, Any]:
    """Return a copy of a processor and its options with sizes a fourth as large, if that is faster and it lets us.

    ``run(processor, options)`` processes one small picture. Else the processor and options are returned as they are.
    """
    seconds = _seconds(run, processor, options)
    if seconds is None or seconds < _SLOW_SECONDS:
        return processor, options
    twin = copy.copy(processor)
    vars(twin).update(with_sizes(vars(processor), _scaled))
    fewer = with_sizes(options, _scaled)
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


def _scaled(size: int) -> int:
    return -(-size // _FACTOR)
