"""The settings of a cache: what was given, else what the environment says, else the default."""

import os
from dataclasses import dataclass, field
from typing import Any

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
    verify_rate: float | None
    max_overhead: float | None
    disabled: bool = field(compare=False)


def resolve(
    max_bytes: int | str | None,
    name: str,
    namespace: str | None,
    hasher: str | None,
    log_interval: float | None,
    verify_rate: float | None,
    max_overhead: float | None,
) -> Settings:
    """Fill what is None from ``MMCACHE_*`` and the defaults; raise `BadArgument` for what is not accepted."""
    size_name, size = _given("max_bytes", max_bytes)
    interval_name, interval = _given("log_interval", log_interval)
    return Settings(
        max_bytes=default_max_bytes() if size is None else parse_size(size, size_name),
        name=_text("name", name),
        namespace=_text("namespace", _given("namespace", namespace)[1] or ""),
        hasher=_text("hasher", _given("hasher", hasher)[1] or "auto"),
        log_interval=_seconds(interval_name, _LOG_INTERVAL if interval is None else interval),
        verify_rate=_share(*_given("verify_rate", verify_rate)),
        max_overhead=_share(*_given("max_overhead", max_overhead)),
        disabled=_switch("MMCACHE_DISABLED"),
    )


def _given(name: str, value: Any) -> tuple[str, Any]:
    """Return an argument, or the variable that fills it (an empty one is as good as none), with its name for errors."""
    variable = f"MMCACHE_{name.upper()}"
    return (variable, os.environ.get(variable) or None) if value is None else (name, value)


def _switch(variable: str) -> bool:
    text = os.environ.get(variable, "").lower()
    if text in ("", "0", "false", "no", "off"):
        return False
    if text in ("1", "true", "yes", "on"):
        return True
    raise BadArgument(variable, text, "1, true, yes or on, or 0, false, no or off")


def resolve_secret(secret: bytes | str | None) -> bytes | None:
    """Return the secret as bytes, from ``MMCACHE_SECRET`` if none is given; None if there is none at all."""
    given = secret if secret is not None else os.environ.get("MMCACHE_SECRET")
    if given is None:
        return None
    if not isinstance(given, bytes | str) or not given:
        raise BadArgument("secret", type(given), "bytes or a text that is not empty")
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


def _share(name: str, value: object) -> float | None:
    accepted = "a share from 0 (off) to 1 (everything)"
    try:
        share = None if value is None else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise BadArgument(name, value, accepted) from None
    if share is not None and not 0 <= share <= 1:
        raise BadArgument(name, value, accepted)
    return share
