"""The caches that a process shares: the one that everything uses which was given none, and those that arrive from elsewhere."""

import os

from mmcache import registry
from mmcache.cache import Cache
from mmcache.settings import Settings, resolve_secret


def default_cache(*, exposed: bool = False) -> Cache:
    """Return the one cache of this process that everything uses which was given none; made at first use.

    ``exposed``: others than its owner may choose the pictures (a server), so if it is made here, its digests are keyed.
    """
    known = _held.get("cache")
    if known is not None and not known.closed:
        return known
    _held.pop("cache", None)
    # Two threads that meet here agree on one of the two.
    return _held.setdefault("cache", Cache(secret=resolve_secret(None) or os.urandom(32)) if exposed else Cache())


_held: dict[str, Cache] = {}


def arrived(settings: Settings, token: bytes | None) -> Cache:
    """Return what a cache that travelled becomes: itself, or the cache of this process for its settings."""
    for known in (registry.find(token) if token else None, registry.find(settings)):
        if isinstance(known, Cache) and not known.closed:
            return known
    cache = Cache(
        settings.max_bytes, name=settings.name, namespace=settings.namespace, hasher=_affordable(settings.hasher),
        log_interval=settings.log_interval, verify_rate=settings.verify_rate,
    )  # fmt: skip
    registry.name(cache, settings)
    return cache


def _affordable(hasher: str) -> str:
    """Return the hasher that a cache had where it came from, unless it is no protection where a secret is set."""
    return "auto" if hasher == "xxh3_128" else hasher
