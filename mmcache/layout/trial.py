"""The trial: a live processor is run on small pictures, alone and in batches, and its bits are compared.

What is not tried is not cached: a processor that draws random numbers, whose output for an image depends on its
neighbours, on their order or on the calls before, or whose batches no layout explains, ends with a verdict that says
so, and every such call goes to the plain processor.
"""

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mmcache.errors import NotJoinable
from mmcache.items import NotStorable, freeze
from mmcache.layout.candidates import Unexplained, find_fields
from mmcache.layout.coding import Coding, find_coding
from mmcache.layout.compare import difference
from mmcache.layout.conversion import Conversion, find_conversion
from mmcache.layout.fields import Layout
from mmcache.layout.geometry import outline
from mmcache.layout.probes import (
    BATCHES,
    HELD_OUT,
    NESTED_BATCHES,
    NESTED_HELD_OUT,
    all_values_like,
    one_value_like,
    probes_like,
    size_of,
)
from mmcache.randomness import random_states

Form = Literal["one", "flat", "nested"]

# A call that moves the random generators this often in a row is taken to draw from them.
RUNS_TO_BE_SURE = 3

# The reason of a verdict on a processor that does.
DRAWS = "it draws random numbers"

# A batch of images (or of samples) by the numbers of their pictures.
_Batch = Sequence[Any]

# Pictures with their outputs.
_Singles = Sequence[tuple[Any, Any]]

# So many pictures of each kind are tried together with those of other kinds: the first two are of one size.
_PROBES_TOGETHER = 3

# With fewer small pictures than this that a processor accepts, nothing is proved.
_FEWEST_PROBES = 3


@dataclass(frozen=True)
class Verdict:
    """How a trial ended: a layout that was tried to be exact (none is needed for a single image), or a reason.

    ``steady_geometry`` says that images of one size had outputs of one shape, so that a size's geometry may be
    remembered. ``alone`` says that a list of one image may be served whatever the reason, which is then one against
    batches only. With a ``conversion`` items are those of ``return_tensors=None``, with a ``coding`` they are kept as
    codes.
    """

    reason: str = ""
    layout: Layout | None = None
    steady_geometry: bool = False
    alone: bool = False
    conversion: Conversion | None = None
    coding: Coding | None = None

    @property
    def as_it_came(self) -> bool:
        """Whether an item's output for a single image is that of the processor, in every way."""
        return self.conversion is None and self.coding is None

    @property
    def served(self) -> bool:
        """Whether calls of this structure may be served from the cache."""
        return not self.reason


class _Disagreement(Exception):
    """A comparison that failed; its text becomes the verdict's reason."""


@dataclass(frozen=True)
class Calls:
    """The calls that are tried: a processor with its options, and with some changed.

    ``asked(images)`` is the call itself and ``kind`` the ``return_tensors`` among its options; ``lists`` is the same
    with None in their place, if outputs may be made from that one's. ``asked_values`` and ``list_values`` are the two
    without the last steps (see `mmcache.layout.coding`).
    """

    asked: Callable[[Any], Any]
    kind: Any = None
    lists: Callable[[Any], Any] | None = None
    asked_values: Callable[[Any], Any] | None = None
    list_values: Callable[[Any], Any] | None = None


def try_processor(calls: Calls, source: Any, form: Form) -> Verdict:
    """Try a processor with its options on pictures like ``source``, in one form of ``images``.

    The random generators are left as they were.
    """
    call = watched(calls.asked)
    try:
        singles = _try_singles(call, probes_like(source), form)
        steady = all(
            not difference(outline(one), outline(other))
            for (probe, one), (twin, other) in itertools.combinations(singles, 2)
            if size_of(probe) == size_of(twin)
        )
    except (_Disagreement, NotStorable) as found:
        return Verdict(reason=str(found))
    conversion, made = _try_conversion(calls, singles, form)
    coding = _try_coding(calls, converted=conversion is not None, made=made, source=source, form=form)
    if form == "one":
        return Verdict(steady_geometry=steady, conversion=conversion, coding=coding)
    try:
        layout = _try_batches(call, singles, form)
        if layout.whole_samples:  # which were neither converted nor coded here
            conversion = coding = None
        return Verdict(layout=layout, steady_geometry=steady, conversion=conversion, coding=coding)
    except (_Disagreement, Unexplained, NotStorable) as found:
        alone = form == "flat" and str(found) != DRAWS
        return Verdict(
            reason=str(found), steady_geometry=steady and alone, alone=alone,
            conversion=conversion if alone else None, coding=coding if alone else None,
        )  # fmt: skip


