"""The matrix itself: it sees a cache that is wrong, and one that does nothing."""

import random
from typing import Any

import pytest

from mmcache.items import Item
from mmcache.processing import ProcessorCall
from tests.matrix.judging import judge

CLASS, SEED = "BeitImageProcessor", "judging"

plain_join = ProcessorCall.join


def draws(call: ProcessorCall, items: Any) -> Any:
    random.random()
    return plain_join(call, items)


def writes_into_the_image(call: ProcessorCall, items: Any) -> Any:
    call.sources[0].putpixel((0, 0), 0)
    return plain_join(call, items)


def fails(call: ProcessorCall, items: Any) -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("join", "seen"),
    [
        (draws, "the random generators are left in another state"),
        (writes_into_the_image, "an image was changed"),
        (fails, "faults inside the cache"),
    ],
)
def test_a_cache_with_side_effects_or_faults_is_seen(join: Any, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessorCall, "join", join)
    judgement = judge(CLASS, SEED)
    assert any(seen in difference for difference in judgement.differences), judgement.differences


def test_outputs_that_share_the_stores_memory_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    thaw, thawed = Item.thaw, dict[int, Any]()
    monkeypatch.setattr(Item, "thaw", lambda item: thawed.setdefault(id(item), thaw(item)))
    judgement = judge(CLASS, SEED)
    assert any("bits differ" in difference for difference in judgement.differences), judgement.differences


def test_a_cache_that_is_switched_off_serves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMCACHE_DISABLED", "1")
    judgement = judge(CLASS, SEED)
    assert (judgement.served, judgement.differences) == ((), ())
    assert set(judgement.bypassed) == {"the cache is disabled"}
