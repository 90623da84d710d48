"""The trial: a live processor is run on small pictures, alone and in batches, and its bits are compared.

What is not tried is not cached: a processor that draws random numbers, whose output for an image depends on its
neighbours, on their order or on the calls before, or whose batches no layout explains, ends with a verdict that says
so, and every such call goes to the plain processor.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from mmcache.items import NotStorable, expanded, freeze
from mmcache.layout.candidates import Unexplained, find_fields
from mmcache.layout.coding import Coding, find_coding
from mmcache.layout.compare import difference
from mmcache.layout.conversion import Conversion, find_conversion
from mmcache.layout.fields import Layout
from mmcache.layout.geometry import outline
from mmcache.layout.nesting import Batch, Singles, try_nested
from mmcache.layout.outcomes import DRAWS, Disagreement, agree, outcome_of, same_outcome, watched
from mmcache.layout.probes import (
    BATCHES,
    HELD_OUT,
    all_values_like,
    one_value_like,
    probes_like,
    size_of,
)
from mmcache.layout.verdict import Verdict

Form = Literal["one", "flat", "nested"]

# So many pictures of each kind are tried together with those of other kinds: the first two are of one size.
_PROBES_TOGETHER = 3

# Values that the pictures of a trial left out have pictures of their own; where most are out (in black and white ones all
# but two), that is none for codes.
_MOST_UNSEEN = 16

# With fewer small pictures than this that a processor accepts, nothing is proved.
_FEWEST_PROBES = 3


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
    except (Disagreement, NotStorable) as found:
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
    except (Disagreement, Unexplained, NotStorable) as found:
        alone = form == "flat" and str(found) != DRAWS
        return Verdict(
            reason=str(found), steady_geometry=steady and alone, alone=alone,
            conversion=conversion if alone else None, coding=coding if alone else None,
        )  # fmt: skip


def confirmed(verdict: Verdict, calls: Calls, source: Any, form: Form) -> Verdict:
    """Return a verdict without its coding, unless that holds for ``calls`` too: it was found with smaller sizes."""
    lists = verdict.conversion is not None
    usual, values = (calls.lists, calls.list_values) if lists else (calls.asked, calls.asked_values)
    if verdict.coding is None or usual is None or values is None:
        return verdict
    usual, values, picture = watched(usual), watched(values), _in_form(probes_like(source)[0], form)
    try:
        agree(usual(picture), expanded(verdict.coding.coded(values(picture))), "codes")
    except Exception:  # noqa: BLE001 - whatever it is, items are kept as they come
        return replace(verdict, coding=None)
    return verdict


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
    except (Disagreement, NotStorable) as found:
        return Verdict(reason=f"kinds of images together: {found}")
    return apart


def _try_images_together(call: Callable[[Any], Any], probes: Sequence[Any], batch: Batch, layout: Layout) -> None:
    outputs = [freeze(call([probes[i]])).value for i in batch]
    expected = outcome_of(call, [probes[i] for i in batch])
    same_outcome(lambda: layout.join(outputs), expected, f"a batch of {len(batch)}")


def _try_samples_together(call: Callable[[Any], Any], probes: Sequence[Any], batch: Batch, layout: Layout) -> None:
    samples = [[probes[i] for i in sample] for sample in batch]
    if layout.whole_samples:
        outputs = [outcome_of(call, [sample]) for sample in samples]
        if any(isinstance(output, Exception) for output in outputs):
            raise Disagreement("a sample of them is refused")
        join = functools.partial(layout.join_samples, outputs)
    else:
        outputs = [freeze(call([probe])).value for sample in samples for probe in sample]
        join = functools.partial(layout.join_nested, outputs, [len(sample) for sample in samples])
    same_outcome(join, outcome_of(call, samples), f"a nested list of {[len(sample) for sample in samples]}")


def _try_singles(call: Callable[[Any], Any], probes: Sequence[Any], form: Form) -> list[tuple[Any, Any]]:
    """Run every probe alone, the first one again after the others; return (probe, output) of those that run."""
    singles: list[tuple[Any, Any]] = []
    failure: Exception | None = None
    wrapped = (lambda probe: probe) if form == "one" else (lambda probe: [probe])
    for probe in probes:
        try:
            singles.append((probe, freeze(call(wrapped(probe))).value))
        except (NotStorable, Disagreement):
            raise
        except Exception as error:  # noqa: BLE001 - any refusal is the processor's right; it is reported if all fail
            failure = error
    if len(singles) < _FEWEST_PROBES or singles[0][0] is not probes[0]:
        raise Disagreement(f"the trial's small pictures are refused: {type(failure).__name__}: {failure}")
    agree(singles[0][1], call(wrapped(probes[0])), "one picture processed twice")
    if form != "one":
        agree(singles[0][1], call(probes[0]), "an image alone and in a list of one")
    return singles


def _try_conversion(calls: Calls, singles: Singles, form: Form) -> tuple[Conversion | None, Singles]:
    """Return how the outputs of single images are made from those without ``return_tensors``, and from which.

    None and the outputs themselves, if they are not.
    """
    if calls.lists is None:
        return None, singles
    lists = watched(calls.lists)
    try:
        made = [(probe, lists(_in_form(probe, form))) for probe, _ in singles]
        if form != "one":
            agree(made[0][1], lists(singles[0][0]), "an image alone and in a list of one")
    except Exception:  # noqa: BLE001 - it is not for this processor; what was asked for has been tried
        return None, singles
    conversion = find_conversion(calls.kind, [(one, asked) for (_, one), (_, asked) in zip(made, singles, strict=True)])
    return conversion, made if conversion is not None else singles


def _try_coding(calls: Calls, *, converted: bool, made: Singles, source: Any, form: Form) -> Coding | None:
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
        if 0 < len(unseen) <= _MOST_UNSEEN:
            coding, unseen = find_coding([*pairs, *(pair(one_value_like(source, value)) for value in unseen)])
    except Exception:  # noqa: BLE001 - it is not for this processor; items are kept as they come
        return None
    return None if unseen else coding


def _in_form(picture: Any, form: Form) -> Any:
    return picture if form == "one" else [picture]


def _try_batches(call: Callable[[Any], Any], singles: Singles, form: Form) -> Layout:
    """Find the fields that explain every batch, and the fields of samples for nested lists.

    The fields are found on some batches and held to one more, that nobody has looked at before.
    """
    tried = [_run(call, singles, batch) for batch in BATCHES if max(batch) < len(singles)]
    layout = Layout(find_fields([*(([output], output) for _, output in singles), *tried], flat=True))
    kept_back = _run(call, singles, [i for i in HELD_OUT if i < len(singles)])
    for outputs, expected in (*tried, kept_back):
        same_outcome(lambda outputs=outputs: layout.join(outputs), expected, f"a batch of {len(outputs)}")  # type: ignore[misc]
    return try_nested(call, singles, layout) if form == "nested" else layout


def _run(call: Callable[[Any], Any], singles: Singles, batch: Batch) -> tuple[list[Any], Any]:
    """Return the outputs of a batch's pictures, and what the processor gives for the batch."""
    return [singles[i][1] for i in batch], outcome_of(call, [singles[i][0] for i in batch])