def try_together(call: Callable[[Any], Any], kinds: Sequence[Any], form: Form, apart: Verdict) -> Verdict:
    """Try batches of pictures of several kinds, on each of which ``apart`` is the verdict: is it theirs together?"""
    assert apart.layout is not None, "what has several images has a layout"
    call = watched(call)
    try:
        alike = [probes_like(source)[:_PROBES_TOGETHER] for source in kinds]
        probes = [probe for pictures in zip(*alike, strict=True) for probe in pictures]
        everything = list(range(len(probes)))
        for batch in ([0, 1], [1, 0], everything, everything[::-1]):
            if form == "nested":
                _try_samples_together(call, probes, [batch[:1], batch[1:]], apart.layout)
            else:
                _try_images_together(call, probes, batch, apart.layout)
    except (_Disagreement, NotStorable) as found:
        return Verdict(reason=f"kinds of images together: {found}")
    return apart


def _try_images_together(call: Callable[[Any], Any], probes: Sequence[Any], batch: _Batch, layout: Layout) -> None:
    outputs = [freeze(call([probes[i]])).value for i in batch]
    expected = _outcome(call, [probes[i] for i in batch])
    _same_outcome(lambda: layout.join(outputs), expected, f"a batch of {len(batch)}")


def _try_samples_together(call: Callable[[Any], Any], probes: Sequence[Any], batch: _Batch, layout: Layout) -> None:
    samples = [[probes[i] for i in sample] for sample in batch]
    if layout.whole_samples:
        outputs = [_outcome(call, [sample]) for sample in samples]
        if any(isinstance(output, Exception) for output in outputs):
            raise _Disagreement("a sample of them is refused")
        join = functools.partial(layout.join_samples, outputs)
    else:
        outputs = [freeze(call([probe])).value for sample in samples for probe in sample]
        join = functools.partial(layout.join_nested, outputs, [len(sample) for sample in samples])
    _same_outcome(join, _outcome(call, samples), f"a nested list of {[len(sample) for sample in samples]}")


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


def _try_conversion(calls: Calls, singles: _Singles, form: Form) -> tuple[Conversion | None, _Singles]:
    """Return how the outputs of single images are made from those without ``return_tensors``, and from which.

    None and the outputs themselves, if they are not.
    """
    if calls.lists is None:
        return None, singles
    lists = watched(calls.lists)
    try:
        made = [(probe, lists(_in_form(probe, form))) for probe, _ in singles]
        if form != "one":
            _agree(made[0][1], lists(singles[0][0]), "an image alone and in a list of one")
    except Exception:  # noqa: BLE001 - it is not for this processor; what was asked for has been tried
        return None, singles
    conversion = find_conversion(calls.kind, [(one, asked) for (_, one), (_, asked) in zip(made, singles, strict=True)])
    return conversion, made if conversion is not None else singles


def _try_coding(calls: Calls, *, converted: bool, made: _Singles, source: Any, form: Form) -> Coding | None:
    """Return how the outputs that items are made of can be kept as codes, if they can."""
    usual = calls.lists if converted else calls.asked
    values = calls.list_values if converted else calls.asked_values
    if usual is None or values is None:
        return None
    usual, values = watched(usual), watched(values)

    def pair(picture: Any) -> tuple[Any, Any]:
        return usual(_in_form(picture, form)), values(_in_form(picture, form))

    try:
        pairs = [(output, values(_in_form(probe, form))) for probe, output in made]
        coding, unseen = find_coding(pairs)
        if coding is None:
            return None
        pairs.append(pair(all_values_like(source)))
        coding, unseen = find_coding(pairs)
        if unseen:
            coding, unseen = find_coding([*pairs, *(pair(one_value_like(source, value)) for value in unseen)])
    except Exception:  # noqa: BLE001 - it is not for this processor; items are kept as they come
        return None
    return None if unseen else coding


def _in_form(picture: Any, form: Form) -> Any:
    return picture if form == "one" else [picture]


def _agree(expected: Any, found: Any, what: str) -> None:
    if where := difference(expected, found):
        raise _Disagreement(f"{what}: {where}")


