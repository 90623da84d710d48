"""``mmcache bench``: its engine, its rows, its table, JSON and plot, and that it can fail. Nothing here looks at times."""

import gc
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import mmcache
from mmcache.cli import bench_curves, main
from mmcache.cli.bench_engine import (
    BYTES_MORE,
    MICROSECONDS_MORE,
    PER_CENT_MORE,
    TIMES_AS_FAST,
    TIMES_THE_COST,
    Effort,
    Failed,
    LeftOut,
    Pair,
    Result,
    Row,
    Unit,
    Workbench,
    measure,
    read,
    repeated,
    tensors_of,
    torch_threads,
)
from mmcache.cli.bench_machine import machine
from mmcache.cli.bench_pictures import Changing, decoded, distinct, encoded, photograph
from mmcache.cli.bench_report import as_table
from mmcache.cli.bench_rows import ROWS

TINY = Effort("tiny", seconds=0, least_rounds=1, most_rounds=1, threads=(1,), one_pass=50, small_items=300)

Bench = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture(autouse=True)
def _hardly_any_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmcache.cli.bench.QUICK", TINY)
    # On a busy machine too, a trial ends before a call goes on without it.
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Bench:
    """Run the command with ``--quick --json``; return its status, its figures and what it wrote on stderr."""

    def run(*arguments: object) -> tuple[int, dict[str, Any], str]:
        status = main(["bench", "--quick", "--json", *map(str, arguments)])
        written = capsys.readouterr()
        return status, json.loads(written.out), written.err

    return run


def _costs(*costs: float) -> Callable[[], float]:
    return iter(costs).__next__


def _row(
    make: Callable[[Workbench], Pair], unit: Unit = TIMES_THE_COST, target: float | None = None, name: str = "a row"
) -> Row:
    return Row("a section", name, "something", make, unit, target)


def _raising(error: Exception) -> Callable[[Workbench], Pair]:
    def make(_: Workbench) -> Pair:
        raise error

    return make


def _result(unit: Unit, target: float | None, ours: list[float], other: list[float], threads: int = 1) -> Result:
    return Result(_row(lambda _: Pair(float, float), unit, target), threads, ours, other)


# The engine.


def test_pairs_are_taken_in_turn_with_what_is_compared_with_first() -> None:
    taken: list[str] = []

    def cost(name: str) -> Callable[[], float]:
        return lambda: taken.append(name) or 1.0  # type: ignore[func-returns-value]

    result = measure(_row(lambda _: Pair(cost("ours"), cost("other"), rounds=3)), TINY, 1)
    assert taken == ["other", "ours"] * 3
    assert (result.ours, result.other) == ([1.0] * 3, [1.0] * 3)


def test_what_counts_are_the_ratios_of_pairs_and_not_those_of_medians() -> None:
    result = measure(_row(lambda _: Pair(_costs(1, 20, 30), _costs(1, 10, 100), rounds=3)), TINY, 1)
    assert result.values == [1, 2, 0.3]
    assert result.median == 1  # the ratio of the medians is 2
    assert result.quartiles == pytest.approx((0.65, 1.5))


def test_a_single_round_has_quartiles_too() -> None:
    assert _result(TIMES_THE_COST, None, [3], [2]).quartiles == (1.5, 1.5)


@pytest.mark.parametrize(
    ("unit", "value"),
    [
        (TIMES_THE_COST, 0.5),
        (TIMES_AS_FAST, 2),
        (PER_CENT_MORE, -50),
        (MICROSECONDS_MORE, -2e6),
        (BYTES_MORE, -2),
    ],
)
def test_units_make_one_number_of_two_costs(unit: Unit, value: float) -> None:
    assert _result(unit, None, [2], [4]).median == pytest.approx(value)


@pytest.mark.parametrize(
    ("unit", "target", "met"),
    [(TIMES_THE_COST, 0.5, True), (TIMES_THE_COST, 0.4, False), (TIMES_AS_FAST, 2, True), (TIMES_AS_FAST, 2.1, False)],
)
def test_a_target_is_the_most_or_where_more_is_better_the_least(unit: Unit, target: float, met: bool) -> None:
    assert _result(unit, target, [2], [4]).met is met


