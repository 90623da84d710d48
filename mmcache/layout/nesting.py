"""What nested lists need beyond the layout of flat ones: nothing, fields of samples, or samples kept whole."""

from collections.abc import Callable, Sequence
from typing import Any

from mmcache.errors import NotJoinable
from mmcache.layout.candidates import Unexplained, find_fields
from mmcache.layout.fields import Layout
from mmcache.layout.outcomes import DRAWS, Disagreement, outcome_of, same_outcome
from mmcache.layout.probes import NESTED_BATCHES, NESTED_HELD_OUT

# A batch of images (or of samples) by the numbers of their pictures.
Batch = Sequence[Any]

# Pictures with their outputs.
Singles = Sequence[tuple[Any, Any]]


def try_nested(call: Callable[[Any], Any], singles: Singles, layout: Layout) -> Layout:
    """Return the layout with what nested lists need beyond it: nothing, fields of samples, or samples kept whole."""
    batches = [_within(batch, len(singles)) for batch in (*NESTED_BATCHES, NESTED_HELD_OUT)]
    outcomes = [_nested_outcome(call, singles, batch) for batch in batches]
    disagreement: Exception | None = None
    for attempt in (_joined_flat, _joined_by_samples, _joined_whole):
        try:
            candidate, join = attempt(call, singles, layout, list(zip(batches, outcomes, strict=True)))
            for batch, expected in zip(batches, outcomes, strict=True):
                same_outcome(lambda b=batch: join(b), expected, f"a nested list of {[len(s) for s in batch]}")  # type: ignore[misc] # noqa: B023
        except (Unexplained, NotJoinable, Disagreement) as found:
            if str(found) == DRAWS:
                raise
            disagreement = found
        else:
            return candidate
    assert disagreement is not None, "there are attempts"
    raise disagreement


# A layout, and how it joins a batch of samples.
_Attempt = tuple[Layout, Callable[[Batch], Any]]


def _joined_flat(_: Any, singles: Any, layout: Layout, __: Any) -> _Attempt:
    """Nested lists are flat lists of their images."""
    return layout, lambda batch: layout.join([singles[i][1] for sample in batch for i in sample])


def _joined_by_samples(_: Any, singles: Any, layout: Layout, tried: Sequence[tuple[Batch, Any]]) -> _Attempt:
    """Images make samples as a flat list does, and samples make batches by fields of their own."""

    def samples(batch: Batch) -> list[Any]:
        return [layout.join([singles[i][1] for i in sample]) for sample in batch]

    fields = find_fields([(samples(batch), outcome) for batch, outcome in tried[:-1]], flat=False)
    candidate = Layout(layout.fields, fields)
    return candidate, lambda batch: candidate.join_samples(samples(batch))


def _joined_whole(call: Any, singles: Any, layout: Layout, tried: Sequence[tuple[Batch, Any]]) -> _Attempt:
    """Images depend on the others of their sample, but samples do not depend on each other."""
    known: dict[Any, Any] = {}

    def samples(batch: Batch) -> list[Any]:
        for sample in batch:
            if sample not in known:
                known[sample] = _nested_outcome(call, singles, [sample])
                if isinstance(known[sample], Exception):
                    raise Disagreement(f"a sample alone raises {type(known[sample]).__name__}")
        return [known[sample] for sample in batch]

    fields = find_fields([(samples(batch), outcome) for batch, outcome in tried[:-1]], flat=False)
    candidate = Layout(layout.fields, fields, whole_samples=True)
    return candidate, lambda batch: candidate.join_samples(samples(batch))


def _within(batch: Batch, count: int) -> Batch:
    """Return a nested batch without the pictures that are refused alone."""
    return [sample for sample in (tuple(i for i in sample if i < count) for sample in batch) if sample]


def _nested_outcome(call: Callable[[Any], Any], singles: Singles, batch: Batch) -> Any:
    return outcome_of(call, [[singles[i][0] for i in sample] for sample in batch])
