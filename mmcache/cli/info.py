"""``mmcache info``: versions, limits and settings, for a bug report or a look at what a container really gives."""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Mapping
from typing import Any

import mmcache
from mmcache.budget import MAX_OVERHEAD
from mmcache.errors import MMCacheError
from mmcache.fingerprints import choose_hasher
from mmcache.settings import resolve, resolve_secret
from mmcache.sizes import default_max_bytes, format_size, memory_limit
from mmcache.verification import VERIFY_RATE

# What decides bits or digests, by the names that installers know.
_PACKAGES = ("torch", "torchvision", "transformers", "Pillow", "xxhash", "blake3")

# Variables whose values are nobody's secret. Of any other one, known or not, it is only said that it is set: tiers
# may be URLs with a password in them.
_PUBLIC_VARIABLES = frozenset(
    f"MMCACHE_{name}"
    for name in ("MAX_BYTES", "NAMESPACE", "HASHER", "LOG_INTERVAL", "VERIFY_RATE", "MAX_OVERHEAD", "DISABLED")
)


# What None stands for.
_DEFAULTS = {"verify_rate": VERIFY_RATE, "max_overhead": MAX_OVERHEAD}

# Read by mmcache, or by its tests and tools.
_KNOWN_VARIABLES = _PUBLIC_VARIABLES | {"MMCACHE_SECRET", "MMCACHE_TEST_DATA"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print what there is to know; return 1 if a cache could not be made with these settings, else 0."""
    facts = _facts()
    print(json.dumps(facts, indent=2) if arguments.json else "\n".join(_lines(facts)))
    return 0 if facts["settings"] == "ok" else 1


def _facts() -> dict[str, Any]:
    settings, problem = _checked_settings()
    unknown = sorted(set(_variables_for(os.environ)) - _KNOWN_VARIABLES)
    return {
        "versions": {
            "mmcache": mmcache.__version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
        },
        "memory_limit_bytes": memory_limit(),
        "default_max_bytes": default_max_bytes(),
        "auto_hasher": {
            "without a secret": choose_hasher("auto", secret=None, exposed=False).algorithm,
            "with a secret": choose_hasher("auto", secret=b"any", exposed=False).algorithm,
        },
        "environment": dict(_variables(os.environ)),
        "in_force": settings,
        "unknown_variables": unknown,
        "disabled": bool(settings.get("disabled")),
        "settings": problem or "ok",
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that are meant for mmcache, with the values that may be shown."""
    for name in sorted(environment):
        if name.startswith("MMCACHE_"):
            yield name, environment[name] if name in _PUBLIC_VARIABLES else "set"


def _variables_for(environment: Mapping[str, str]) -> Iterator[str]:
    return (name for name in environment if name.startswith("MMCACHE_"))


def _checked_settings() -> tuple[dict[str, Any], str]:
    """Return the settings of a cache that is made here without arguments, and what is wrong with them, or ""."""
    try:
        settings = resolve(None, "default", None, None, None, None, None)
        hasher = choose_hasher(settings.hasher, secret=resolve_secret(None), exposed=False)
    except MMCacheError as problem:
        return {}, str(problem)
    in_force = {**dataclasses.asdict(settings), "hasher": hasher.algorithm}
    return {name: _DEFAULTS.get(name) if value is None else value for name, value in in_force.items()}, ""


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    for name, version in facts["versions"].items():
        yield f"{name:<18}{version}"
    yield f"{'memory limit':<18}{_size(facts['memory_limit_bytes'])}"
    yield f"{'default max_bytes':<18}{_size(facts['default_max_bytes'])}"
    for case, algorithm in facts["auto_hasher"].items():
        yield f"{'hasher auto':<18}{algorithm} ({case})"
    for name, value in facts["environment"].items():
        yield f"{name}={value}"
    for name in facts["unknown_variables"]:
        yield f"{name}: mmcache knows no such variable"
    for name, value in facts["in_force"].items():
        if name != "disabled":
            yield f"{name:<18}{value}"
    yield f"{'disabled':<18}{'yes, by MMCACHE_DISABLED' if facts['disabled'] else 'no'}"
    yield f"{'settings':<18}{facts['settings']}"


def _size(nbytes: int) -> str:
    return f"{format_size(nbytes)} ({nbytes} bytes)"
