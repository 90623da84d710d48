"""The command line as a whole: statuses, one-line errors, and nothing loaded that is not used."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import mmcache
from mmcache.cli import main


def test_version_is_the_packages_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mmcache {mmcache.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "required: COMMAND"),
        (["frobnicate"], "invalid choice: 'frobnicate'"),
        (["demo", "--turns", "0"], "'0' is no number above 0"),
        (["demo", "--turns", "two"], "'two' is no number above 0"),
        (["demo", "--max-bytes", "many"], "--max-bytes='many': expected a number of bytes"),
        (["demo", "--images", "/no/such/folder"], "'/no/such/folder' is no folder"),
        (["demo", "--backend", "numpy"], "invalid choice: 'numpy'"),
        (["demo", "--js"], "unrecognized arguments: --js"),
        (["fingerprint"], "required: FILE"),
        (["info", "extra"], "unrecognized arguments: extra"),
    ],
)
def test_wrong_usage_is_status_2_and_says_what_is_wrong(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert complaint in written.err


@pytest.mark.parametrize("command", ["demo", "fingerprint", "info"])
def test_help_of_a_command_lists_its_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = {"demo": "--profile", "fingerprint": "FILE", "info": "--json"}[command]
    assert main([command, "--help"]) == 0
    assert expected in capsys.readouterr().out


def test_arguments_are_taken_from_the_command_line_if_none_are_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mmcache", "info", "--json"])
    assert main() == 0
    assert '"versions"' in capsys.readouterr().out


def _raiser(error: BaseException) -> Callable[..., int]:
    def run(_: object) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    "error", [mmcache.BadArgument("size", 0, "more"), mmcache.ItemGone("it is gone"), PermissionError(13, "not yours")]
)
def test_expected_errors_are_one_line_and_status_1(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mmcache.cli.info.run", _raiser(error))
    assert main(["info"]) == 1
    assert capsys.readouterr().err == f"mmcache info: {error}\n"


def test_a_bug_is_not_dressed_up_as_an_expected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmcache.cli.info.run", _raiser(ZeroDivisionError("a bug")))
    with pytest.raises(ZeroDivisionError):
        main(["info"])


def test_only_the_command_that_is_used_is_loaded(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), "red").save(tmp_path / "red.png")
    # A file may be called like a command: only the first word is one.
    code = (
        "import sys; from mmcache.cli import main; status = main(['fingerprint', 'red.png', 'demo'])\n"
        "print(status, *sorted({'mmcache.cli.demo', 'mmcache.cli.info', 'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[-1] == "1"
    assert done.stdout.startswith("sha256:")


def test_a_reader_that_leaves_ends_the_command_without_a_traceback(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), "red").save(tmp_path / "red.png")
    command = subprocess.Popen(
        [sys.executable, "-m", "mmcache", "fingerprint", "red.png"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.close()
    with command.stderr as stderr:
        assert stderr.read() == ""
    assert command.wait(timeout=120) == 1
