"""Structures: a size is a whole number over 100 whose name says so, at any depth, and nothing else is."""

from typing import Any

import pytest
from transformers import CLIPImageProcessor, Qwen2VLImageProcessor
from transformers.image_utils import SizeDict

from mmcache.fingerprints.identity import described
from mmcache.structure import with_sizes


def structure(processor: Any, **options: Any) -> bytes:
    return described(processor, options).structure("flat")


@pytest.mark.parametrize(
    ("value", "changed"),
    [
        ({"size": {"height": 224, "width": 90}}, {"size": {"height": 56, "width": 90}}),
        ({"size": 224, "crop_size": (224, [336])}, {"size": 56, "crop_size": (56, [84])}),
        ({"max_pixels": 50176, "patch_size": 14, "longest_edge": 101}, {"max_pixels": 12544, "patch_size": 14, "longest_edge": 25}),
        ({"image_grid_pinpoints": [[336, 672]]}, {"image_grid_pinpoints": [[84, 168]]}),
        ({"outer": {"Max_Size": 400}}, {"outer": {"Max_Size": 100}}),
        ({"crop": SizeDict(height=400)}, {"crop": SizeDict(height=100)}),
        ({"threshold": 200, "image_mean": [123, 117], "pad_value": 114}, {"threshold": 200, "image_mean": [123, 117], "pad_value": 114}),
        ({"size": 224.0, "do_size": True, "width": -400}, {"size": 224.0, "do_size": True, "width": -400}),
        ([224, {0: 224}], [224, {0: 224}]),
    ],
)  # fmt: skip
def test_sizes_are_told_by_their_names(value: Any, changed: Any) -> None:
    found = with_sizes(value, lambda size: size // 4)
    assert found == changed
    assert repr(found) == repr(changed)


def test_another_size_is_the_same_structure() -> None:
    one = structure(Qwen2VLImageProcessor(), size={"longest_edge": 50176, "shortest_edge": 3136})
    assert one == structure(Qwen2VLImageProcessor(), size={"longest_edge": 100352, "shortest_edge": 3136})
    assert structure(Qwen2VLImageProcessor(size={"longest_edge": 12544, "shortest_edge": 3136})) == structure(
        Qwen2VLImageProcessor(size={"longest_edge": 50176, "shortest_edge": 784})
    )


@pytest.mark.parametrize(
    "options",
    [
        {"image_mean": [123, 117, 104]},
        {"image_std": [255, 255, 255]},
        {"rescale_factor": 1 / 127},
        {"do_resize": False},
    ],
    ids=repr,
)
def test_another_number_of_another_kind_is_another_structure(options: dict[str, Any]) -> None:
    assert structure(CLIPImageProcessor(), **options) != structure(CLIPImageProcessor())


def test_whole_means_over_100_differ() -> None:
    assert structure(CLIPImageProcessor(), image_mean=[123] * 3) != structure(
        CLIPImageProcessor(), image_mean=[150] * 3
    )
