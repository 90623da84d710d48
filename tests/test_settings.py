"""Settings: what was given, else the environment, else the default; read when a cache is made and never at import."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mmcache
from mmcache.settings import Settings, resolve, resolve_secret
from mmcache.sizes import default_max_bytes

calls: list[int] = []


@pytest.fixture(autouse=True)
def _a_bare_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("MMCACHE_")]:
        monkeypatch.delenv(name)
    calls.clear()
    yield
    calls.clear()


def resolved(**given: Any) -> Settings:
    defaults: dict[str, Any] = {
        "max_bytes": None, "name": "default", "namespace": None, "hasher": None, "log_interval": None,
        "verify_rate": None, "max_overhead": None,
    }  # fmt: skip
    return resolve(**{**defaults, **given})


def process(image: Any) -> int:
    calls.append(1)
    return 1


def test_the_defaults() -> None:
    assert resolved() == Settings(default_max_bytes(), "default", "", "auto", 10.0, None, None, False)
    assert resolve_secret(None) is None


def test_the_environment_fills_what_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "MAX_BYTES": "2GiB", "NAMESPACE": "tenant", "HASHER": "sha256", "LOG_INTERVAL": "2.5", "SECRET": "quiet",
        "VERIFY_RATE": "0.5", "MAX_OVERHEAD": "0.1",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"MMCACHE_{name}", value)
    assert resolved() == Settings(2 << 30, "default", "tenant", "sha256", 2.5, 0.5, 0.1, False)
    assert resolve_secret(None) == b"quiet"
    given = resolved(max_bytes=5, namespace="", hasher="xxh3_128", log_interval=0, verify_rate=0.25, max_overhead=1)
    assert given == Settings(5, "default", "", "xxh3_128", 0.0, 0.25, 1.0, False)
    assert resolve_secret(b"own") == resolve_secret("own") == b"own"


@pytest.mark.parametrize(
    "bad",
    [
        {"max_bytes": 0}, {"max_bytes": "much"}, {"max_bytes": 1.5}, {"name": 3}, {"name": None}, {"namespace": b"x"},
        {"hasher": 3}, {"log_interval": -1}, {"log_interval": "soon"}, {"log_interval": float("nan")},
        {"log_interval": object()}, {"log_interval": 10**400}, {"log_interval": []},
    ],
    ids=str,
)  # fmt: skip
def test_bad_settings_are_refused_with_their_name(bad: dict[str, Any]) -> None:
    with pytest.raises(mmcache.BadArgument, match=f"{next(iter(bad))}=.*expected"):
        resolved(**bad)
    with pytest.raises(mmcache.BadArgument):
        mmcache.Cache(**bad) if bad.get("name", "") is not None else resolved(**bad)


@pytest.mark.parametrize(("name", "value"), [("MAX_BYTES", "lots"), ("LOG_INTERVAL", "often"), ("HASHER", "md5")])
def test_a_bad_environment_is_refused_when_a_cache_is_made(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"MMCACHE_{name}", value)
    with pytest.raises(mmcache.BadArgument, match=f"(?i){name.lower()}='{value}'"):
        mmcache.Cache()
    mmcache.Cache(1000, hasher="sha256", log_interval=1).close()


@pytest.mark.parametrize("bad", [b"", "", 3, bytearray(b"x")])
def test_a_bad_secret_is_refused_without_being_shown(bad: Any) -> None:
    with pytest.raises(mmcache.BadArgument, match="secret="):
        mmcache.Cache(1000, secret=bad)
    with pytest.raises(mmcache.BadArgument) as refused:
        resolve_secret(["hidden"])  # type: ignore[arg-type]
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(("value", "disabled"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_disabled_wins_over_everything_and_calls_are_plain(
    value: str, disabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMCACHE_DISABLED", value)
    with mmcache.Cache("16MiB") as cache:
        cached = mmcache.cached(cache=cache, version="1")(process)
        assert [cached(np.zeros(3)) for _ in range(3)] == [1, 1, 1]
        assert len(calls) == (3 if disabled else 1)
        info = cache.cache_info()
        assert info.bypass_reasons == ({"the cache is disabled": 3} if disabled else {})
        assert info.items == (0 if disabled else 1)


def test_the_environment_is_read_when_a_cache_is_made_not_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with mmcache.Cache("16MiB") as cache:
        monkeypatch.setenv("MMCACHE_DISABLED", "1")
        cached = mmcache.cached(cache=cache, version="1")(process)
        cached(np.zeros(3)), cached(np.zeros(3))
        assert len(calls) == 1


def test_importing_reads_no_environment_and_loads_nothing_heavy() -> None:
    program = (
        "import os, sys\n"
        "class Spy(type(os.environ)):\n"
        "    def __getitem__(self, name):\n"
        "        assert not str(name).startswith('MMCACHE'), name\n"
        "        return super().__getitem__(name)\n"
        "os.environ.__class__ = Spy\n"
        "import threading, mmcache\n"
        "heavy = {'torch', 'transformers', 'numpy', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert threading.active_count() == 1\n"
        "import logging\n"
        "assert [type(h).__name__ for h in logging.getLogger('mmcache').handlers] == ['NullHandler']\n"
        "assert not logging.getLogger().handlers\n"
    )
    environment = {**os.environ, "MMCACHE_MAX_BYTES": "nonsense", "MMCACHE_LOG_INTERVAL": "nonsense"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_namespaces_and_secrets_part_the_keys() -> None:
    image = np.zeros(3)
    keys = set()
    for settings in ({}, {"namespace": "a"}, {"namespace": "b"}, {"secret": "s"}, {"secret": "s", "namespace": "a"}):
        with mmcache.Cache("1MiB", hasher="sha256", **settings) as cache:  # type: ignore[arg-type]
            keys.add(cache.key(b"identity", image, metadata=False))
    assert len(keys) == 5


@pytest.mark.parametrize(
    ("text", "disabled"),
    [("1", True), ("TRUE", True), ("on", True), ("", False), ("0", False), ("false", False), ("Off", False)],
)
def test_the_switch_takes_words(text: str, disabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMCACHE_DISABLED", text)
    assert resolved().disabled is disabled


def test_a_switch_that_says_neither_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMCACHE_DISABLED", "maybe")
    with pytest.raises(mmcache.BadArgument, match="MMCACHE_DISABLED='maybe'"):
        resolved()


def test_an_empty_variable_is_as_good_as_none_and_a_bad_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_BYTES", "NAMESPACE", "HASHER", "LOG_INTERVAL", "VERIFY_RATE", "MAX_OVERHEAD"):
        monkeypatch.setenv(f"MMCACHE_{name}", "")
    assert resolved() == Settings(default_max_bytes(), "default", "", "auto", 10.0, None, None, False)
    assert resolve_secret(None) is None
    monkeypatch.setenv("MMCACHE_LOG_INTERVAL", "often")
    with pytest.raises(mmcache.BadArgument, match="MMCACHE_LOG_INTERVAL='often'"):
        resolved()