def _try_batches(call: Callable[[Any], Any], singles: Sequence[tuple[Any, Any]], form: Form) -> Layout:
    """Find the fields that explain every batch, and the fields of samples for nested lists.

    The fields are found on some batches and held to one more, that nobody has looked at before.
    """
    tried = [_run(call, singles, batch) for batch in BATCHES if max(batch) < len(singles)]
    layout = Layout(find_fields([*(([output], output) for _, output in singles), *tried], flat=True))
    kept_back = _run(call, singles, [i for i in HELD_OUT if i < len(singles)])
    for outputs, expected in (*tried, kept_back):
        _same_outcome(lambda outputs=outputs: layout.join(outputs), expected, f"a batch of {len(outputs)}")  # type: ignore[misc]
    return _try_nested(call, singles, layout) if form == "nested" else layout


def _run(call: Callable[[Any], Any], singles: Sequence[tuple[Any, Any]], batch: _Batch) -> tuple[list[Any], Any]:
    """Return the outputs of a batch's pictures, and what the processor gives for the batch."""
    return [singles[i][1] for i in batch], _outcome(call, [singles[i][0] for i in batch])


def _try_nested(call: Callable[[Any], Any], singles: Sequence[tuple[Any, Any]], layout: Layout) -> Layout:
    """Return the layout with what nested lists need beyond it: nothing, fields of samples, or samples kept whole."""
    batches = [_within(batch, len(singles)) for batch in (*NESTED_BATCHES, NESTED_HELD_OUT)]
    outcomes = [_nested_outcome(call, singles, batch) for batch in batches]
    disagreement: Exception | None = None
    for attempt in (_joined_flat, _joined_by_samples, _joined_whole):
        try:
            candidate, join = attempt(call, singles, layout, list(zip(batches, outcomes, strict=True)))
            for batch, expected in zip(batches, outcomes, strict=True):
                _same_outcome(lambda b=batch: join(b), expected, f"a nested list of {[len(s) for s in batch]}")  # type: ignore[misc] # noqa: B023
        except (Unexplained, NotJoinable, _Disagreement) as found:
            if str(found) == DRAWS:
                raise
            disagreement = found
        else:
            return candidate
    assert disagreement is not None, "there are attempts"
    raise disagreement


# A layout, and how it joins a batch of samples.
_Attempt = tuple[Layout, Callable[[_Batch], Any]]


def _joined_flat(_: Any, singles: Any, layout: Layout, __: Any) -> _Attempt:
    """Nested lists are flat lists of their images."""
    return layout, lambda batch: layout.join([singles[i][1] for sample in batch for i in sample])


def _joined_by_samples(_: Any, singles: Any, layout: Layout, tried: Sequence[tuple[_Batch, Any]]) -> _Attempt:
    """Images make samples as a flat list does, and samples make batches by fields of their own."""

    def samples(batch: _Batch) -> list[Any]:
        return [layout.join([singles[i][1] for i in sample]) for sample in batch]

    fields = find_fields([(samples(batch), outcome) for batch, outcome in tried[:-1]], flat=False)
    candidate = Layout(layout.fields, fields)
    return candidate, lambda batch: candidate.join_samples(samples(batch))


def _joined_whole(call: Any, singles: Any, layout: Layout, tried: Sequence[tuple[_Batch, Any]]) -> _Attempt:
    """Images depend on the others of their sample, but samples do not depend on each other."""
    known: dict[Any, Any] = {}

    def samples(batch: _Batch) -> list[Any]:
        for sample in batch:
            if sample not in known:
                known[sample] = _nested_outcome(call, singles, [sample])
                if isinstance(known[sample], Exception):
                    raise _Disagreement(f"a sample alone raises {type(known[sample]).__name__}")
        return [known[sample] for sample in batch]

    fields = find_fields([(samples(batch), outcome) for batch, outcome in tried[:-1]], flat=False)
    candidate = Layout(layout.fields, fields, whole_samples=True)
    return candidate, lambda batch: candidate.join_samples(samples(batch))


def _within(batch: _Batch, count: int) -> _Batch:
    """Return a nested batch without the pictures that are refused alone."""
    return [sample for sample in (tuple(i for i in sample if i < count) for sample in batch) if sample]


def _nested_outcome(call: Callable[[Any], Any], singles: Sequence[tuple[Any, Any]], batch: _Batch) -> Any:
    return _outcome(call, [[singles[i][0] for i in sample] for sample in batch])


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
