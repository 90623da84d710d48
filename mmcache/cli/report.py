"""What the demo found, as a table for people or as JSON."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from typing import Any

from mmcache.cli.scenario import Measurements, differences
from mmcache.sizes import format_size
from mmcache.stats import CacheInfo

# Wide enough for the table where the output is no terminal.
_WIDTH = 100


@dataclass(frozen=True)
class Report:
    """The two ways side by side.

    ``images`` is how many pictures each turn had, ``skipped`` what was left out of them and why, ``info`` the cache's
    own account at the end, ``log`` what it logged.
    """

    images: int
    skipped: list[str]
    turns: int
    backend: str
    plain: Measurements
    mmcache: Measurements
    info: CacheInfo
    log: list[str]

    @cached_property
    def differences(self) -> list[str]:
        """A line for each output that is not bit for bit what the plain way gave."""
        return differences(self.plain, self.mmcache)

    @property
    def tensors(self) -> int:
        """How many tensors were compared."""
        return sum(len(evidence.tensors) for evidence in self.plain.evidence)


def as_json(report: Report) -> str:
    """Return the figures as one JSON object; times are seconds, sizes bytes, rates between 0 and 1."""
    cache = {
        "trial_runs": report.mmcache.trial_runs,
        "hit_rate": report.info.hit_rate,
        "bypassed": report.info.bypassed,
        "bytes_kept": report.info.currsize,
        "max_bytes": report.info.maxsize,
    }
    figures = {
        "images": report.images,
        "turns": report.turns,
        "backend": report.backend,
        "torch_threads": 1,
        "plain": _figures(report, report.plain),
        "mmcache": _figures(report, report.mmcache) | cache,
        "speedup": _ratio(report.plain.total_seconds, report.mmcache.total_seconds),
        "log": report.log,
        "tensors_compared": report.tensors,
        "differ": len(report.differences),
        "differences": report.differences,
        "skipped": report.skipped,
    }
    return json.dumps(figures, indent=2) + "\n"


def _figures(report: Report, way: Measurements) -> dict[str, Any]:
    return {
        "real_runs": way.real_runs,
        "real_runs_per_image": way.real_runs / report.images,
        "trial_seconds": way.trial_seconds,
        "add_seconds": way.add_seconds,
        "execute_seconds": way.execute_seconds,
        "total_seconds": way.total_seconds,
    }


def _ratio(dividend: float, divisor: float) -> float:
    return dividend / max(divisor, 1e-9)  # a clock may stand still over very little work


def as_table(report: Report) -> str:
    """Return a table with a column for each way, the lines of the log, and how the comparison ended."""
    from rich.console import Console
    from rich.table import Table

    title = f"{report.images} images, {report.turns} turns, Qwen2-VL ({report.backend}), one torch thread"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    table.add_column("plain", justify="right")
    table.add_column("mmcache", justify="right")
    for row in _rows(report):
        table.add_row(*row)
    text = StringIO()
    Console(file=text, width=_WIDTH, force_terminal=False).print(table)
    return text.getvalue() + "".join(f"{line}\n" for line in _lines(report))


def _rows(report: Report) -> Iterator[tuple[str, str, str]]:
    left, right, info = report.plain, report.mmcache, report.info
    yield "real processor runs per image", f"{left.real_runs / report.images:g}", f"{right.real_runs / report.images:g}"
    yield "trial, once", "", f"{right.trial_seconds:.2f} s ({right.trial_runs} runs on small pictures)"
    yield "add stage", *_times(left.add_seconds, right.add_seconds)
    yield "execute stage", *_times(left.execute_seconds, right.execute_seconds)
    yield "total", *_times(left.total_seconds, right.total_seconds)
    yield "hit rate", "", f"{100 * info.hit_rate:.1f} %"
    yield "bytes kept", "", f"{format_size(info.currsize)} of {format_size(info.maxsize)}"


def _times(left: float, right: float) -> tuple[str, str]:
    ratio = _ratio(left, right)
    compared = f"{ratio:.1f} times as fast" if ratio >= 1 else f"takes {1 / ratio:.1f} times as long"
    return f"{left:.2f} s", f"{right:.2f} s ({compared})"


def _lines(report: Report) -> Iterator[str]:
    yield from report.skipped
    for reason, images in report.info.bypass_reasons.items():
        yield f"bypassed {images} look-ups: {reason}"
    yield from report.log
    yield f"{report.tensors} tensors compared, {len(report.differences)} differ"
