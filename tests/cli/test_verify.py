"""``mmcache verify``: a class or a folder, as text or JSON, and a status that a script can trust."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

import mmcache
from mmcache.cli import main

CLIP = "CLIPImageProcessorPil"


def test_an_exact_class_has_status_0_and_its_verdict_stands_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", CLIP, "--batches", "3", "--seed", "4"]) == 0
    written = capsys.readouterr().out
    assert written.startswith("Exact")
    assert f"{CLIP}: 3 batches" in written


def test_a_folder_that_a_processor_was_saved_in_is_loaded_with_its_numbers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers.CLIPImageProcessorPil(size={"shortest_edge": 40}, crop_size=40).save_pretrained(tmp_path)
    seen: list[Any] = []
    verify = mmcache.verify

    def noting(processor: Any, images: Any, **options: Any) -> Any:
        seen.append((processor, images, options))
        return verify(processor, images, **options)

    monkeypatch.setattr(mmcache, "verify", noting)
    assert main(["verify", str(tmp_path), "--images", str(photographs), "--batches", "2", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["ok"] is True
    assert figures["batches"] == 2
    ((processor, images, options),) = seen
    assert processor.crop_size["height"] == 40
    assert len(images) == 3
    assert options == {"batches": 2, "seed": 0}


def test_a_folder_with_a_whole_processor_is_loaded_as_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_qwen2_vl: Any, photographs: Path
) -> None:
    tiny_qwen2_vl[0].save_pretrained(tmp_path)
    assert main(["verify", str(tmp_path), "--images", str(photographs), "--batches", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["processor"] == "Qwen2VLProcessor"


def test_a_difference_has_status_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = mmcache.Report(
        CLIP, 1, 1, {}, "pixels", {"one": 1}, {}, 0.1, 0.1, 0.1, 0, "batch 1: bits differ", "mmcache.verify(…)"
    )
    monkeypatch.setattr(mmcache, "verify", lambda *_, **__: found)
    assert main(["verify", CLIP]) == 1
    assert capsys.readouterr().out.startswith("NOT EXACT")


@pytest.mark.parametrize("name", ["NoSuchProcessor", "CLIPModel", "__name__", "no/such/folder"])
def test_what_is_no_processor_has_status_2_and_says_so(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["verify", name]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("mmcache verify: ")
    assert name in written.err


def test_a_folder_without_a_processor_has_status_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["verify", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--batches", "0"], ["--images", "/no/such"], ["--seed", "x"], []])
def test_wrong_usage_has_status_2(capsys: pytest.CaptureFixture[str], wrong: list[str]) -> None:
    assert main(["verify", *([CLIP] if wrong else []), *wrong]) == 2
    assert "usage" in capsys.readouterr().err
