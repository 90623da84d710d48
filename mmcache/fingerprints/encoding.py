"""One typed, framed encoding for everything that is hashed.

Two values have equal encodings only if they are equal in type, structure and bits: every value carries a type tag,
every chunk its length, every container its kind and count, so that no value can pass for another and no encoding is
the beginning of another. Mappings go by sorted key and sets by sorted member: insertion order and hash seed do not
show. What has no exact encoding is refused, which makes the call that depends on it a bypass.

It runs at each call of a processor, so the common types are found by one look-up of their exact type. That is also
what refuses subclasses: a ``str`` that overrides ``lower`` is not the ``str`` that it compares equal to.
"""

import sys
from collections import OrderedDict, UserDict
from collections.abc import Callable, Mapping
from enum import Enum
from struct import Struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mmcache.errors import NotEncodable
from mmcache.fingerprints.arrays import bytes_of_tensor, has_exact_bytes, is_readable
from mmcache.fingerprints.culprit import path_to

if TYPE_CHECKING:
    import numpy
    import torch

_COUNT = Struct("<cQ").pack
_FLOAT = Struct("<cd").pack
_COMPLEX = Struct("<cdd").pack

# Option names and short words come back at every call; the bound keeps hostile option names from growing it.
_KNOWN_TEXTS: dict[str, bytes] = {}
_KNOWN_TEXTS_LIMIT = 4096
_KNOWN_TEXT_LENGTH = 64

# Sizes, factors and grey levels: what an int in a configuration nearly always is.
_SMALL_INTS = range(-1, 4097)


class _RefusedError(Exception):
    """Carries the value that has no encoding up to ``encode``, which alone knows where it lies.

    ``again`` says that it is a container met inside itself.
    """

    def __init__(self, culprit: object, again: bool = False) -> None:
        self.culprit, self.again = culprit, again


class _Encoder:
    """One encoding in the making: its chunks, and the open containers (one inside itself would never end)."""

    __slots__ = ("open", "out")

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.open: set[int] = set()

    def put(self, value: object) -> None:
        rule = _RULES.get(type(value))
        if rule is None:
            _put_rare(self, value)
        else:
            rule(self, value)

    def alone(self, value: object) -> bytes:
        """Return the encoding of one value for itself, to sort by."""
        outer, self.out = self.out, []
        self.put(value)
        inner, self.out = self.out, outer
        return b"".join(inner)


_Rule = Callable[[_Encoder, Any], None]


def encode(value: object) -> bytes:
    """Encode a value so that different values have different encodings.

    Accepted are None, bool, int, float, complex, str, bytes, bytearray, enums (by class and name), numpy scalars,
    numpy and torch dtypes, torch devices, ndarrays and dense CPU tensors (dtype, shape, bytes in C order), and lists,
    tuples, sets, frozensets, dicts, ``OrderedDict``, ``UserDict`` and mapping proxies of these. Mappings and sets have
    no order. Types are exact: ``1``, ``1.0``, ``True``, ``"1"`` and ``b"1"`` all differ, and so do ``[]`` and ``()``.

    Raises ``NotEncodable``, which names the path to the culprit, for anything else (subclasses of the above too).

    >>> encode({"a": 1, "b": 2}) == encode({"b": 2, "a": 1})
    True
    >>> encode(1) == encode(1.0)
    False
    """
    encoder = _Encoder()
    try:
        encoder.put(value)
    except _RefusedError as refused:
        raise NotEncodable(refused.culprit, path_to(refused.culprit, value, again=refused.again)) from None
    except RecursionError:
        raise NotEncodable(value, "value, nested too deeply,") from None
    return b"".join(encoder.out)


def _put_none(encoder: _Encoder, _value: None) -> None:
    encoder.out.append(b"N")


def _put_bool(encoder: _Encoder, value: bool) -> None:
    encoder.out.append(b"T" if value else b"F")


def _int_bytes(value: int) -> bytes:
    digits = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return _COUNT(b"i", len(digits)) + digits


_KNOWN_INTS = {number: _int_bytes(number) for number in _SMALL_INTS}


def _put_int(encoder: _Encoder, value: int) -> None:
    encoder.out.append(_KNOWN_INTS.get(value) or _int_bytes(value))


def _put_float(encoder: _Encoder, value: float) -> None:
    encoder.out.append(_FLOAT(b"f", value))


def _put_complex(encoder: _Encoder, value: complex) -> None:
    encoder.out.append(_COMPLEX(b"c", value.real, value.imag))


def _text_bytes(text: str) -> bytes:
    # A str may hold lone surrogates (file names do), and they must differ from everything else.
    raw = text.encode("utf-8", "surrogatepass")
    encoded = _COUNT(b"s", len(raw)) + raw
    if len(text) <= _KNOWN_TEXT_LENGTH and len(_KNOWN_TEXTS) < _KNOWN_TEXTS_LIMIT:
        _KNOWN_TEXTS[text] = encoded
    return encoded


def _put_text(encoder: _Encoder, value: str) -> None:
    encoder.out.append(_KNOWN_TEXTS.get(value) or _text_bytes(value))


def _put_bytes(encoder: _Encoder, value: bytes | bytearray) -> None:
    encoder.out.append(_COUNT(b"b" if type(value) is bytes else b"B", len(value)))
    encoder.out.append(bytes(value))


_SEQUENCES = {list: b"[", tuple: b"("}


