"""What the benchmark found, as a table for people or as JSON."""

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from statistics import median
from typing import Any, Literal

from mmcache.cli.bench_curves import Curve
from mmcache.cli.bench_engine import TIMES_AS_FAST, Effort, Result, Unit
from mmcache.cli.bench_machine import in_words
from mmcache.sizes import format_size

# Wide enough for the table where the output is no terminal.
_WIDTH = 133

# The columns of the table: title, width, and the side on which they are aligned.
_COLUMNS: tuple[tuple[str, int, Literal["left", "right"]], ...] = (
    ("mmcache", 36, "left"),
    ("against", 21, "left"),
    ("thr", 3, "right"),
    ("its cost", 9, "right"),
    ("other's", 9, "right"),
    ("median", 13, "right"),
    ("quartiles", 13, "right"),
    ("hits", 5, "right"),
    ("target", 7, "right"),
    ("", 6, "left"),
)

_MET = {True: "met", False: "missed", None: ""}


def as_json(facts: Mapping[str, Any], effort: Effort, results: Sequence[Result], curves: Mapping[str, Curve]) -> str:
    """Return one JSON object: costs are seconds or bytes, ``median`` and ``quartiles`` are in the row's unit."""
    return (
        json.dumps(
            {
                "machine": facts,
                "effort": dataclasses.asdict(effort),
                "rows": [_figures(result) for result in results if result.ours],
                "left_out": [_reason(result, result.left_out) for result in results if result.left_out],
                "failed": [_reason(result, result.failed) for result in results if result.failed],
                "curves": {name: dataclasses.asdict(curve) for name, curve in curves.items()},
            },
            indent=2,
        )
        + "\n"
    )


def _figures(result: Result) -> dict[str, Any]:
    row = result.row
    return _named(result) | {
        "unit": row.unit.sign.strip(),
        "median": result.median,
        "quartiles": list(result.quartiles),
        "rounds": len(result.ours),
        f"mmcache_{_COSTS[row.unit.cost]}": median(result.ours),
        f"other_{_COSTS[row.unit.cost]}": median(result.other),
        "hit_rate": result.hit_rate,
        "target": row.target,
        "more_is_better": row.unit.more_is_better,
        "met": result.met,
    }


_COSTS = {"s": "seconds", "bytes": "bytes"}


def _named(result: Result) -> dict[str, Any]:
    row = result.row
    return {"section": row.section, "name": row.name, "against": row.against, "torch_threads": result.threads}


def _reason(result: Result, reason: str) -> dict[str, Any]:
    return _named(result) | {"reason": reason}


def as_table(facts: dict[str, Any], effort: Effort, results: Sequence[Result]) -> str:
    """Return a table with a line for each figure, and lines for the machine and for what has no figure."""
    from rich.console import Console

    text = StringIO()
    console = Console(file=text, width=_WIDTH, force_terminal=False, highlight=False)
    console.print(
        f"mmcache bench, {effort.name}: medians of pairs taken in turn, with their quartiles; thr: torch threads"
    )
    for section, members in itertools.groupby(results, key=lambda result: result.row.section):
        measured = [result for result in members if result.ours]
        if measured:
            console.print(_section(section, measured))
    lines = [*text.getvalue().splitlines(), "", *_ends(results), *in_words(facts)]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _section(name: str, results: Sequence[Result]) -> Any:
    from rich.table import Table

    # All tables have the same widths, so that they read as one.
    table = Table(title=f"\n{name}", title_justify="left", title_style="bold", box=None, padding=(0, 1, 0, 0))
    for title, width, justify in _COLUMNS:
        table.add_column(title, width=width, justify=justify, no_wrap=True)
    for result in results:
        table.add_row(*_cells(result))
    return table


def _cells(result: Result) -> Iterator[str]:
    row, unit = result.row, result.row.unit
    low, high = result.quartiles
    yield row.name
    yield row.against
    yield f"{result.threads}"
    yield from (_cost(median(costs), unit) for costs in (result.ours, result.other))
    yield _ratio(result.median, unit)
    yield f"{_number(low)} to {_number(high)}"
    yield "" if result.hit_rate is None else f"{100 * result.hit_rate:.0f} %"
    yield "" if row.target is None else f"{'>=' if unit.more_is_better else '<='} {row.target:g}"
    yield _MET[result.met]


def _ratio(median: float, unit: Unit) -> str:
    if unit is TIMES_AS_FAST and 0 < median < 1:
        return f"{_number(1 / median)}x slower"
    return f"{_number(median)}{unit.sign}"


def _cost(cost: float, unit: Unit) -> str:
    return format_size(cost) if unit.cost == "bytes" else f"{_number(1e3 * cost)} ms"


def _number(value: float) -> str:
    """Write a number with about three digits that say something."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _ends(results: Sequence[Result]) -> Iterator[str]:
    targets = [result.met for result in results if result.met is not None]
    yield f"{sum(targets)} of {len(targets)} targets are met (each is for one torch thread)"
    for reason, left_out in itertools.groupby(results, key=lambda result: result.left_out):
        if reason:
            yield f"left out: {'; '.join(dict.fromkeys(result.row.name for result in left_out))}: {reason}"
    for result in results:
        if result.failed:
            yield f"failed: {result.row.name} (against {result.row.against}): {result.failed}"
