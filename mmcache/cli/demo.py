"""``mmcache demo``: photographs through an engine's two stages, plain and with mmcache, compared bit for bit.

No network and no GPU: the real Qwen2-VL image processor, photographs that scikit-image carries (or your own), one
torch thread. The exit status is 1 if a single tensor differs.
"""

import argparse
import contextlib
import importlib.util
import logging
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mmcache
from mmcache.cli.arguments import count, folder
from mmcache.cli.pictures import Picture, carried_pictures, pictures_in
from mmcache.cli.report import Report, as_json, as_table
from mmcache.cli.scenario import Measurements, RealRuns, Way, follow, plain, with_stages
from mmcache.errors import BadArgument, MissingExtra
from mmcache.sizes import parse_size
from mmcache.stats import CacheInfo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("--images", type=folder, metavar="FOLDER", help="use the pictures of a folder, all of them")
    parser.add_argument("--turns", type=count, default=10, metavar="N", help="turns of the chat (default: 10)")
    parser.add_argument("--max-bytes", type=_size, default="1GiB", metavar="SIZE", help="the budget (default: 1GiB)")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="write a Chrome trace of the part with mmcache")
    parser.add_argument("--backend", choices=("torchvision", "pil"), help="default: torchvision where it is installed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Follow the scenario both ways and print the report; return 1 if an output differs, else 0.

    Raises:
        MissingExtra: a package of the extra ``demo`` is not installed.
        BadArgument: the folder of pictures has none.
    """
    _require("rich", "mmcache demo")
    skipped: list[str] = []
    pictures = pictures_in(arguments.images, skipped.append) if arguments.images else carried_pictures()
    processor, backend = _processor(arguments.backend)
    if arguments.profile:
        arguments.profile.touch()  # what cannot be written should fail now, not after the work
    with _one_torch_thread(), _progress(2 * len(pictures) * arguments.turns) as advance:
        expected, found, info, log = _follow_both(pictures, processor, arguments, advance)
    report = Report(len(pictures), skipped, arguments.turns, backend, expected, found, info, log)
    print(as_json(report) if arguments.json else as_table(report), end="")
    for difference in report.differences:
        print(f"mmcache demo: differs: {difference}", file=sys.stderr)
    return 1 if report.differences else 0


def _follow_both(
    pictures: Sequence[Picture], processor: Any, arguments: argparse.Namespace, advance: Callable[[int], None]
) -> tuple[Measurements, Measurements, CacheInfo, list[str]]:
    # Loads what transformers loads lazily, before anything is timed or counted.
    plain(processor)(pictures[0].image, pictures[0].options)
    with RealRuns(type(processor)) as runs:

        def measured(way: Way) -> Measurements:
            return follow(way, pictures, arguments.turns, runs, advance)

        expected = measured(plain(processor))
        with (
            _logged() as log,
            _profiled(arguments.profile),
            # One line in the log for the whole run, written when the cache is closed.
            mmcache.Cache(
                arguments.max_bytes, name="demo", log_interval=math.inf, verify_rate=0, max_overhead=1
            ) as cache,
            mmcache.Stages(processor, cache=cache, pixels="eager") as stages,
        ):
            found = measured(with_stages(stages))
            info = cache.cache_info()
    return expected, found, info, log


def _processor(backend: str | None) -> tuple[Any, str]:
    """Return a real Qwen2-VL image processor, which needs no download, and the name of its backend."""
    has_torchvision = importlib.util.find_spec("torchvision") is not None
    if backend == "torchvision" and not has_torchvision:
        raise MissingExtra("torchvision", "demo", "mmcache demo --backend torchvision")
    backend = backend or ("torchvision" if has_torchvision else "pil")
    import transformers

    # Since 5.0 the plain name is torchvision's, and PIL's has a suffix; before, PIL had the plain name.
    suffixes = {"torchvision": "Fast", "pil": ""}
    if hasattr(transformers, "Qwen2VLImageProcessorPil"):
        suffixes = {"torchvision": "", "pil": "Pil"}
    return getattr(transformers, f"Qwen2VLImageProcessor{suffixes[backend]}")(), backend


def _require(package: str, purpose: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(package, "demo", purpose)


@contextlib.contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Take one thread, so that the figures say what the work costs and not how many cores there are."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr, where that is a terminal; yield what moves it on."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("requests", total=total)
        yield lambda done: progress.advance(task, done)


@contextlib.contextmanager
def _logged() -> Iterator[list[str]]:
    """Yield a list that gets what mmcache logs, as it is logged."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("mmcache")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


@contextlib.contextmanager
def _profiled(trace: Path | None) -> Iterator[None]:
    """Write a Chrome trace of the block, in which mmcache's hits and misses are spans."""
    if trace is None:
        yield
        return
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        yield
    profiler.export_chrome_trace(str(trace))


def _size(given: str) -> int:
    try:
        return parse_size(given, "--max-bytes")
    except BadArgument as refused:
        raise argparse.ArgumentTypeError(str(refused)) from None
