"""Sizes in bytes: read ``"4GiB"``, write ``4.0 GiB``, and find how much memory this process may use."""

import os
import re
from decimal import Decimal
from pathlib import Path

from mmcache.errors import BadArgument

_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)

# Four GiB hold about 170 photographs of Qwen2-VL at its default limits; a tenth of the machine is what a library
# may take without asking.
_DEFAULT_MAX_BYTES = 4 * 1024**3
_DEFAULT_SHARE = 10

# Where Linux says how much memory this container may use: cgroup v2, then v1.
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def parse_size(given: int | str, name: str = "max_bytes") -> int:
    """Return a number of bytes above 0 from a number or a text such as ``"4GiB"``, ``"500 MB"``, ``"1.5gib"``."""
    accepted = 'a number of bytes above 0, or a text such as "4GiB" or "500 MB"'
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise BadArgument(name, given, accepted)
    if isinstance(given, str):
        match = _SIZE.fullmatch(given)
        if match is None or match[2].lower() not in _UNITS:
            raise BadArgument(name, given, accepted)
        size = int(Decimal(match[1]) * _UNITS[match[2].lower()])
    else:
        size = given
    if size <= 0:
        raise BadArgument(name, given, accepted)
    return size


def format_size(nbytes: float) -> str:
    """Write a number of bytes for people: ``3.1 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024 or unit == "GiB":
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    raise AssertionError("unreachable: the last unit always returns")


def format_share(part: int, whole: int) -> str:
    """Write a part and its whole in the unit of the whole: ``3.1/4.0 GiB``."""
    text, unit = format_size(whole).split(" ")
    factor = _UNITS[unit.lower()]
    return f"{part / factor:.{1 if factor > 1 else 0}f}/{text} {unit}"


def memory_limit() -> int:
    """Return how many bytes of memory this process may use: the container's limit, or the machine's memory."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        try:
            return min(total, int(path.read_text()))
        except (OSError, ValueError):  # no such file, or "max": no limit
            continue
    return total


def default_max_bytes() -> int:
    """Return the budget of a cache that was given none: 4 GiB, or a tenth of the memory limit if that is less."""
    return min(_DEFAULT_MAX_BYTES, memory_limit() // _DEFAULT_SHARE)