def _put_sequence(encoder: _Encoder, value: "list[object] | tuple[object, ...]", tag: bytes | None = None) -> None:
    if id(value) in encoder.open:
        raise _RefusedError(value, again=True)
    encoder.open.add(id(value))
    encoder.out.append(_COUNT(tag or _SEQUENCES[type(value)], len(value)))
    for member in value:
        (_RULES.get(type(member)) or _put_rare)(encoder, member)
    encoder.open.discard(id(value))


def _put_set(encoder: _Encoder, value: "set[object] | frozenset[object]") -> None:
    encoder.out.append(_COUNT(b"{" if type(value) is set else b"<", len(value)))
    encoder.out.extend(sorted(encoder.alone(member) for member in value))


_MAPPINGS: dict[type, bytes] = {dict: b"d", OrderedDict: b"o", MappingProxyType: b"m", UserDict: b"u"}


def _put_mapping(encoder: _Encoder, value: Mapping[object, object]) -> None:
    if id(value) in encoder.open:
        raise _RefusedError(value, again=True)
    encoder.open.add(id(value))
    known = _KNOWN_TEXTS
    by_key = {
        (known.get(key) if type(key) is str else None) or encoder.alone(key): member for key, member in value.items()
    }
    if len(by_key) != len(value):  # two NaN keys, which no sorting can tell apart
        raise _RefusedError(value)
    out = encoder.out
    out.append(_COUNT(_MAPPINGS[type(value)], len(by_key)))
    for key in sorted(by_key):
        out.append(key)
        member = by_key[key]
        (_RULES.get(type(member)) or _put_rare)(encoder, member)
    encoder.open.discard(id(value))


def _put_rare(encoder: _Encoder, value: object) -> None:
    """Enums (of which each class is a type of its own), and the values of libraries that may not be there."""
    if isinstance(value, Enum):
        return _put_enum(encoder, value)
    # By the name of its module, so that no library that another thread has half imported is asked for anything.
    home = getattr(value if isinstance(value, type) else type(value), "__module__", None)
    library = home.partition(".")[0] if isinstance(home, str) else ""
    put = {"numpy": _put_numpy, "torch": _put_torch}.get(library)
    if put is None or library not in sys.modules or not put(encoder, value, sys.modules[library]):
        raise _RefusedError(value)
    return None


def _put_enum(encoder: _Encoder, value: Enum) -> None:
    cls = type(value)
    encoder.out.append(b"E")
    for word in (cls.__module__, cls.__qualname__):
        _put_text(encoder, word)
    # A combination of flags may have no name; its value is then all there is.
    name: str | None = value.name
    encoder.put(value.value if name is None else name)


def _put_numpy(encoder: _Encoder, value: Any, numpy: Any) -> bool:
    """Encode a value of numpy's; False if it is none that can be."""
    if isinstance(value, numpy.generic) and type(value).__module__ == "numpy":
        if not has_exact_bytes(value.dtype):
            return False
        _put_array(encoder, numpy.asarray(value), b"n")
    elif type(value) is numpy.ndarray:
        _put_array(encoder, value, b"a")
    elif isinstance(value, numpy.dtype):
        encoder.out.append(b"t")
        _put_dtype(encoder, value)
    elif isinstance(value, type) and issubclass(value, numpy.generic) and value.__module__ == "numpy":
        encoder.out.append(b"y")
        _put_text(encoder, value.__name__)
    else:
        return False
    return True


def _put_dtype(encoder: _Encoder, dtype: "numpy.dtype[Any]") -> None:
    if not has_exact_bytes(dtype):
        raise _RefusedError(dtype)
    _put_text(encoder, dtype.str)


def _put_array(encoder: _Encoder, array: "numpy.ndarray[Any, Any]", tag: bytes) -> None:
    if not has_exact_bytes(array.dtype):
        raise _RefusedError(array)
    encoder.out.append(tag)
    _put_dtype(encoder, array.dtype)
    _put_sequence(encoder, array.shape)
    return _put_bytes(encoder, array.tobytes())


def _put_torch(encoder: _Encoder, value: Any, torch: Any) -> bool:
    """Encode a value of torch's; False if it is none that can be."""
    if type(value) is torch.Tensor and is_readable(value):
        _put_tensor(encoder, value)
    elif type(value) is torch.dtype or type(value) is torch.device:
        encoder.out.append(b"x")
        _put_text(encoder, str(value) if type(value) is torch.dtype else f"device {value}")
    elif type(value) is torch.Size:
        _put_sequence(encoder, value, b"z")
    else:
        return False
    return True


def _put_tensor(encoder: _Encoder, tensor: "torch.Tensor") -> None:
    encoder.out.append(b"X" if tensor.requires_grad else b"w")
    _put_text(encoder, str(tensor.dtype))
    _put_sequence(encoder, tuple(tensor.shape))
    try:
        raw = bytes_of_tensor(tensor).tobytes()
    except RuntimeError:  # no storage of its own: inside vmap, under a fake mode
        raise _RefusedError(tensor) from None
    return _put_bytes(encoder, raw)


_RULES: dict[type, _Rule] = {
    type(None): _put_none,
    bool: _put_bool,
    int: _put_int,
    float: _put_float,
    complex: _put_complex,
    str: _put_text,
    bytes: _put_bytes,
    bytearray: _put_bytes,
    list: _put_sequence,
    tuple: _put_sequence,
    set: _put_set,
    frozenset: _put_set,
    **dict.fromkeys(_MAPPINGS, _put_mapping),
}
