"""Snapshots: whatever changes in place, at any depth, is seen, and what is not fixed is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL.Image import Resampling
from transformers.image_utils import SizeDict

from mmcache.fingerprints.snapshot import NotFixed, Snapshot

quick = settings(deadline=None, max_examples=100)

fixed = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3),
    st.sampled_from([Resampling.BICUBIC, torch.float32, torch.device("cpu")]),
)  # fmt: skip
trees = st.recursive(
    fixed,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(st.text(max_size=2), inner),
        st.builds(SizeDict, height=inner),
    ),
    max_leaves=8,
)  # fmt: skip


def containers(value: Any) -> list[Any]:
    """Return everything in a tree that can change in place."""
    if isinstance(value, list | tuple):
        return [*([value] if isinstance(value, list) else []), *(found for v in value for found in containers(v))]
    if isinstance(value, dict | SizeDict):
        members = value if isinstance(value, dict) else vars(value)
        return [members, *(found for v in members.values() for found in containers(v))]
    return []


@given(trees)
@quick
def test_what_stays_as_it_is_is_unchanged(value: Any) -> None:
    assert Snapshot(value).unchanged()


@given(st.lists(trees, min_size=1, max_size=4), st.data())
@quick
def test_every_change_at_any_depth_is_seen(value: list[Any], data: st.DataObject) -> None:
    snapshot = Snapshot(value)
    place = data.draw(st.sampled_from(containers(value)))
    change = data.draw(st.sampled_from(["more", "other", "fewer"] if place else ["more"]))
    key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place)))) if place else None
    if change == "more":
        place.update({object(): 1}) if isinstance(place, dict) else place.append(1)
    elif change == "other":
        place[key] = object()
    else:
        del place[key]
    assert not snapshot.unchanged()


@pytest.mark.parametrize("others", [(1, True), (0.0, -0.0), (1, 1.0)])
def test_equal_values_of_other_types_or_bits_differ(others: tuple[Any, Any]) -> None:
    held, other = others
    places: list[tuple[Any, Any]] = [([held], 0), ({"a": held}, "a"), (SizeDict(height=held), "height")]
    for value, place in places:
        snapshot = Snapshot(value)
        assert snapshot.unchanged()
        value[place] = other
        assert not snapshot.unchanged()


@pytest.mark.parametrize("value", [np.zeros(2), torch.zeros(2), {1, 2}, object(), bytearray(b"a"), len, int], ids=repr)
def test_what_may_change_unseen_is_refused(value: Any) -> None:
    with pytest.raises(NotFixed):
        Snapshot([{"deep": (value,)}])


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(NotFixed):
        Snapshot(value)
