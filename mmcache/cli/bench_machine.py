"""Which machine it was: figures of another one, or of this one while it was busy, are other figures."""

import importlib.metadata
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

import mmcache
from mmcache.sizes import format_size, memory_limit

# What does the work that is measured.
_PACKAGES = ("torch", "torchvision", "transformers", "pillow", "numpy", "xxhash", "blake3", "vllm")

# The share of the cores that may be at work for somebody else before it shows.
_QUIET_LOAD = 0.5

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def machine() -> dict[str, Any]:
    """Return what names this machine and how busy it is: strings, numbers, and versions by package."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_bytes": memory_limit(),
        "huge_pages": _huge_pages(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load": _load(),
        "versions": {"mmcache": mmcache.__version__, "python": platform.python_version()} | dict(_versions()),
    }


def in_words(facts: dict[str, Any]) -> list[str]:
    """Return the same in lines of text."""
    load = "" if facts["load"] is None else f", load {facts['load']:.1f} when it began"
    busy = ["others were at work on this machine: figures of a quiet one are steadier"] if _busy(facts) else []
    return [
        f"{facts['cpu']}, {facts['cores']} cores, {format_size(facts['memory_bytes'])}, "
        f"huge pages: {facts['huge_pages']}{load}",
        ", ".join(f"{name} {version}" for name, version in facts["versions"].items()),
        *busy,
    ]


def _busy(facts: dict[str, Any]) -> bool:
    return facts["load"] is not None and facts["load"] > facts["cores"] * _QUIET_LOAD


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _huge_pages() -> str:
    """Return what Linux gives huge pages for: "always", "madvise" or "never"; elsewhere "unknown"."""
    with suppress(OSError):
        return _HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]
    return "unknown"


def _load() -> float | None:
    """Return how many processes wanted to run in the last minute, where the system says so."""
    with suppress(AttributeError, OSError):
        return os.getloadavg()[0]
    return None


def _versions() -> list[tuple[str, str]]:
    found = []
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found.append((name, importlib.metadata.version(name)))
    return found
