"""108 pairs of sources, measured on real processors: which must differ, which should be equal."""

import json
from types import ModuleType
from typing import Any

import pytest

from mmcache.fingerprints import Fingerprint, choose_hasher, digest_source, fingerprint, kind_of
from tests.corpus.conftest import corpus_folder

pytestmark = [pytest.mark.corpus, pytest.mark.filterwarnings("ignore")]


def pairs() -> list[dict[str, str]]:
    folder = corpus_folder()
    if folder is None:
        return []
    found: list[dict[str, str]] = json.loads((folder / "pairs.json").read_text())["pairs"]
    return found


def content(source: object) -> Fingerprint | None:
    """The fingerprint, or None where the source does not decode (and so has no picture to be equal to)."""
    try:
        return fingerprint(source)
    except (OSError, ValueError):
        return None


def both_sides(pair: dict[str, str], namespace: ModuleType) -> tuple[Any, Any]:
    """Fingerprints of the two sides, which for a pair "in place" are one object before and after."""
    if "inplace" in pair:
        scope = namespace.scope(pair["a"])
        before = content(scope["x"])
        exec(pair["inplace"], scope)
        return before, content(scope["x"])
    return content(namespace.build(pair["a"])), content(namespace.build(pair["b"]))


def test_the_corpus_has_all_its_pairs(corpus: object) -> None:
    assert len(pairs()) == 108
    assert {pair["relation"] for pair in pairs()} == {"must_differ", "should_equal", "config_dependent"}


@pytest.mark.parametrize("pair", pairs(), ids=lambda pair: f"{pair['id']} {pair['relation']}")
def test_a_pair_is_as_equal_as_processors_find_it(pair: dict[str, str], namespace: ModuleType) -> None:
    one, other = both_sides(pair, namespace)
    again, _ = both_sides(pair, namespace)
    assert one == again
    if pair["relation"] == "must_differ":
        assert one != other, pair["why"]
    elif pair["relation"] == "should_equal":
        assert one is not None
        assert one == other, pair["why"]


@pytest.mark.parametrize(
    "pair", [pair for pair in pairs() if pair["relation"] == "must_differ"], ids=lambda pair: pair["id"]
)
def test_what_must_differ_differs_for_a_cache_too(pair: dict[str, str], namespace: ModuleType) -> None:
    """The digest that a cache looks up by, where files count by their bytes and not by the picture in them."""
    hasher = choose_hasher("auto", secret=None, exposed=False)
    sides = [namespace.build(pair["a"]), None]
    if "inplace" in pair:
        sides[1] = namespace.build(f"{pair['a']}\n{pair['inplace']}")
    else:
        sides[1] = namespace.build(pair["b"])
    if any(kind_of(side) is None or content(side) is None for side in sides):
        pytest.skip("a list, or a file that does not decode: no single source")
    assert digest_source(sides[0], hasher) != digest_source(sides[1], hasher), pair["why"]
