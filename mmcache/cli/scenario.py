"""The scenario that mmcache was made for: an engine that needs every image of a request twice.

Once when the request is added, to know how many tokens its image takes, and once when the model runs, to have the
pixels; and again in each turn of a chat, with the same pictures decoded anew. `follow` takes pictures through it in
one of two ways: `plain`, which asks the processor each time, or `with_stages`.
"""

import functools
import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mmcache.cli.pictures import Picture

if TYPE_CHECKING:
    from mmcache.stages import Stages

# How many requests the model runs at once.
_REQUESTS_PER_BATCH = 4

# What the add stage wants to know: patches of each image in time, height and width.
_GRID = "image_grid_thw"

Grid = list[list[int]]
Redeem = Callable[[], Any]
Way = Callable[[Any, dict[str, Any]], tuple[Grid, Redeem]]


@dataclass(frozen=True)
class Evidence:
    """What came out for one request in one turn: its grid in the add stage, and the digests of its tensors."""

    request: str
    grid: Grid
    container: str
    tensors: dict[str, str]


@dataclass
class Measurements:
    """What one way took, in seconds and in runs of the real processor, and what came out.

    ``real_runs`` counts pictures of the requests, ``trial_runs`` the small ones of mmcache's trial. The seconds of the
    trial, which comes before the first picture is processed, are in ``trial_seconds`` and not in ``add_seconds``.
    """

    real_runs: int = 0
    trial_runs: int = 0
    trial_seconds: float = 0.0
    add_seconds: float = 0.0
    execute_seconds: float = 0.0
    evidence: list[Evidence] = field(default_factory=list)

    @property
    def total_seconds(self) -> float:
        """All of the time, the trial included."""
        return self.trial_seconds + self.add_seconds + self.execute_seconds


class RealRuns:
    """Counts the runs of the real processor inside a ``with`` block, below everything that mmcache puts over it."""

    def __init__(self, processor_class: type) -> None:
        """``processor_class`` is the image processor's own class."""
        self._class = processor_class
        self._inherited = "preprocess" not in vars(processor_class)
        self._original: Callable[..., Any] = processor_class.preprocess  # type: ignore[attr-defined]
        self._lock = threading.Lock()
        self.expect(())

    def expect(self, images: Iterable[Any]) -> None:
        """Begin to count anew; these image objects are pictures of requests, all others a trial's."""
        # Held on to, since an id is only its own while its object lives.
        self._expected = {id(image): image for image in images}
        self.pictures = self.others = 0
        self.first_at: float | None = None

    def __enter__(self) -> "RealRuns":
        """Put the counter over the class's ``preprocess``."""
        original = self._original

        @functools.wraps(original)
        def preprocess(processor: Any, images: Any, *args: Any, **options: Any) -> Any:
            self._count(images if isinstance(images, list | tuple) else [images])
            return original(processor, images, *args, **options)

        # The counter changes no output: by this the identity of the processor stays what it is without it.
        preprocess.__mmcache_original__ = original  # type: ignore[attr-defined]
        self._class.preprocess = preprocess  # type: ignore[attr-defined]
        return self

    def __exit__(self, *_: object) -> None:
        """Put the class back as it was."""
        if self._inherited:
            del self._class.preprocess  # type: ignore[attr-defined]
        else:
            self._class.preprocess = self._original  # type: ignore[attr-defined]

    def _count(self, images: Sequence[Any]) -> None:
        known = sum(id(image) in self._expected for image in images)
        with self._lock:
            self.pictures += known
            self.others += known == 0
            if known and self.first_at is None:
                self.first_at = time.perf_counter()


def plain(processor: Any) -> Way:
    """Return the way without a cache: the processor is called for the grid, and again for the pixels."""

    def add(image: Any, options: dict[str, Any]) -> tuple[Grid, Redeem]:
        def process() -> Any:
            return processor(images=[image], return_tensors="pt", **options)

        return process()[_GRID].tolist(), process

    return add


