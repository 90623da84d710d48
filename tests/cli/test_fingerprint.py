"""``mmcache fingerprint``: a line per file, of what is in it."""

import hashlib
import os
import re
from pathlib import Path

import pytest
from PIL import Image

import mmcache
from mmcache.cli import main


@pytest.fixture
def picture(tmp_path: Path, photographs: Path) -> Path:
    with Image.open(photographs / "a.png") as opened:
        opened.save(tmp_path / "picture.png")
    return tmp_path / "picture.png"


def test_each_file_gets_the_public_fingerprint_in_the_form_of_sha256sum(
    photographs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(photographs / name) for name in ("b.jpg", "a.png", "below/c.png")]
    assert main(["fingerprint", *files]) == 0
    written = capsys.readouterr()
    assert written.out == "".join(f"{mmcache.fingerprint(file)}  {file}\n" for file in files)
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}  \S+", line) for line in written.out.splitlines())
    assert len({line.split()[0] for line in written.out.splitlines()}) == 3
    assert written.err == ""


def test_equal_pictures_in_other_bytes_have_equal_fingerprints(
    picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = picture.with_name("copy.bmp")
    with Image.open(picture) as opened:
        opened.save(copy)
    assert hashlib.sha256(copy.read_bytes()).digest() != hashlib.sha256(picture.read_bytes()).digest()
    assert main(["fingerprint", str(picture), str(copy)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[0] == second.split()[0]


def test_a_broken_file_is_reported_the_others_go_on_and_the_status_is_1(
    picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = picture.with_name("cut.png")
    cut.write_bytes(picture.read_bytes()[:-2000])
    text = picture.with_name("notes.txt")
    text.write_text("no picture")
    missing, folder = picture.with_name("missing.png"), picture.parent
    files = [str(file) for file in (cut, text, missing, folder, picture)]
    assert main(["fingerprint", *files]) == 1
    written = capsys.readouterr()
    assert written.out == f"{mmcache.fingerprint(str(picture))}  {picture}\n"
    of_cut, of_text, of_missing, of_folder = written.err.splitlines()
    assert of_cut.startswith(f"mmcache fingerprint: {cut}: ")
    with pytest.raises(OSError, match="truncated") as loader, Image.open(cut) as opened:
        opened.load()
    assert str(loader.value) in of_cut
    assert f"cannot identify image file '{text}'" in of_text
    assert of_missing == f"mmcache fingerprint: {missing}: No such file or directory"
    assert of_folder == f"mmcache fingerprint: {folder}: Is a directory"


@pytest.mark.parametrize("name", ["two\nlines.png", os.fsdecode(b"not-\xff-text.png")])
def test_a_strange_file_name_stays_on_one_line_that_can_be_written(
    name: str, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strange = picture.with_name(name)
    picture.rename(strange)
    assert main(["fingerprint", str(strange)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line == f"{mmcache.fingerprint(str(strange))}  {str(strange)!a}"
