"""``mmcache demo``: its figures, its comparison, its trace, and that it can fail."""

import importlib.util
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import mmcache
from mmcache.cli import main

Demo = Callable[..., tuple[int, dict[str, Any], str]]


def test_plain_runs_the_processor_twice_per_request_and_mmcache_once_per_image(
    demo: Demo, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Counted apart from the demo's own counter, one step below the method that it counts.
    inner, batches = transformers.Qwen2VLImageProcessor._preprocess, []

    def counted(self: Any, images: Any, *args: Any, **options: Any) -> Any:
        batches.append(len(images))
        return inner(self, images, *args, **options)

    counted.__mmcache_original__ = inner  # type: ignore[attr-defined]  # else the counter is a part of the keys
    monkeypatch.setattr(transformers.Qwen2VLImageProcessor, "_preprocess", counted)
    status, figures, complaints = demo("--images", photographs, "--turns", 4)
    assert (status, complaints) == (0, "")
    assert (figures["images"], figures["turns"], figures["torch_threads"]) == (3, 4, 1)
    plain, cached = figures["plain"], figures["mmcache"]
    assert (plain["real_runs"], plain["real_runs_per_image"]) == (3 * 4 * 2, 8)
    assert (cached["real_runs"], cached["real_runs_per_image"]) == (3, 1)
    warm_up = 1
    assert len(batches) == warm_up + plain["real_runs"] + cached["real_runs"] + cached["trial_runs"]


def test_every_tensor_of_every_request_and_turn_is_compared(demo: Demo, photographs: Path) -> None:
    _, figures, _ = demo("--images", photographs, "--turns", 2)
    tensors_per_request = 2  # pixel_values and image_grid_thw
    assert figures["tensors_compared"] == 3 * 2 * tensors_per_request
    assert (figures["differ"], figures["differences"]) == (0, [])


def test_figures_of_the_cache_agree_with_each_other_and_with_its_log(demo: Demo, photographs: Path) -> None:
    _, figures, _ = demo("--images", photographs, "--turns", 2, "--max-bytes", "64MiB")
    cached = figures["mmcache"]
    looked_up = 3 * 2 * 2
    assert cached["hit_rate"] == pytest.approx((looked_up - 3) / looked_up)
    assert cached["bypassed"] == 0
    assert cached["max_bytes"] == 64 * 1024**2
    assert 0 < cached["bytes_kept"] < cached["max_bytes"]
    (line,) = figures["log"]
    assert line.startswith("mmcache[demo] ")
    assert f"{looked_up} images, hit 75.0% (lifetime 75.0%), coalesced 0, bypassed 0, evicted 0, 3 items" in line
    seconds = [cached[f"{stage}_seconds"] for stage in ("trial", "add", "execute")]
    assert cached["total_seconds"] == pytest.approx(sum(seconds))
    assert figures["speedup"] == pytest.approx(figures["plain"]["total_seconds"] / cached["total_seconds"])


def test_outputs_stay_exact_where_hardly_anything_fits_into_the_cache(demo: Demo, photographs: Path) -> None:
    status, figures, _ = demo("--images", photographs, "--turns", 2, "--max-bytes", "1kB")
    assert (status, figures["differ"]) == (0, 0)
    assert figures["mmcache"]["real_runs"] > 3
    assert figures["mmcache"]["bytes_kept"] <= 1000


def test_a_disabled_cache_is_reported_as_it_is(demo: Demo, photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMCACHE_DISABLED", "1")
    status, figures, _ = demo("--images", photographs, "--turns", 1)
    assert (status, figures["differ"]) == (0, 0)
    assert figures["mmcache"]["hit_rate"] == 0
    assert figures["mmcache"]["real_runs"] == 3 * 2
    assert figures["mmcache"]["bypassed"] == 3 * 2
    assert any("the cache is disabled" in line for line in figures["log"])


def test_the_other_backend_gives_other_bits_and_is_as_exact(demo: Demo, photographs: Path) -> None:
    for backend in ("torchvision", "pil"):
        status, figures, _ = demo("--images", photographs, "--turns", 1, "--backend", backend)
        assert (status, figures["backend"], figures["differ"]) == (0, backend, 0)
        assert figures["mmcache"]["real_runs_per_image"] == 1


def test_one_flipped_bit_is_found_named_and_status_1(
    demo: Demo, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute, calls = mmcache.Stages.execute, []

    def corrupted(self: mmcache.Stages, tickets: Any, **options: Any) -> Any:
        output = execute(self, tickets, **options)
        calls.append(tickets)
        if len(calls) == 5:  # the second request of the second turn
            output["pixel_values"].view(torch.int32)[-1, -1] ^= 1
        return output

    monkeypatch.setattr(mmcache.Stages, "execute", corrupted)
    status, figures, complaints = demo("--images", photographs, "--turns", 2)
    assert (status, figures["tensors_compared"], figures["differ"]) == (1, 12, 1)
    assert figures["differences"][0].startswith("b.jpg, turn 2: pixel_values: ")
    assert complaints == f"mmcache demo: differs: {figures['differences'][0]}\n"


def test_a_wrong_grid_in_the_add_stage_is_found_and_status_1(
    demo: Demo, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = mmcache.Stages.add

    def promising_more(self: mmcache.Stages, image: Any, **options: Any) -> mmcache.Ticket:
        ticket = add(self, image, **options)
        ticket.geometry["image_grid_thw"] = [[9, 9, 9]]
        return ticket

    monkeypatch.setattr(mmcache.Stages, "add", promising_more)
    status, figures, _ = demo("--images", photographs, "--turns", 1)
    assert (status, figures["differ"]) == (1, 3)


def test_the_table_shows_both_ways_the_log_line_and_the_comparison(
    photographs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--images", str(photographs), "--turns", "2"]) == 0
    written = capsys.readouterr()
    rows = {cells[0]: cells[1:] for line in written.out.splitlines() if (cells := _cells(line))}
    assert rows["real processor runs per image"] == ["4", "1"]
    assert rows["hit rate"][1] == "75.0 %"
    assert rows["bytes kept"][1].endswith(" of 1.0 GiB")
    assert "runs on small pictures" in rows["trial, once"][1]
    for stage in ("add stage", "execute stage", "total"):
        assert rows[stage][0].endswith(" s")
        assert "times as" in rows[stage][1]
    assert "3 images, 2 turns, Qwen2-VL (torchvision), one torch thread" in written.out
    log, end = written.out.splitlines()[-2:]
    assert log.startswith("mmcache[demo] ")
    assert end == "12 tensors compared, 0 differ"
    assert written.err == ""


def test_a_progress_bar_is_shown_on_a_terminal_and_leaves_the_json_alone(
    demo: Demo, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    status, figures, shown = demo("--images", photographs, "--turns", 1)
    assert (status, figures["differ"]) == (0, 0)
    assert "requests" in shown
    assert "100%" in shown


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│").split("│")] if line.startswith("│") else []


def test_skipped_files_are_noted_in_table_and_json(
    demo: Demo, photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.png").write_bytes((photographs / "a.png").read_bytes())
    (tmp_path / "notes.txt").write_text("no picture")
    arguments = ("--images", str(tmp_path), "--turns", "1")
    _, figures, _ = demo(*arguments)
    assert figures["images"] == 1
    (note,) = figures["skipped"]
    assert note.startswith(f"skipped {tmp_path / 'notes.txt'}: cannot identify")
    assert main(["demo", *arguments]) == 0
    assert note in capsys.readouterr().out


def test_a_folder_without_pictures_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--images", str(tmp_path)]) == 1
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("mmcache demo: --images=")


def test_a_trace_that_cannot_be_written_fails_before_the_work(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mmcache.cli.demo.follow", lambda *_: pytest.fail("the work has begun"))
    trace = tmp_path / "no such folder" / "trace.json"
    assert main(["demo", "--images", str(photographs), "--profile", str(trace)]) == 1
    assert "No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(("missing", "arguments"), [("rich", ()), ("torchvision", ("--backend", "torchvision"))])
def test_a_missing_package_is_status_1_and_names_the_extra(
    missing: str, arguments: tuple[str, ...], photographs: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    assert main(["demo", "--images", str(photographs), *arguments]) == 1
    assert f"needs the package {missing}: pip install 'mmcache[demo]'" in capsys.readouterr().err


def test_without_torchvision_the_demo_takes_the_other_backend(
    demo: Demo, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torchvision" else find(name))
    status, figures, _ = demo("--images", photographs, "--turns", 1)
    assert (status, figures["backend"]) == (0, "pil")


def test_the_demo_leaves_threads_logger_and_processor_as_they_were(demo: Demo, photographs: Path) -> None:
    def state() -> tuple[object, ...]:
        logger = logging.getLogger("mmcache")
        preprocess = vars(transformers.Qwen2VLImageProcessor).get("preprocess")
        return torch.get_num_threads(), logger.level, list(logger.handlers), preprocess

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        before = state()
        demo("--images", photographs, "--turns", 1)
        assert state() == before
    finally:
        torch.set_num_threads(threads)


def test_as_a_program_it_prints_one_json_object_and_writes_a_trace_with_hits_and_misses(
    photographs: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    command = [sys.executable, "-m", "mmcache", "demo", "--json", "--turns", "2"]
    done = subprocess.run(
        [*command, "--images", photographs, "--profile", trace],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["tensors_compared"], figures["differ"]) == (12, 0)
    assert figures["plain"]["real_runs_per_image"] == 4
    assert figures["log"][-1].startswith("mmcache[demo] ")
    names = [event.get("name") for event in json.loads(trace.read_text())["traceEvents"]]
    # Each of six requests is executed from the cache, the three images are processed once.
    assert names.count("mmcache.hit") == 6
    assert names.count("mmcache.miss") == 3