def with_stages(stages: "Stages") -> Way:
    """Return the way with mmcache: a ticket gives the grid, and is redeemed for the pixels."""

    def add(image: Any, options: dict[str, Any]) -> tuple[Grid, Redeem]:
        ticket = stages.add(image, **options)
        return ticket.geometry[_GRID], lambda: stages.execute([ticket])

    return add


def follow(
    way: Way, pictures: Sequence[Picture], turns: int, runs: RealRuns, advance: Callable[[int], None]
) -> Measurements:
    """Take every picture through add and execute, once per turn; ``advance`` hears how many requests got through."""
    measured = Measurements()
    for turn in range(1, turns + 1):
        # Fresh objects: in a chat the pictures of earlier turns are sent, and decoded, anew.
        images = [picture.image.copy() for picture in pictures]
        runs.expect(images)
        redeem = _add_all(way, pictures, images, runs, measured, first=turn == 1)
        for begin in range(0, len(pictures), _REQUESTS_PER_BATCH):
            batch = slice(begin, begin + _REQUESTS_PER_BATCH)
            outputs = _execute(redeem[batch], measured)
            measured.evidence += [
                _evidence(f"{picture.name}, turn {turn}", grid, output)
                for picture, (grid, _), output in zip(pictures[batch], redeem[batch], outputs, strict=True)
            ]
            advance(len(outputs))
        measured.real_runs += runs.pictures
        measured.trial_runs += runs.others
    return measured


def _add_all(
    way: Way,
    pictures: Sequence[Picture],
    images: Sequence[Any],
    runs: RealRuns,
    measured: Measurements,
    *,
    first: bool,
) -> list[tuple[Grid, Redeem]]:
    started = time.perf_counter()
    added = [way(image, picture.options) for picture, image in zip(pictures, images, strict=True)]
    measured.add_seconds += time.perf_counter() - started
    if first and runs.others and runs.first_at is not None:
        measured.trial_seconds = runs.first_at - started
        measured.add_seconds -= measured.trial_seconds
    return added


def _execute(batch: Sequence[tuple[Grid, Redeem]], measured: Measurements) -> list[Any]:
    started = time.perf_counter()
    outputs = [redeem() for _, redeem in batch]
    measured.execute_seconds += time.perf_counter() - started
    return outputs


def _evidence(request: str, grid: Grid, output: Any) -> Evidence:
    """Keep digests in place of tensors, which are megabytes each: what is compared must not fill the memory."""
    return Evidence(request, grid, type(output).__name__, {name: _digest(value) for name, value in output.items()})


def _digest(value: Any) -> str:
    """Return a digest of dtype, shape and bytes, made without anything of mmcache's own."""
    import torch

    if not isinstance(value, torch.Tensor):
        return repr(value)
    flat = value.contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{value.dtype} {tuple(value.shape)} sha256:{hashlib.sha256(flat.data).hexdigest()}"


def differences(expected: Measurements, found: Measurements) -> list[str]:
    """Return a line for each tensor (or grid, or output as a whole) that is not what the plain way gave."""
    pairs = zip(expected.evidence, found.evidence, strict=True)
    return [line for right, other in pairs for line in _differences(right, other)]


def _differences(expected: Evidence, found: Evidence) -> list[str]:
    lines = [
        f"{expected.request}: {name}: {found.tensors.get(name, 'missing')} instead of {digest}"
        for name, digest in expected.tensors.items()
        if found.tensors.get(name) != digest
    ]
    if found.grid != expected.grid:
        lines.append(f"{expected.request}: grid {found.grid} in the add stage instead of {expected.grid}")
    forms = [(evidence.container, list(evidence.tensors)) for evidence in (expected, found)]
    if forms[0] != forms[1]:
        lines.append(f"{expected.request}: a {forms[1]} instead of {forms[0]}")
    return lines
