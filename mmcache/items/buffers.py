"""Memory for large outputs, with huge pages asked for: page faults cost more than the arithmetic that fills it."""

import ctypes
import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

# Linux: MADV_HUGEPAGE of <sys/mman.h>. The size of a huge page on x86-64, and on most arm64 machines.
_HUGEPAGE_ADVICE = 14
_HUGE_PAGE_BYTES = 2 << 20

# Smaller memory seldom comes fresh from the system: the allocator has it from what was freed before.
_LEAST_BYTES = 4 << 20


def empty(shape: Sequence[int], dtype: Any, device: Any = None) -> Any:
    """Return a tensor (on the CPU by default) with whatever is in its memory, as ``torch.empty`` does."""
    import torch

    tensor = torch.empty(tuple(shape), dtype=dtype, device=device or "cpu")
    nbytes = math.prod(shape) * tensor.element_size()
    if is_large(nbytes) and tensor.device.type == "cpu":
        advise(tensor.data_ptr(), nbytes)
    return tensor


def is_large(nbytes: int) -> bool:
    """Whether memory of this size comes fresh from the system, so that huge pages pay."""
    return nbytes >= _LEAST_BYTES


def advise(address: int, nbytes: int) -> None:
    """Ask for huge pages in this memory; where there are none nothing happens."""
    first = -(-address // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    last = (address + nbytes) // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
    if last > first and (madvise := _madvise()) is not None:
        madvise(first, last - first, _HUGEPAGE_ADVICE)


@functools.cache
def _madvise() -> Callable[..., int] | None:
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return function