def test_only_one_torch_thread_has_targets_and_only_rows_with_a_target() -> None:
    assert _result(TIMES_THE_COST, 2, [1], [1], threads=2).met is None
    assert _result(TIMES_THE_COST, None, [1], [1]).met is None


def test_rounds_go_on_within_their_limits() -> None:
    assert len(repeated([lambda: 1.0], Effort("", 0, 4, 9, (1,), 1, 1))[0]) == 4
    assert len(repeated([lambda: 1.0], Effort("", 1e9, 4, 9, (1,), 1, 1))[0]) == 9
    assert len(repeated([lambda: 1.0], Effort("", 1e9, 4, 9, (1,), 1, 1), rounds=2)[0]) == 2


def test_nothing_is_collected_while_costs_are_taken_and_the_collector_is_put_back() -> None:
    assert repeated([lambda: float(gc.isenabled())], TINY) == [[0.0]]
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        repeated([lambda: 1 / 0], TINY)
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("error", "left_out", "failed"),
    [
        (LeftOut("no such package"), "no such package", ""),
        (Failed("an output differs"), "", "an output differs"),
        (ZeroDivisionError("a processor's own"), "", "ZeroDivisionError: a processor's own"),
    ],
)
def test_a_row_without_figures_says_why(error: Exception, left_out: str, failed: str) -> None:
    result = measure(_row(_raising(error)), TINY, 1)
    assert (result.ours, result.left_out, result.failed) == ([], left_out, failed)


def test_a_row_runs_with_its_threads_and_leaves_torchs_as_they_were() -> None:
    def threads() -> float:
        return torch.get_num_threads()

    with torch_threads(1):
        result = measure(_row(lambda _: Pair(threads, threads)), TINY, 2)
        assert result.ours == [2.0]
        assert torch.get_num_threads() == 1


def test_what_comes_before_a_pair_comes_before_both_of_its_members() -> None:
    taken: list[str] = []
    with Workbench(TINY) as workbench:
        pair = workbench.in_turn(
            lambda: taken.append("ours"), lambda: taken.append("other"), before=lambda: taken.append("before")
        )
        taken.clear()
        pair.other()
        pair.ours()
    assert taken == ["before", "other", "ours"]


def test_runs_that_should_be_alike_and_are_not_have_no_figure() -> None:
    def make(workbench: Workbench) -> Pair:
        return workbench.in_turn(lambda: torch.tensor([0.0]), lambda: torch.tensor([-0.0]))

    assert measure(_row(make), TINY, 1).failed.startswith("an output differs: output: ")


def _mean_of(image: Image.Image) -> list[int]:
    return list(image.resize((1, 1)).tobytes())


def _cached_row(workbench: Workbench) -> Pair:
    mean, image = mmcache.cached(cache=workbench.cache())(_mean_of), photograph((32, 32))
    return workbench.in_turn(lambda: mean(image), lambda: _mean_of(image))


def test_a_row_says_how_many_look_ups_were_hits_and_closes_its_caches() -> None:
    caches: list[mmcache.Cache] = []

    def make(workbench: Workbench) -> Pair:
        pair = _cached_row(workbench)
        caches.extend(workbench._caches)
        return pair

    assert measure(_row(make), TINY, 1).hit_rate == 1
    assert [cache.closed for cache in caches] == [True]
    assert caches[0].cache_info().hits >= 1


def test_a_cache_that_does_not_serve_leaves_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMCACHE_DISABLED", "1")
    result = measure(_row(_cached_row), TINY, 1)
    assert (result.ours, result.failed) == ([], "not served by the cache: the cache is disabled")


def test_outputs_are_read_whatever_they_are() -> None:
    tensors = [torch.ones(3, dtype=torch.bfloat16), torch.ones(0), torch.ones(2, 3).t(), torch.tensor(True)]
    output = {"a": tensors[:2], "b": (tensors[2], {"c": tensors[3]}), "d": "text", "e": None}
    assert [id(tensor) for tensor in tensors_of(output)] == [id(tensor) for tensor in tensors]
    read(output)


# The pictures.


