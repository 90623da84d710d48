"""The corpus of real picture files and of pairs, which lies outside the project: see ``MMCACHE_TEST_DATA``."""

import gc
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest


def corpus_folder() -> Path | None:
    """The folder of the corpus, or None where the environment names none."""
    named = os.environ.get("MMCACHE_TEST_DATA")
    return Path(named) / "corpus" if named and (Path(named) / "corpus").is_dir() else None


@pytest.fixture(scope="session")
def corpus() -> Path:
    folder = corpus_folder()
    if folder is None:
        pytest.skip("MMCACHE_TEST_DATA names no folder with the corpus")
    return folder


@pytest.fixture(scope="session")
def namespace(corpus: Path) -> ModuleType:
    """The module that builds the sources of ``pairs.json`` from their code."""
    spec = importlib.util.spec_from_file_location("corpus_namespace", corpus / "namespace.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _files_of_the_corpus_are_closed_here() -> Iterator[None]:
    """The code of the pairs leaves files open: let their warnings come while this folder's filter holds."""
    yield
    gc.collect()
