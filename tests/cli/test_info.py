"""``mmcache info``: what it says, and what it never says."""

import importlib.metadata
import json
import platform
from typing import Any

import pytest

import mmcache
from mmcache.cli import main
from mmcache.sizes import default_max_bytes, memory_limit


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> "Said":
    return Said(capsys)


class Said:
    """What the command says as it is run now."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.status = -1

    def text(self) -> str:
        self.status = main(["info"])
        return self._capsys.readouterr().out

    def facts(self) -> dict[str, Any]:
        self.status = main(["info", "--json"])
        facts: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return facts


def test_versions_are_those_that_are_installed(said: Said) -> None:
    versions = said.facts()["versions"]
    assert versions["mmcache"] == mmcache.__version__
    assert versions["python"] == platform.python_version()
    for package in ("torch", "transformers", "Pillow", "xxhash"):
        assert versions[package] == importlib.metadata.version(package)
    assert {"torchvision", "blake3"} <= set(versions)


def test_a_package_that_is_missing_is_said_to_be(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    installed = importlib.metadata.version

    def without_blake3(package: str) -> str:
        if package == "blake3":
            raise importlib.metadata.PackageNotFoundError(package)
        return installed(package)

    monkeypatch.setattr(importlib.metadata, "version", without_blake3)
    assert said.facts()["versions"]["blake3"] == "not installed"
    assert said.text().count("not installed") == 1


def test_limits_are_those_that_a_cache_really_gets(said: Said) -> None:
    facts = said.facts()
    with mmcache.Cache() as cache:
        assert facts["default_max_bytes"] == cache.cache_info().maxsize == default_max_bytes()
    assert facts["memory_limit_bytes"] == memory_limit()


def test_hashers_are_those_that_a_cache_really_chooses(said: Said) -> None:
    with mmcache.Cache("1MiB") as open_cache, mmcache.Cache("1MiB", secret="s") as secret_cache:
        assert said.facts()["auto_hasher"] == {
            "without a secret": open_cache.hasher.algorithm,
            "with a secret": secret_cache.hasher.algorithm,
        }


def test_values_that_could_be_secrets_are_never_shown(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    monkeypatch.setenv("MMCACHE_SECRET", "hunter2")
    monkeypatch.setenv("MMCACHE_TIERS", "redis://user:swordfish@host")
    monkeypatch.setenv("MMCACHE_OF_THE_FUTURE", "opensesame")
    monkeypatch.setenv("MMCACHE_NAMESPACE", "tenant-7")
    monkeypatch.setenv("UNRELATED", "elsewhere")
    facts, text = said.facts(), said.text()
    assert facts["environment"] == {
        "MMCACHE_NAMESPACE": "tenant-7",
        "MMCACHE_OF_THE_FUTURE": "set",
        "MMCACHE_SECRET": "set",
        "MMCACHE_TIERS": "set",
    }
    assert "MMCACHE_SECRET=set\n" in text
    assert "tenant-7" in text
    for hidden in ("hunter2", "swordfish", "opensesame", "UNRELATED"):
        assert hidden not in text + json.dumps(facts)


@pytest.mark.parametrize(("value", "disabled"), [("1", True), ("0", False), ("", False)])
def test_disabled_is_what_a_cache_makes_of_the_variable(
    value: str, disabled: bool, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setenv("MMCACHE_DISABLED", value)
    assert said.facts()["disabled"] is disabled
    assert ("yes, by MMCACHE_DISABLED" in said.text()) is disabled


@pytest.mark.parametrize(
    ("name", "value"),
    [("MAX_BYTES", "much"), ("LOG_INTERVAL", "often"), ("HASHER", "md5"), ("SECRET", "")],
)
def test_settings_that_no_cache_accepts_are_status_1_with_the_caches_own_words(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    assert said.facts()["settings"] == "ok"
    assert said.status == 0
    monkeypatch.setenv(f"MMCACHE_{name}", value)
    with pytest.raises(mmcache.BadArgument) as refused:
        mmcache.Cache()
    assert said.facts()["settings"] == str(refused.value)
    assert said.status == 1
    assert str(refused.value) in said.text()