def test_pictures_are_distinct_the_same_each_time_and_decode_to_their_size() -> None:
    pictures = [distinct((64, 48), number) for number in range(40)]
    assert len({picture.tobytes() for picture in pictures}) == 40
    assert {picture.size for picture in pictures} == {(64, 48)}
    assert distinct((64, 48), 7).tobytes() == pictures[7].tobytes()
    for form in ("JPEG", "PNG"):
        assert decoded(encoded(pictures[0], form)).size == (64, 48)


def test_a_changing_picture_is_never_what_it_was() -> None:
    original = photograph((32, 32))
    before = original.tobytes()
    picture, seen = Changing(original), set()
    for _ in range(300):
        picture.change()
        seen.add(picture.image.tobytes())
    assert len(seen) == 300
    assert original.tobytes() == before


# The command.


def test_every_row_has_a_figure_or_a_reason_and_the_json_says_all(bench: Bench) -> None:
    status, figures, complaints = bench()
    assert (status, figures["failed"]) == (0, []), complaints
    told = [(row["section"], row["name"], row["against"]) for row in figures["rows"] + figures["left_out"]]
    assert sorted(told) == sorted((row.section, row.name, row.against) for row in ROWS)
    assert len(set(told)) == len(told)
    allowed = ("vLLM is not installed", "qwen_vl_utils", "there is one core only", "this system")
    assert all(row["reason"].startswith(allowed) or "loader of qwen" in row["reason"] for row in figures["left_out"])
    for row in figures["rows"]:
        low, high = row["quartiles"]
        assert low <= row["median"] <= high
        assert row["torch_threads"] == 1
        assert (row["met"] is None) == (row["target"] is None)
        assert row["rounds"] >= 1
    machine = figures["machine"]
    assert machine["versions"]["mmcache"] == mmcache.__version__
    assert machine["cpu"]
    assert figures["curves"] == {}
    _assert_hit_rates(figures["rows"])


def _assert_hit_rates(rows: list[dict[str, Any]]) -> None:
    """A row called hit that measured misses would be a lie, and the other way round."""
    rates = {(row["name"], row["against"]): row["hit_rate"] for row in rows}
    for (name, _), rate in rates.items():
        if name.startswith("hit") or "all hits" in name:
            assert rate == 1, name
        if name.startswith(("miss", "one pass", "every picture once")):
            assert rate == 0, name
    assert rates["batch of 8, 1024x768, half missing", "plain"] == 0.5
    assert rates["5 questions about each picture", "plain"] == pytest.approx(0.8)
    assert rates["8 rollouts of each prompt", "plain"] == pytest.approx(7 / 8)


@pytest.fixture
def _two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    good = _row(lambda _: Pair(_costs(1.5), _costs(1.0), rounds=1), target=2, name="good")
    bad = _row(lambda _: Pair(_costs(2.5), _costs(1.0), rounds=1), target=2, name="bad")
    absent = _row(_raising(LeftOut("no such engine")), name="absent")
    monkeypatch.setattr("mmcache.cli.bench.ROWS", (good, bad, absent))


@pytest.mark.usefixtures("_two_rows")
def test_the_table_shows_figures_targets_reasons_and_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--quick"]) == 0
    written = capsys.readouterr()
    lines = {line.split("  ")[0]: " ".join(line.split()) for line in written.out.splitlines()}
    assert lines["good"] == "good something 1 1500 ms 1000 ms 1.50x 1.50 to 1.50 <= 2 met"
    assert lines["bad"].endswith("<= 2 missed")
    assert "1 of 2 targets are met" in written.out
    assert "left out: absent: no such engine" in written.out
    assert f"mmcache {mmcache.__version__}, python " in written.out
    assert "…" not in written.out
    assert written.err == ""


def test_what_is_slower_is_called_so_and_every_name_has_room() -> None:
    results = [_result(TIMES_AS_FAST, None, [ours], [1.0]) for ours in (0.1001, 0.25, 2.0)]
    text = as_table(machine(), TINY, results)
    assert [word in text for word in ("9.99x faster", "4.00x faster", "2.00x slower")] == [True] * 3
    assert "…" not in text
    assert all(len(row.name) <= 36 and len(row.against) <= 21 for row in ROWS)


