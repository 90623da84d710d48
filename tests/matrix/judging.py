"""Judging one image processor class: plain and wrapped, call by call, to the bit."""

import copy
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image

import mmcache
from mmcache.items.item import is_tensor
from mmcache.layout.book import Trials
from mmcache.layout.coding import Coding
from mmcache.layout.compare import difference
from mmcache.layout.verdict import Verdict
from mmcache.randomness import random_states
from tests.matrix.classes import UNMADE, backend_of, construct, image_processor_classes, obstacle
from tests.matrix.scenarios import FORMS, TENSORS, Call, Form, scenario
from tests.pictures import counted

# The trial is waited for, however slow the machine: whether a class is served must not depend on that.
_PATIENCE_SECONDS = 120.0

# Pictures of a scenario: of unequal sizes, of equal ones for processors that refuse the others; one of them twice.
_BATCHES = ((0, 2, 0), (0, 1, 0))


@dataclass(frozen=True)
class Judgement:
    """What came out for one class.

    Attributes:
        obstacle: why it does not run on a plain picture, or "".
        calls: how many calls were compared; ``refused`` is how many of them the plain processor answered with an error.
        differences: every call whose wrapped outcome was not the plain one, and whatever else must not be.
        served: the forms in which pictures that were seen before come from the cache, without a run of the processor.
        coded: whether a picture is kept as codes, with default options.
        bypassed: why images went to the plain processor, and how many.
        trials: the seconds of each trial; ``seconds`` is how long everything took.
    """

    name: str
    backend: str
    obstacle: str = ""
    calls: int = 0
    refused: int = 0
    differences: tuple[str, ...] = ()
    served: tuple[Form, ...] = ()
    coded: bool = False
    bypassed: Mapping[str, int] = field(default_factory=dict)
    trials: tuple[float, ...] = ()
    seconds: float = 0.0

    @property
    def served_in_batches(self) -> bool:
        """Whether a flat list of pictures comes from the cache."""
        return "flat" in self.served

    def again(self, seed: str) -> str:
        """Return the command that judges this class again."""
        return f"python -m tests.matrix --seed {seed} --classes {self.name}"


def judge(name: str, seed: str) -> Judgement:
    """Compare a class with itself behind a cache, on the scenario of a seed."""
    started = time.perf_counter()
    cls = image_processor_classes()[name]
    with _surroundings():
        in_the_way = obstacle(cls)
        if in_the_way.startswith(UNMADE):
            return Judgement(name, backend_of(cls), in_the_way)
        with mmcache.Cache("1GiB", name="matrix", verify_rate=0, max_overhead=1) as cache:
            comparison = _Comparison(cls, cache, seed)
            differences = list(comparison.differences())
            served = () if in_the_way else comparison.served()
            coded = not in_the_way and comparison.coded()
            info = cache.cache_info()
    if info.errors:
        differences.append(f"{info.errors} faults inside the cache")
    if not in_the_way and not served and not info.bypass_reasons:
        differences.append("neither served nor bypassed with a reason")
    return Judgement(
        name, backend_of(cls), in_the_way, comparison.calls, comparison.refused, tuple(differences), served,
        coded, info.bypass_reasons, tuple(comparison.trials.seconds), time.perf_counter() - started,
    )  # fmt: skip


@contextmanager
def _surroundings() -> Iterator[None]:
    """Make everything as it has to be: one torch thread, patient trials, the processors' own warnings unheard."""
    threads, before = torch.get_num_threads(), random_states()
    torch.set_num_threads(1)  # small tensors on several threads take ten times as long, and the bits of a few change
    try:
        with warnings.catch_warnings(), mock.patch("mmcache.wrapping.PATIENCE_SECONDS", _PATIENCE_SECONDS):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)
        before.restore()


