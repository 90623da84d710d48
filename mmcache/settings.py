"""The settings of a cache: what was given, else what the environment says, else the default."""

import os
from dataclasses import dataclass, field

from mmcache.errors import BadArgument
from mmcache.sizes import default_max_bytes, parse_size

# One line in the log every ten seconds tells enough and floods nobody.
_LOG_INTERVAL = 10.0


@dataclass(frozen=True)
class Settings:
    """Everything that makes two caches interchangeable. The secret is not part of it: settings travel."""

    max_bytes: int
    name: str
    namespace: str
    hasher: str
    log_interval: float
    disabled: bool = field(compare=False)


def resolve(
    max_bytes: int | str | None, name: str, namespace: str | None, hasher: str | None, log_interval: float | None
) -> Settings:
    """Fill what is None from ``MMCACHE_*`` and the defaults; raise `BadArgument` for what is not accepted."""
    size = max_bytes if max_bytes is not None else os.environ.get("MMCACHE_MAX_BYTES")
    interval = log_interval if log_interval is not None else os.environ.get("MMCACHE_LOG_INTERVAL", _LOG_INTERVAL)
    return Settings(
        max_bytes=default_max_bytes() if size is None else parse_size(size),
        name=_text("name", name),
        namespace=_text("namespace", namespace if namespace is not None else os.environ.get("MMCACHE_NAMESPACE", "")),
        hasher=_text("hasher", hasher if hasher is not None else os.environ.get("MMCACHE_HASHER", "auto")),
        log_interval=_seconds("log_interval", interval),
        disabled=os.environ.get("MMCACHE_DISABLED", "") not in ("", "0"),
    )


def resolve_secret(secret: bytes | str | None) -> bytes | None:
    """Return the secret as bytes, from ``MMCACHE_SECRET`` if none is given; None if there is none at all."""
    given = secret if secret is not None else os.environ.get("MMCACHE_SECRET")
    if given is None:
        return None
    if not isinstance(given, bytes | str) or not given:
        raise BadArgument("secret", type(given).__name__, "bytes or a text that is not empty")
    return given.encode() if isinstance(given, str) else given


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadArgument(name, value, "a text")
    return value


def _seconds(name: str, value: object) -> float:
    accepted = "a number of seconds, 0 or more"
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise BadArgument(name, value, accepted) from None
    if not seconds >= 0:
        raise BadArgument(name, value, accepted)
    return seconds