@pytest.mark.usefixtures("_two_rows")
def test_a_missed_target_is_no_failure_and_a_wrong_output_is(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, figures, complaints = bench()
    assert (status, [row["met"] for row in figures["rows"]], complaints) == (0, [True, False], "")
    assert [row["reason"] for row in figures["left_out"]] == ["no such engine"]
    wrong = _row(_raising(Failed("an output differs")), name="wrong")
    monkeypatch.setattr("mmcache.cli.bench.ROWS", (wrong,))
    status, figures, complaints = bench()
    assert (status, figures["rows"], complaints) == (1, [], "mmcache bench: wrong: an output differs\n")
    assert main(["bench", "--quick"]) == 1
    assert "failed: wrong (against something): an output differs" in capsys.readouterr().out


@pytest.mark.usefixtures("_two_rows")
def test_without_quick_rows_run_with_the_threads_that_they_ask_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    both = Row("s", "both", "it", lambda _: Pair(_costs(1), _costs(1), rounds=1), TIMES_THE_COST, None, (1, 2))
    monkeypatch.setattr("mmcache.cli.bench.ROWS", (both,))
    monkeypatch.setattr("mmcache.cli.bench.FULL", Effort("full", 0, 1, 1, (1, 2), 1, 1))
    assert main(["bench", "--json"]) == 0
    assert [row["torch_threads"] for row in json.loads(capsys.readouterr().out)["rows"]] == [1, 2]
    assert main(["bench", "--json", "--quick"]) == 0
    assert [row["torch_threads"] for row in json.loads(capsys.readouterr().out)["rows"]] == [1]


@pytest.mark.usefixtures("_two_rows")
def test_only_chooses_rows_by_a_part_of_their_text(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["name"] for row in bench("--only", "GOOD")[1]["rows"]] == ["good"]
    assert main(["bench", "--only", "no such row"]) == 1
    assert "--only='no such row'" in capsys.readouterr().err


@pytest.mark.usefixtures("_two_rows")
def test_the_plot_is_a_picture_and_its_curves_are_in_the_json(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(bench_curves, "_SIZES", ((64, 48), (96, 64)))
    monkeypatch.setattr(bench_curves, "_BATCH_SIZE", (64, 48))
    status, figures, _ = bench("--plot", tmp_path / "bench.png")
    assert status == 0
    with Image.open(tmp_path / "bench.png") as drawn:
        assert drawn.format == "PNG"
        assert drawn.width > 600
    by_size, by_rate = figures["curves"]["cost_by_size"], figures["curves"]["throughput_by_hit_rate"]
    assert by_size["at"] == [64 * 48 / 1e6, 96 * 64 / 1e6]
    assert {name: len(line) for name, line in by_size["lines"].items()} == dict.fromkeys(
        ("plain", "decode", "hit", "floor"), 2
    )
    assert by_rate["at"] == [0, 0.25, 0.5, 0.75, 1]
    assert {name: len(line) for name, line in by_rate["lines"].items()} == {"plain": 5, "mmcache": 5}


@pytest.mark.parametrize(
    ("module", "package", "arguments"),
    [("rich", "rich", ()), ("skimage", "scikit-image", ()), ("matplotlib", "matplotlib", ("--plot", "bench.png"))],
)
def test_a_missing_package_is_status_1_and_names_the_extra(
    module: str, package: str, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else find(name))
    assert main(["bench", *arguments]) == 1
    assert f"needs the package {package}: pip install 'mmcache[bench]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_plot_that_cannot_be_written_fails_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: find("json" if name == "matplotlib" else name))
    monkeypatch.setattr("mmcache.cli.bench.measure", lambda *_: pytest.fail("the work has begun"))
    assert main(["bench", "--plot", str(tmp_path / "no such folder" / "bench.png")]) == 1
    assert "No such file or directory" in capsys.readouterr().err


@pytest.mark.usefixtures("_two_rows")
def test_a_progress_bar_is_shown_on_a_terminal_and_leaves_the_json_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    status, figures, shown = bench()
    assert (status, len(figures["rows"])) == (0, 2)
    assert "absent" in shown
    assert "%" in shown
