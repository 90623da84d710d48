"""What tests of several folders share."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image, ImageFile

# Small pictures, coverage and a busy machine make look-ups dearer than what they save, and a cache would step aside in the
# middle of a test. What that is like has tests of its own (test_budget), which set the default again.
os.environ.setdefault("MMCACHE_MAX_OVERHEAD", "1")


@pytest.fixture(scope="session")
def tiny_qwen2_vl_module() -> ModuleType:
    """The module that the examples share, which is no part of any package."""
    path = Path(__file__).parent.parent / "examples" / "tiny_qwen2_vl.py"
    spec = importlib.util.spec_from_file_location("tiny_qwen2_vl", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["tiny_qwen2_vl"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny_qwen2_vl(tiny_qwen2_vl_module: ModuleType) -> tuple[Any, Any]:
    """A Qwen2-VL ``Processor`` and a tiny model with random weights; shared by all tests, so not to be changed."""
    made: tuple[Any, Any] = tiny_qwen2_vl_module.tiny_qwen2_vl()
    return made


@pytest.fixture
def decoded_files(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry for each time that Pillow opens or decodes anything."""
    counted: list[object] = []
    original_open, original_load = Image.open, ImageFile.ImageFile.load

    def opening(*args: Any, **options: Any) -> Any:
        counted.append(args)
        return original_open(*args, **options)

    def loading(self: Any) -> Any:
        counted.append(self)
        return original_load(self)

    monkeypatch.setattr(Image, "open", opening)
    monkeypatch.setattr(ImageFile.ImageFile, "load", loading)
    return counted
