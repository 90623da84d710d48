"""The values of arrays and tensors as bytes in C order, copied only where they do not lie so."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy
    import torch

# How much of an array that is not contiguous is copied at a time.
_BLOCK_BYTES = 2 << 20

# Kinds of numpy values whose bytes are their whole value: bool, numbers, fixed strings, dates. Not objects (pointers),
# not structures and long doubles (padding of no fixed value).
_EXACT_KINDS = frozenset("biufcSUmM")


def has_exact_bytes(dtype: "numpy.dtype[Any]") -> bool:
    """Whether the bytes of an array of this dtype are its whole value, and nothing but its value."""
    return dtype.kind in _EXACT_KINDS and dtype.char not in "gG"


def is_readable(tensor: "torch.Tensor") -> bool:
    """Say whether a tensor's values lie as plain numbers in memory of this process."""
    import torch

    return tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized


def bytes_of_tensor(tensor: "torch.Tensor") -> "numpy.ndarray[Any, Any]":
    """Return a dense CPU tensor's values as bytes in C order, copied only where they do not lie so."""
    import torch

    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.numel() == 1:  # counts as contiguous whatever its stride is, but cannot be viewed as bytes
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy()


def array_pieces(array: "numpy.ndarray[Any, Any]") -> Iterator["numpy.ndarray[Any, Any]"]:
    """Yield the bytes in C order, copied block by block where they do not lie so."""
    import numpy

    if array.nbytes <= _BLOCK_BYTES or array.flags.c_contiguous:
        if array.nbytes:
            yield numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)
        return
    rows = _BLOCK_BYTES * len(array) // array.nbytes
    for start in range(0, len(array), max(1, rows)):
        if rows:
            yield numpy.ascontiguousarray(array[start : start + rows]).reshape(-1).view(numpy.uint8)
        else:
            yield from array_pieces(array[start])


def tensor_pieces(tensor: "torch.Tensor") -> Iterator["numpy.ndarray[Any, Any]"]:
    """Yield the bytes in C order, copied block by block where they do not lie so."""
    n_bytes = tensor.numel() * tensor.element_size()
    if n_bytes <= _BLOCK_BYTES or (tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()):
        if n_bytes:
            yield bytes_of_tensor(tensor)
        return
    rows = _BLOCK_BYTES * len(tensor) // n_bytes
    for start in range(0, len(tensor), max(1, rows)):
        if rows:
            yield bytes_of_tensor(tensor[start : start + rows])
        else:
            yield from tensor_pieces(tensor[start])
