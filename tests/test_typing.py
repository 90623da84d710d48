"""Type checkers see through the decorator and `wrap`: every marked line is an error to them, and no other line is."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SNIPPETS = sorted(path for path in (ROOT / "tests" / "typing").glob("*.py") if path.name != "__init__.py")


@pytest.fixture
def unmarked(tmp_path: Path) -> Path:
    """A folder with the snippets as they are without their marks."""
    for snippet in SNIPPETS:
        (tmp_path / snippet.name).write_text(re.sub(r"\s*# type: ignore.*", "", snippet.read_text()))
    return tmp_path


def marked(snippet: Path) -> set[int]:
    lines = snippet.read_text().splitlines()
    return {number for number, line in enumerate(lines, start=1) if "# type: ignore" in line}


def in_snippets(name: str) -> list[str]:
    return [sys.executable, "-m", name]


def needs(tool: str) -> None:
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed")


def compared(found: dict[str, set[int]], output: str) -> None:
    for snippet in SNIPPETS:
        assert found.get(snippet.name, set()) == marked(snippet), output
        assert len(marked(snippet)) >= 5


def test_there_are_snippets() -> None:
    assert [snippet.name for snippet in SNIPPETS] == ["decorated.py", "wrapped.py"]


def test_mypy_finds_the_marked_errors_and_no_others(unmarked: Path) -> None:
    needs("mypy")
    files = [str(unmarked / snippet.name) for snippet in SNIPPETS]
    done = subprocess.run(
        [*in_snippets("mypy"), "--strict", "--config-file=", "--no-error-summary", *files],
        cwd=ROOT, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found: dict[str, set[int]] = {}
    for line in done.stdout.splitlines():
        if match := re.match(r"(.+?):(\d+): error: ", line):
            found.setdefault(Path(match[1]).name, set()).add(int(match[2]))
    assert done.stderr == ""
    compared(found, done.stdout)


def test_pyright_finds_the_marked_errors_and_no_others(unmarked: Path) -> None:
    needs("pyright")
    settings = {
        "include": [snippet.name for snippet in SNIPPETS],
        "extraPaths": [str(ROOT)],
        "reportUnusedExpression": "none",
        "reportUnusedCallResult": "none",
    }
    (unmarked / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [*in_snippets("pyright"), "--outputjson", "--pythonpath", sys.executable, "-p", str(unmarked)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright cannot run here: {done.stderr[-300:]}")
    found: dict[str, set[int]] = {}
    for problem in json.loads(done.stdout)["generalDiagnostics"]:
        if problem["severity"] == "error":
            found.setdefault(Path(problem["file"]).name, set()).add(problem["range"]["start"]["line"] + 1)
    compared(found, done.stdout)