class _TimedTrials(Trials):
    """The book of verdicts, which also notes how long each trial took."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def verdict(
        self, structure: bytes, prepare: Callable[[], Callable[[], Verdict]], *, patience: float
    ) -> Verdict | None:
        return super().verdict(structure, lambda: self._timed(prepare()), patience=patience)

    def _timed(self, trial: Callable[[], Verdict]) -> Callable[[], Verdict]:
        def timed() -> Verdict:
            started = time.perf_counter()
            try:
                return trial()
            finally:
                self.seconds.append(time.perf_counter() - started)

        return timed


class _Comparison:
    """A plain image processor, another one of its class behind a cache, and the calls to be made on both."""

    def __init__(self, cls: type, cache: mmcache.Cache, seed: str) -> None:
        self._cls, self._cache = cls, cache
        self._plain, self._wrapped = construct(cls), mmcache.wrap(construct(cls), cache)
        self._scenario = scenario(self._plain, seed)
        self._contents = [_content(image) for image in self._scenario.pool]
        self.trials = cache.trials = _TimedTrials()
        self.calls = self.refused = 0

    def differences(self) -> Iterator[str]:
        """Make every call of the scenario on both, and yield what differs."""
        for call in self._scenario.calls:
            self.calls += 1
            if found := self._difference(call):
                yield f"call {self.calls}, {call}: {found}"

    def _difference(self, call: Call) -> str:
        before = random_states()
        expected = self._outcome(self._plain, call)
        after = random_states()
        self.refused += isinstance(expected, _Error)
        before.restore()
        images = call.images(self._scenario.pool)
        found = _outcome(self._wrapped, images, call)
        if where := difference(expected, found):
            return where
        if random_states() != after:
            return "the random generators are left in another state"
        if [_content(image) for image in _flat(images)] != [self._contents[i] for i in _flat(call.samples)]:
            return "an image was changed"
        # Whatever the caller does to what it got, the next one must not see it.
        _spoil(found)
        return ""

    def _outcome(self, processor: Any, call: Call) -> Any:
        return _outcome(processor, call.images(self._scenario.pool), call)

    def served(self) -> tuple[Form, ...]:
        """Return the forms that are served with default options, in whichever kind of output the processor has."""
        return tuple(form for form in FORMS if any(self._is_served(call) for call in _batches(form)))

    def coded(self) -> bool:
        """Whether a picture that is seen for the first time is kept as codes."""
        made: list[Any] = []
        code = Coding.coded

        def noted(coding: Coding, values: Any) -> Any:
            made.append(code(coding, values))
            return made[-1]

        self._cache.clear()
        with mock.patch.object(Coding, "coded", noted):
            for call in _batches("one"):
                self._outcome(self._wrapped, call)
        return bool(made)

    def _is_served(self, call: Call) -> bool:
        """Whether pictures that were all seen before come from the cache: hits, no run, and the plain output."""
        expected = self._outcome(self._plain, call)
        if isinstance(expected, _Error):
            return False
        self._outcome(self._wrapped, call)
        hits = self._cache.cache_info().hits
        with counted(self._cls, "preprocess") as runs:
            found = self._outcome(self._wrapped, call)
        new_hits = self._cache.cache_info().hits - hits
        return not runs and new_hits > 0 and not difference(expected, found)


def _batches(form: Form) -> Iterator[Call]:
    for tensors in TENSORS:
        for picks in _BATCHES:
            samples = {"one": (picks[:1],), "flat": (picks,), "nested": (picks[:1], picks[1:])}[form]
            yield Call(form, samples, tensors)


class _Error(tuple[type, str]):
    """An exception as an outcome: its type and its text."""


def _outcome(processor: Any, images: Any, call: Call) -> Any:
    try:
        return processor(images, **copy.deepcopy(call.keywords()))
    except Exception as error:  # noqa: BLE001 - a refusal is an outcome like any other
        return _Error((type(error), str(error)))


def _content(image: Image.Image) -> tuple[Any, ...]:
    return image.mode, image.size, image.tobytes(), image.getpalette()


def _flat(images: Any) -> Iterator[Any]:
    if isinstance(images, list | tuple):
        for image in images:
            yield from _flat(image)
    else:
        yield images


def _spoil(output: Any) -> None:
    """Write into every array of an output that can be written to."""
    if isinstance(output, Mapping) or hasattr(output, "items"):
        _spoil_all(output.values())
    elif isinstance(output, list | tuple):
        _spoil_all(output)
    elif is_tensor(output) or (isinstance(output, np.ndarray) and output.flags.writeable):
        output[...] = 0


def _spoil_all(members: Iterable[Any]) -> None:
    for member in members:
        _spoil(member)
