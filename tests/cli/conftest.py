"""Small photographs, and a machine without settings for mmcache."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmcache.cli import main
from mmcache.cli.pictures import carried_pictures


@pytest.fixture(autouse=True)
def _no_settings_and_no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("MMCACHE_"):
            monkeypatch.delenv(name)
    # On a busy machine too, a trial ends before a call goes on without it.
    monkeypatch.setattr("mmcache.stages.PATIENCE_SECONDS", 120.0)


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three small photographs, one of them in a folder below."""
    folder = tmp_path_factory.mktemp("photographs")
    (folder / "below").mkdir()
    names = ("a.png", "b.jpg", "below/c.png")
    for name, picture in zip(names, carried_pictures()[::5], strict=False):
        picture.image.resize((160, 120)).save(folder / name)
    return folder


@pytest.fixture
def demo(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any], str]]:
    """Run the demo with ``--json``; return its status, its figures and what it wrote on stderr."""

    def run(*arguments: object) -> tuple[int, dict[str, Any], str]:
        status = main(["demo", "--json", *map(str, arguments)])
        written = capsys.readouterr()
        return status, json.loads(written.out), written.err

    return run
