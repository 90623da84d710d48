"""The scenario's counting and comparing: what the demo claims must be able to come out otherwise."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from transformers.feature_extraction_utils import BatchFeature

import mmcache
from mmcache.cli.pictures import Picture, carried_pictures
from mmcache.cli.scenario import Evidence, Measurements, RealRuns, differences, follow, plain, with_stages

QWEN = transformers.Qwen2VLImageProcessorPil


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return [
        replace(picture, image=picture.image.resize((120 + 28 * number, 90)))
        for number, picture in enumerate(carried_pictures()[:5])
    ]


def test_the_counter_tells_pictures_from_everything_else_and_leaves_the_class_as_it_was(
    pictures: list[Picture],
) -> None:
    processor, before = QWEN(), vars(QWEN).get("preprocess")
    with RealRuns(QWEN) as runs:
        runs.expect([picture.image for picture in pictures[:2]])
        processor(pictures[2].image)
        assert (runs.pictures, runs.others, runs.first_at) == (0, 1, None)
        processor([pictures[0].image])
        assert runs.first_at is not None
        first_at = runs.first_at
        processor(images=[pictures[0].image, pictures[1].image])
        assert (runs.pictures, runs.others, runs.first_at) == (3, 1, first_at)
        runs.expect([pictures[2].image])
        assert (runs.pictures, runs.others) == (0, 0)
    processor(pictures[2].image)
    assert (runs.pictures, runs.others) == (0, 0)
    assert vars(QWEN).get("preprocess") is before


def test_a_class_that_inherits_its_preprocess_inherits_it_again_afterwards(pictures: list[Picture]) -> None:
    heir = type("Heir", (QWEN,), {})
    with RealRuns(heir) as runs:
        runs.expect([pictures[0].image])
        heir()(pictures[0].image)
        assert runs.pictures == 1
    assert "preprocess" not in vars(heir)


def test_the_counter_does_not_change_what_a_processor_is_for_the_cache(pictures: list[Picture]) -> None:
    with mmcache.Cache("64MiB") as cache, mmcache.Stages(QWEN(), cache=cache) as stages:
        key = stages.add(pictures[0].image).key
        with RealRuns(QWEN), mmcache.Stages(QWEN(), cache=cache) as counted:
            assert counted.add(pictures[0].image).key == key


def test_each_turn_has_fresh_pictures_and_every_request_is_added_before_one_is_executed(
    pictures: list[Picture],
) -> None:
    events: list[tuple[str, int]] = []
    seen: list[Any] = []

    def way(image: Any, _: dict[str, Any]) -> tuple[list[list[int]], Callable[[], Any]]:
        assert image.tobytes() == pictures[len(seen) % 5].image.tobytes()
        seen.append(image)
        number = len(seen)
        events.append(("add", number))

        def redeem() -> Any:
            events.append(("execute", number))
            return BatchFeature({"pixel_values": torch.tensor([number])})

        return [[1, number, 1]], redeem

    advanced: list[int] = []
    measured = follow(way, pictures, 2, RealRuns(QWEN), advanced.append)
    turns = [range(1, 6), range(6, 11)]
    assert events == [(stage, number) for turn in turns for stage in ("add", "execute") for number in turn]
    assert len({id(image) for image in seen} - {id(picture.image) for picture in pictures}) == 10
    assert advanced == [4, 1, 4, 1]
    assert [evidence.grid[0][1] for evidence in measured.evidence] == list(range(1, 11))
    assert measured.evidence[6].request == f"{pictures[1].name}, turn 2"


def test_the_two_ways_agree_and_only_one_of_them_runs_the_processor_twice(pictures: list[Picture]) -> None:
    processor = QWEN()
    with RealRuns(QWEN) as runs:
        expected = follow(plain(processor), pictures, 2, runs, unwatched)
        cached = mmcache.Cache("256MiB", verify_rate=0)
        with cached as cache, mmcache.Stages(processor, cache=cache) as stages:
            found = follow(with_stages(stages), pictures, 2, runs, unwatched)
    assert (expected.real_runs, expected.trial_runs) == (2 * 2 * 5, 0)
    assert found.real_runs == 5
    assert found.trial_runs > 0
    assert differences(expected, found) == []
    assert found.total_seconds == found.trial_seconds + found.add_seconds + found.execute_seconds
    assert expected.trial_seconds == 0
    assert found.trial_seconds > 0


def unwatched(_: int) -> None:
    """Progress that nobody watches."""


def _measured(output: Any, grid: int = 1) -> Measurements:
    def way(_: Any, __: dict[str, Any]) -> tuple[list[list[int]], Callable[[], Any]]:
        return [[grid, 2, 2]], lambda: output

    return follow(way, [SQUARE], 1, RealRuns(QWEN), unwatched)


SQUARE = Picture("a square", Image.new("RGB", (8, 8)), 1, 2)


PIXELS = torch.tensor([[0.0, float("nan"), 1.0, 2.0]])


def _output(pixels: torch.Tensor = PIXELS, **more: Any) -> BatchFeature:
    return BatchFeature({"pixel_values": pixels, **more})


def test_equal_bits_do_not_differ_even_where_the_values_are_no_numbers() -> None:
    assert differences(_measured(_output()), _measured(_output(PIXELS.clone()))) == []


@pytest.mark.parametrize(
    "found",
    [
        _output(torch.tensor([[-0.0, float("nan"), 1.0, 2.0]])),
        _output(torch.nextafter(PIXELS, torch.tensor(9.0))),
        _output(PIXELS.double()),
        _output(PIXELS.view(torch.int32)),
        _output(PIXELS.reshape(2, 2)),
        _output(PIXELS[:, :3]),
        _output(more=PIXELS),
        BatchFeature({"pixels": PIXELS}),
        {"pixel_values": PIXELS},
    ],
    ids=["signed zero", "last bit", "dtype", "same bytes", "shape", "length", "more keys", "other key", "container"],
)
def test_whatever_differs_is_found_and_named(found: Any) -> None:
    lines = differences(_measured(_output()), _measured(found))
    assert lines
    assert all(line.startswith("a square, turn 1: ") for line in lines)


def test_a_wrong_grid_in_the_add_stage_differs() -> None:
    (line,) = differences(_measured(_output()), _measured(_output(), grid=3))
    assert "grid [[3, 2, 2]] in the add stage instead of [[1, 2, 2]]" in line


def test_evidence_of_unequal_length_is_not_compared_as_far_as_it_goes() -> None:
    with pytest.raises(ValueError, match="shorter"):
        differences(_measured(_output()), Measurements())


def test_evidence_holds_no_tensors() -> None:
    (evidence,) = _measured(_output()).evidence
    assert isinstance(evidence, Evidence)
    assert evidence.tensors["pixel_values"].startswith("torch.float32 (1, 4) sha256:")
