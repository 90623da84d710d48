"""``mmcache bench``: what mmcache costs and saves on this machine, every figure a ratio measured in one run.

No network and no GPU: real image processors, and photographs that scikit-image carries. The exit status is 1 if an
output differed from what it was compared with, or if the cache did not serve; a target that is missed is only said.
"""

import argparse
import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mmcache.cli.bench_curves import Curve, cost_by_size, throughput_by_hit_rate
from mmcache.cli.bench_engine import FULL, QUICK, Effort, Result, Row, measure
from mmcache.cli.bench_machine import in_words, machine
from mmcache.cli.bench_report import as_json, as_table
from mmcache.cli.bench_rows import ROWS
from mmcache.errors import BadArgument, MissingExtra


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("--quick", action="store_true", help="under a minute: few rounds, one torch thread")
    parser.add_argument("--only", metavar="TEXT", default="", help="only the rows that have this text in them")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw cost by image size and throughput by hit rate")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Measure the rows and print them; return 1 if one of them failed, else 0.

    Raises:
        MissingExtra: a package of the extra ``bench`` is not installed.
        BadArgument: no row has the text in it.
    """
    _require("rich", "scikit-image", *(["matplotlib"] if arguments.plot else []))
    effort, rows = QUICK if arguments.quick else FULL, _chosen(arguments.only)
    if arguments.plot:
        arguments.plot.touch()  # what cannot be written should fail now, not after the work
    facts = machine()
    results = _measured(rows, effort)
    curves: dict[str, Curve] = {}
    if arguments.plot:
        from mmcache.cli.bench_plot import draw

        by_size, by_hit_rate = cost_by_size(effort), throughput_by_hit_rate(effort)
        draw(by_size, by_hit_rate, in_words(facts)[0], arguments.plot)
        curves = {"cost_by_size": by_size, "throughput_by_hit_rate": by_hit_rate}
    print(as_json(facts, effort, results, curves) if arguments.json else as_table(facts, effort, results), end="")
    failed = [result for result in results if result.failed]
    for result in failed:
        print(f"mmcache bench: {result.row.name}: {result.failed}", file=sys.stderr)
    return 1 if failed else 0


def _chosen(text: str) -> list[Row]:
    rows = [row for row in ROWS if text.casefold() in f"{row.section} {row.name} {row.against}".casefold()]
    if not rows:
        raise BadArgument("--only", text, "a part of the section, the name or the other side of a row")
    return rows


def _measured(rows: Sequence[Row], effort: Effort) -> list[Result]:
    todo = [(row, threads) for row in rows for threads in row.threads if threads in effort.threads]
    with _progress(len(todo)) as begin:
        results = []
        for row, threads in todo:
            begin(row.name)
            results.append(measure(row, effort, threads))
    return results


_MODULES = {"scikit-image": "skimage"}


def _require(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(_MODULES.get(package, package)) is None:
            raise MissingExtra(package, "bench", "mmcache bench" + (" --plot" if package == "matplotlib" else ""))


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on stderr, where that is a terminal; yield what names the row that begins."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("", total=total)
        begun = iter(range(total))
        yield lambda name: progress.update(task, completed=next(begun), description=name)
