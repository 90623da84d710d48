"""The trial: a live processor is run on small pictures, alone and in batches, and its bits are compared.

What is not tried is not cached: a processor that draws random numbers, whose output for an image depends on its
neighbours, on their order or on the calls before, or whose batches no layout explains, ends with a verdict that says
so, and every such call goes to the plain processor.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mmcache.errors import NotJoinable
from mmcache.items.item import NotStorable, freeze, is_tensor
from mmcache.layout.compare import difference
from mmcache.layout.fields import Batched, Field, Layout, Nested, Padded, Same
from mmcache.layout.geometry import outline
from mmcache.layout.probes import BATCHES, NESTED_BATCHES, probes_like, size_of
from mmcache.randomness import random_states

Form = Literal["one", "flat", "nested"]

# A call that moves the random generators this often in a row is taken to draw from them.
RUNS_TO_BE_SURE = 3

# The reason of a verdict on a processor that does.
DRAWS = "it draws random numbers"

# With fewer small pictures than this that a processor accepts, nothing is proved.
_FEWEST_PROBES = 3


@dataclass(frozen=True)
class Verdict:
    """How a trial ended: a layout that was tried to be exact (none is needed for a single image), or a reason.

    ``steady_geometry`` says that images of one size had outputs of one shape, so that a size's geometry may be
    remembered.
    """

    reason: str = ""
    layout: Layout | None = None
    steady_geometry: bool = False

    @property
    def served(self) -> bool:
        """Whether calls of this structure may be served from the cache."""
        return not self.reason


class _Disagreement(Exception):
    """A comparison that failed; its text becomes the verdict's reason."""


def try_processor(call: Callable[[Any], Any], source: Any, form: Form) -> Verdict:
    """Try ``call(images)`` (a processor with its options) on pictures like ``source``, in one form of ``images``.

    The random generators are left as they were.
    """
    call = watched(call)
    try:
        singles = _try_singles(call, probes_like(source), form)
        steady = all(
            not difference(outline(one), outline(other))
            for (probe, one), (twin, other) in itertools.combinations(singles, 2)
            if size_of(probe) == size_of(twin)
        )
        layout = _try_batches(call, singles, form) if form != "one" else None
    except (_Disagreement, NotStorable) as found:
        return Verdict(reason=str(found))
    return Verdict(layout=layout, steady_geometry=steady)


