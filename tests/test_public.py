"""The package as a whole: light to import, its names in order and documented, its README true."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mmcache

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mmcache"


def run(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    return done.stdout + done.stderr


def test_importing_loads_nothing_heavy_starts_no_thread_and_changes_nothing() -> None:
    script = """
import os, sys, threading, logging, atexit
before, environment, hooks = set(sys.modules), dict(os.environ), atexit._ncallbacks()
import mmcache
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
heavy = loaded & {"torch", "transformers", "numpy", "PIL", "torchvision", "xxhash", "cachetools", "rich", "asyncio"}
assert not heavy, heavy
assert threading.active_count() == 1
assert dict(os.environ) == environment
assert atexit._ncallbacks() <= hooks + 1, "only logging's own"
assert [type(h).__name__ for h in logging.getLogger("mmcache").handlers] == ["NullHandler"]
assert logging.getLogger("mmcache").level == logging.NOTSET
assert logging.getLogger().handlers == []
print("fine")
"""
    assert run(script) == "fine\n"


def test_the_public_names_are_sorted_exist_and_are_all_there_is() -> None:
    assert sorted(mmcache.__all__) == sorted(set(mmcache.__all__))
    for name in mmcache.__all__:
        assert getattr(mmcache, name) is not None
    assert dir(mmcache) == sorted(mmcache.__all__)
    with pytest.raises(AttributeError, match="no attribute 'bench'"):
        mmcache.bench  # noqa: B018


@pytest.mark.parametrize("name", mmcache.__all__)
def test_every_public_name_and_method_is_documented(name: str) -> None:
    public: Any = getattr(mmcache, name)
    assert inspect.getdoc(public), name
    if inspect.isclass(public):
        for member, value in vars(public).items():
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{member}"


def test_fingerprint_is_a_function_whatever_was_imported_before() -> None:
    script = "import mmcache.fingerprints, mmcache.cache, mmcache; print(callable(mmcache.fingerprint))"
    assert run(script) == "True\n"


def test_verify_and_geometry_are_functions_whatever_was_imported_before() -> None:
    script = "import mmcache; mmcache.Report, mmcache.geometry; import mmcache.layout.geometry, mmcache.cli.verify; "
    script += "print(callable(mmcache.verify), callable(mmcache.geometry))"
    assert run(script) == "True True\n"


def test_every_error_is_the_built_in_that_a_caller_would_catch() -> None:
    expected = {
        "BadArgument": ValueError, "NotEncodable": TypeError, "UnsupportedSource": TypeError, "InUse": RuntimeError,
        "NotIdentifiable": TypeError, "NotJoinable": ValueError, "MissingExtra": ImportError, "ItemGone": LookupError,
        "SourceChanged": RuntimeError,
    }  # fmt: skip
    leaves = {name for name in mmcache.__all__ if inspect.isclass(getattr(mmcache, name))}
    errors = {name for name in leaves if issubclass(getattr(mmcache, name), mmcache.MMCacheError)} - {"MMCacheError"}
    assert errors == set(expected)
    for name, built_in in expected.items():
        assert issubclass(getattr(mmcache, name), built_in)


def test_no_code_is_made_from_data_anywhere_in_the_package() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert not re.search(r"\b(pickle|marshal|shelve|dill)\b|\beval\(|\bexec\(|yaml\.load", path.read_text()), path


def test_no_class_of_transformers_is_named_in_the_package() -> None:
    """What is served is decided by the trial, not by a table. The demo, which is about one, stands apart."""
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name != "cli":
            code = re.sub(r'"""[\s\S]*?"""|#.*', "", path.read_text())
            assert not re.search(r"\b(Qwen|CLIP|Siglip|Idefics|LlavaN|Gemma)\w*", code), path


def test_the_ten_lines_of_the_readme_run_and_say_what_they_did() -> None:
    text = (ROOT / "README.md").read_text()
    block = re.search(r"## Ten lines that run\n\n```python\n([\s\S]*?)```", text)
    assert block is not None
    output = run(block[1])
    assert "3 images, hit 66.7%" in output
    assert "bypassed 0" in output


def test_the_readme_names_every_variable_of_the_environment() -> None:
    code = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    named = set(re.findall(r"MMCACHE_[A-Z_]+[A-Z]", code)) - {"MMCACHE_TIERS"}
    text = (ROOT / "README.md").read_text()
    assert named
    for name in named:
        assert name in text, name


def test_the_readme_links_to_files_that_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target


def test_doctests_of_the_public_names_run() -> None:
    import doctest

    import mmcache.cache
    import mmcache.fingerprints.encoding
    import mmcache.functions
    import mmcache.lengths
    import mmcache.wrapping

    for module in (mmcache.cache, mmcache.functions, mmcache.lengths, mmcache.wrapping, mmcache.fingerprints.encoding):
        result = doctest.testmod(module)
        assert result.failed == 0
        assert result.attempted > 0
