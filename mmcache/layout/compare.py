"""Comparing outputs bit for bit: ``torch.equal`` and ``==`` say that NaN differs from itself and 0.0 equals -0.0."""

from collections import UserDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from mmcache.items import is_image, is_tensor


def difference(expected: Any, found: Any, where: str = "output") -> str:
    """Return where and how two outputs differ (types, order of keys, dtypes, shapes, bits), or "" if they do not."""
    if type(expected) is not type(found):
        return f"{where}: {type(found).__name__} instead of {type(expected).__name__}"
    if isinstance(expected, Mapping | UserDict):
        return _mapping_difference(expected, found, where)
    if isinstance(expected, list | tuple):
        if len(expected) != len(found):
            return f"{where}: length {len(found)} instead of {len(expected)}"
        pairs = enumerate(zip(expected, found, strict=True))
        return next((d for i, (e, f) in pairs if (d := difference(e, f, f"{where}[{i}]"))), "")
    if is_tensor(expected) or isinstance(expected, np.ndarray):
        return _array_difference(expected, found, where)
    if is_image(expected):
        return _image_difference(expected, found, where)
    if isinstance(expected, np.generic):
        return _array_difference(np.asarray(expected), np.asarray(found), where)
    if isinstance(expected, complex):
        return difference([expected.real, expected.imag], [found.real, found.imag], where)
    if isinstance(expected, float):
        return "" if expected.hex() == found.hex() else f"{where}: {found!r} instead of {expected!r}"
    return "" if expected == found else f"{where}: {found!r} instead of {expected!r}"


def _mapping_difference(expected: Any, found: Any, where: str) -> str:
    if list(expected) != list(found):
        return f"{where}: keys {list(found)} instead of {list(expected)}"
    if (
        rest := difference(_attributes(expected), _attributes(found), "attributes")
        if type(expected) is not dict
        else ""
    ):
        return f"{where}: {rest}"
    return next((d for key in expected if (d := difference(expected[key], found[key], f"{where}[{key!r}]"))), "")


def _image_difference(expected: Any, found: Any, where: str) -> str:
    """Compare what code can see of two images: mode, size, ``info``, palette, pixels."""
    if rest := difference(_described(expected), _described(found), where):
        return rest
    return "" if expected.tobytes() == found.tobytes() else f"{where}: pixels differ"


def _described(image: Any) -> dict[str, Any]:
    colours = image.im.getpalettemode() if image.mode in ("P", "PA") else None
    palette = (colours, image.getpalette(None)) if colours else None
    return {"mode": image.mode, "size": image.size, "info": image.info, "palette": palette}


def _attributes(mapping: Any) -> dict[str, Any]:
    """Return what a UserDict such as BatchFeature carries beside its data."""
    return {name: value for name, value in getattr(mapping, "__dict__", {}).items() if name != "data"}


def _array_difference(expected: Any, found: Any, where: str) -> str:
    mine, other = (expected.dtype, tuple(expected.shape)), (found.dtype, tuple(found.shape))
    if mine != other:
        return f"{where}: {other} instead of {mine}"
    if is_tensor(expected) and expected.device != found.device:
        return f"{where}: on {found.device} instead of {expected.device}"
    if not is_tensor(expected) and expected.dtype.hasobject:  # made of ragged lists
        return difference(expected.tolist(), found.tolist(), where)
    if not np.array_equal(_bytes(expected), _bytes(found)):
        return f"{where}: bits differ"
    return ""


def _bytes(array: Any) -> Any:
    """Return the elements as unsigned bytes, in C order; a tensor on the meta device has none."""
    if is_tensor(array):
        import torch

        if array.is_meta:
            return np.empty(0, np.uint8)
        flat = array.detach().cpu().contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