def watched(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call that ends the trial if it draws random numbers.

    Other threads may draw some at the same time, and must not find the generators put back: only what moves them every
    time is taken to draw, and only if they rest as soon as it does. Where they do not, its outputs have to tell.
    """

    def watching(images: Any) -> Any:
        first = random_states()
        started = time.perf_counter()
        for _ in range(RUNS_TO_BE_SURE):
            before = random_states()
            outcome = _outcome(call, images)
            if random_states() == before:
                break
        else:
            after = random_states()
            time.sleep(time.perf_counter() - started)
            if random_states() == after:
                first.restore()
                raise _Disagreement(DRAWS)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return watching


def _try_singles(call: Callable[[Any], Any], probes: Sequence[Any], form: Form) -> list[tuple[Any, Any]]:
    """Run every probe alone, the first one again after the others; return (probe, output) of those that run."""
    singles: list[tuple[Any, Any]] = []
    failure: Exception | None = None
    wrapped = (lambda probe: probe) if form == "one" else (lambda probe: [probe])
    for probe in probes:
        try:
            singles.append((probe, freeze(call(wrapped(probe))).value))
        except (NotStorable, _Disagreement):
            raise
        except Exception as error:  # noqa: BLE001 - any refusal is the processor's right; it is reported if all fail
            failure = error
    if len(singles) < _FEWEST_PROBES or singles[0][0] is not probes[0]:
        raise _Disagreement(f"the trial's small pictures are refused: {type(failure).__name__}: {failure}")
    _agree(singles[0][1], call(wrapped(probes[0])), "one picture processed twice")
    if form != "one":
        _agree(singles[0][1], call(probes[0]), "an image alone and in a list of one")
    return singles


def _agree(expected: Any, found: Any, what: str) -> None:
    if where := difference(expected, found):
        raise _Disagreement(f"{what}: {where}")


def _try_batches(call: Callable[[Any], Any], singles: Sequence[tuple[Any, Any]], form: Form) -> Layout:
    """Find the fields that explain every batch, and the fields of samples for nested lists."""
    batches = [batch for batch in BATCHES if max(batch) < len(singles)]
    tried = [([singles[i][1] for i in batch], _outcome(call, [singles[i][0] for i in batch])) for batch in batches]
    layout = Layout(_find_fields(tried, (Batched(), *_pads(Padded, tried), *_pads(Nested, tried), Same())))
    for outputs, expected in tried:
        _same_outcome(lambda outputs=outputs: layout.join(outputs), expected, f"a batch of {len(outputs)}")  # type: ignore[misc]
    return _try_nested(call, singles, layout) if form == "nested" else layout


def _try_nested(call: Callable[[Any], Any], singles: Sequence[tuple[Any, Any]], layout: Layout) -> Layout:
    batches = [batch for batch in NESTED_BATCHES if max(map(max, batch)) < len(singles)]
    outcomes = [_outcome(call, [[singles[i][0] for i in sample] for sample in batch]) for batch in batches]
    flat = [[singles[i][1] for sample in batch for i in sample] for batch in batches]
    counts = [[len(sample) for sample in batch] for batch in batches]
    for candidate in (layout, _with_samples(layout, batches, singles, outcomes)):
        try:
            for outputs, count, expected in zip(flat, counts, outcomes, strict=True):
                _same_outcome(
                    lambda o=outputs, c=count: candidate.join_nested(o, c),  # type: ignore[misc]  # noqa: B023
                    expected, f"a nested list of {count}",
                )  # fmt: skip
        except _Disagreement as found:
            disagreement = found
        else:
            return candidate
    raise disagreement


def _with_samples(layout: Layout, batches: Any, singles: Any, outcomes: Sequence[Any]) -> Layout:
    tried = [
        ([layout.join([singles[i][1] for i in sample]) for sample in batch], outcome)
        for batch, outcome in zip(batches, outcomes, strict=True)
    ]
    return Layout(layout.fields, _find_fields(tried, (Batched(), *_pads(Padded, tried), Same())))


def _outcome(call: Callable[[Any], Any], images: Any) -> Any:
    """Return what the plain processor gives for a batch; an exception is a value here, to be compared with."""
    try:
        return call(images)
    except _Disagreement:
        raise
    except Exception as error:  # noqa: BLE001 - a refusal is an outcome like any other
        return error


def _same_outcome(join: Callable[[], Any], expected: Any, what: str) -> None:
    try:
        joined = join()
    except NotJoinable as refusal:
        if not isinstance(expected, Exception):
            raise _Disagreement(f"{what} cannot be joined from its images: {refusal}") from None
        return
    if isinstance(expected, Exception):
        raise _Disagreement(f"{what} raises {type(expected).__name__}, its images alone do not")
    _agree(expected, joined, f"{what} and its images alone")


def _find_fields(tried: Sequence[tuple[Sequence[Any], Any]], candidates: Iterable[Field]) -> Mapping[str, Field]:
    """Return, for each output, the first field that explains every batch that did not raise."""
    tried = [(outputs, outcome) for outputs, outcome in tried if not isinstance(outcome, Exception)]
    if not tried:
        raise _Disagreement("no batch of the trial's small pictures runs")
    if not hasattr(tried[0][1], "keys"):
        return {"": _first_fitting("output", [(outputs, outcome) for outputs, outcome in tried], candidates)}
    if any(list(output) != list(batch) for outputs, batch in tried for output in outputs):
        raise _Disagreement("the names of the outputs depend on the batch")
    return {
        name: _first_fitting(name, [([o[name] for o in outputs], batch[name]) for outputs, batch in tried], candidates)
        for name in tried[0][1]
    }


def _first_fitting(name: str, tried: Sequence[tuple[Sequence[Any], Any]], candidates: Iterable[Field]) -> Field:
    for candidate in candidates:
        try:
            if not any(difference(expected, candidate.join(parts)) for parts, expected in tried):
                return candidate
        except NotJoinable:
            continue
    raise _Disagreement(f"no layout explains how {name!r} of a batch is made from single images")


def _pads(kind: Callable[[float], Field], tried: Sequence[tuple[Sequence[Any], Any]]) -> list[Field]:
    """Return padded fields for 0, 1 and every last element seen in a batch: padding is always at the end."""
    lasts = (_last_element(leaf) for _, outcome in tried for leaf in _arrays(outcome))
    values = dict.fromkeys(itertools.chain((0, 1), (last for last in lasts if last is not None)))
    return [kind(value) for value in values]


def _arrays(value: Any) -> Iterable[Any]:
    if hasattr(value, "values") and not is_tensor(value):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for child in value:
            yield from _arrays(child)
    elif is_tensor(value) or isinstance(value, np.ndarray):
        yield value


def _last_element(array: Any) -> float | None:
    return array.reshape(-1)[-1].item() if array.shape and min(array.shape) else None
