"""173 real picture files, some of which are meant to hurt: they are read in processes of their own."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.corpus

Results = dict[str, dict[str, Any]]


def read_all(corpus: Path, *, seed: str, threads: int) -> Results:
    done = subprocess.run(
        [sys.executable, "-m", "tests.corpus.read_all", str(corpus / "files"), str(threads)],
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results: Results = json.loads(done.stdout)
    return results


@pytest.fixture(scope="module")
def results(corpus: Path) -> Results:
    return read_all(corpus, seed="0", threads=1)


@pytest.fixture(scope="module")
def manifest(corpus: Path) -> list[dict[str, str]]:
    with open(corpus / "manifest.csv", newline="") as file:
        return list(csv.DictReader(file))


def is_fingerprint(outcome: str) -> bool:
    return outcome.startswith("sha256:")


def test_all_files_are_read(results: Results, manifest: list[dict[str, str]]) -> None:
    assert len(manifest) == 173
    assert set(results) == {row["file"] for row in manifest}


def test_threads_processes_and_hash_seeds_do_not_show(results: Results, corpus: Path) -> None:
    in_threads = read_all(corpus, seed="1", threads=4)
    assert list(in_threads) == list(results)
    for name, held in in_threads.items():
        # Other threads open and close files at the same time, so only a single thread can count them.
        assert held | {"left open": 0} == results[name] | {"left open": 0}, name


def test_path_bytes_and_bytesio_of_a_file_agree(results: Results) -> None:
    assert [
        name
        for name, held in results.items()
        if is_fingerprint(held["path"]) and not held["path"] == held["str"] == held["bytes"] == held["BytesIO"]
    ] == []


def test_an_opened_image_is_another_source_than_its_file(results: Results) -> None:
    assert [
        name for name, held in results.items() if is_fingerprint(held["path"]) and held["path"] in held["image"]
    ] == []


def test_what_decodes_is_what_the_manifest_says(results: Results, manifest: list[dict[str, str]]) -> None:
    wrong = {}
    for row in manifest:
        first, second = results[row["file"]]["image"]
        if row["decodes"] == "ok":
            fits = is_fingerprint(first) and first == second
        elif row["decodes"].startswith("open"):
            fits = second == row["decodes"]
        else:
            # Also where Pillow's own second load "succeeds silently" with a part of the picture.
            fits = first == second and first.startswith(row["decodes"].removeprefix("load: ") + ":")
        if not fits:
            wrong[row["file"]] = (row["decodes"], first, second)
    assert wrong == {}


def test_what_does_not_decode_gives_the_error_that_pillow_gives(results: Results) -> None:
    wrong = {}
    for name, held in results.items():
        for ours, plain in (("path", "plain path"), ("str", "plain path"), ("BytesIO", "plain bytes")):
            expected = held[plain]
            if is_fingerprint(held[ours]) != (expected == "decodes") or not (
                is_fingerprint(held[ours]) or held[ours] == expected
            ):
                wrong[name, ours] = held[ours], expected
        if not is_fingerprint(held["image"][0]) and held["image"][0] != held["plain image"]:
            wrong[name, "image"] = held["image"][0], held["plain image"]
    assert wrong == {}


def test_no_file_is_left_open(results: Results) -> None:
    assert {name: held["left open"] for name, held in results.items() if held["left open"]} == {}


def test_pictures_of_equal_pixels_have_equal_fingerprints_and_others_have_not(
    results: Results, manifest: list[dict[str, str]]
) -> None:
    """Against the manifest's own digest of the decoded pixels, made by another program."""
    by_fingerprint: dict[str, set[tuple[str, str, str, str]]] = {}
    for row in manifest:
        outcome = results[row["file"]]["image"][0]
        if is_fingerprint(outcome):
            facts = row["pixel_sha256"], row["mode"], row["width"], row["height"]
            by_fingerprint.setdefault(outcome, set()).add(facts)
    assert {outcome: facts for outcome, facts in by_fingerprint.items() if len(facts) > 1} == {}
