"""Judge every image processor class of the installed transformers, and print what came out.

python -m tests.matrix [--seed N] [--classes REGEX] [--sample N] [--jobs 2] [--json FILE]
"""

import argparse
import dataclasses
import json
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import transformers

from tests.matrix.apart import judgements
from tests.matrix.classes import image_processor_classes, sampled
from tests.matrix.judging import Judgement

# What is promised of a full run, from that version of transformers on: earlier ones have fewer classes.
_LEAST_SERVED, _SINCE = 205, (5, 24)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix; return the exit status."""
    options = _parser().parse_args(arguments)
    names = _chosen(options.classes, options.sample, options.seed)
    started = time.perf_counter()
    done: list[Judgement] = []
    for judgement in judgements(names, options.seed, options.jobs):
        done.append(judgement)
        print(f"{len(done):3}/{len(names)} {_line(judgement)}", flush=True)
    print(*_table(done, time.perf_counter() - started), sep="\n")
    if options.json:
        Path(options.json).write_text(json.dumps([dataclasses.asdict(judgement) for judgement in done], indent=1))
    failures = list(_failures(done, options.seed, full=len(names) == len(image_processor_classes())))
    print(*failures, sep="\n")
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.matrix", description="Every image processor, plain and wrapped."
    )
    parser.add_argument("--seed", default="0", help="any text; the same one makes the same pictures and calls")
    parser.add_argument("--classes", default=".*", metavar="REGEX", help="only classes whose whole name matches")
    parser.add_argument("--sample", type=int, metavar="N", help="only so many of them, chosen by the seed")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time")
    parser.add_argument("--json", metavar="FILE", help="write every judgement there")
    return parser


def _chosen(pattern: str, sample: int | None, seed: str) -> list[str]:
    names = [name for name in image_processor_classes() if re.fullmatch(pattern, name)]
    return names if sample is None else sampled(names, sample, seed)


def _line(judgement: Judgement) -> str:
    served = "+".join(judgement.served) or judgement.obstacle or "not served"
    return (
        f"{judgement.name} {judgement.backend}: {judgement.calls} calls ({judgement.refused} refused), {served}, "
        f"{len(judgement.differences)} differences, {len(judgement.trials)} trials "
        f"{sum(judgement.trials):.1f} s, {judgement.seconds:.1f} s in all"
    )


def _table(done: Sequence[Judgement], seconds: float) -> Iterator[str]:
    runnable = [judgement for judgement in done if not judgement.obstacle]
    trials = sorted(trial for judgement in done for trial in judgement.trials) or [0.0]
    yield ""
    yield f"transformers {transformers.__version__}"
    yield f"classes seen                {len(done)}"
    yield f"  run on a plain picture    {len(runnable)} {_counted(judgement.backend for judgement in runnable)}"
    yield f"  served alone              {sum('one' in judgement.served for judgement in runnable)}"
    yield f"  served in batches         {sum(judgement.served_in_batches for judgement in runnable)}"
    yield f"  served in nested lists    {sum('nested' in judgement.served for judgement in runnable)}"
    yield f"  kept as codes             {sum(judgement.coded for judgement in runnable)}"
    yield f"calls compared              {sum(judgement.calls for judgement in done)}"
    yield f"  refused by the processor  {sum(judgement.refused for judgement in done)}"
    yield f"differences                 {sum(len(judgement.differences) for judgement in done)}"
    yield (
        f"trials                      {len(trials)}: median {statistics.median(trials):.2f} s, "
        f"largest {trials[-1]:.2f} s, together {sum(trials):.0f} s"
    )
    yield f"time                        {seconds:.0f} s"
    yield from _section(
        "do not run", (f"{judgement.name}: {judgement.obstacle}" for judgement in done if judgement.obstacle)
    )
    yield from _section(
        "run, and are not served in batches",
        (f"{judgement.name}: {_main_reason(judgement)}" for judgement in runnable if not judgement.served_in_batches),
    )
    reasons: Counter[str] = Counter()
    for judgement in done:
        reasons.update(
            {reason.removeprefix(f"{judgement.name}: "): images for reason, images in judgement.bypassed.items()}
        )
    yield from _section(
        "images bypassed, by reason",
        (f"{images:6} {reason.splitlines()[0][:200]}" for reason, images in reasons.most_common()),
    )


def _section(title: str, lines: Iterator[str]) -> Iterator[str]:
    yield ""
    yield f"{title}:"
    yield from (f"  {line}" for line in lines)


def _counted(names: Iterator[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(Counter(names).items()))


def _main_reason(judgement: Judgement) -> str:
    return max(judgement.bypassed, key=lambda reason: judgement.bypassed[reason], default="no reason")


def _failures(done: Sequence[Judgement], seed: str, *, full: bool) -> Iterator[str]:
    """Yield what must not be, each with how to see it again."""
    for judgement in done:
        for difference in judgement.differences:
            yield f"DIFFERENCE {judgement.name}: {difference}\n  again: {judgement.again(seed)}"
    served = sum(judgement.served_in_batches for judgement in done)
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if full and version >= _SINCE and served < _LEAST_SERVED:
        yield f"only {served} classes are served in batches, and not {_LEAST_SERVED}"


if __name__ == "__main__":
    sys.exit(main())
