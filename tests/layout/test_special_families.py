"""Real processors whose batches are no plain concatenation: the trial finds how they join, and it holds."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers

from mmcache.layout import Along, Batched, Field, Largest, Layout, Nested, Padded, PaddedLists, RunningOffset, Sometimes
from mmcache.layout.compare import difference
from mmcache.layout.trial import Calls, try_processor
from mmcache.layout.verdict import Verdict
from tests.pictures import picture

ROWS, ZEROS = Batched(), Padded(0)
MINICPM: dict[str, Field] = {
    "pixel_values": Along(-1),
    "target_sizes": ROWS,
    "grids": ROWS,
    "num_patches_per_image": ROWS,
}
DEEPSEEK: dict[str, Field] = {"pixel_values": ROWS, "num_local_patches": ROWS, "pixel_values_local": Sometimes(ROWS)}
MLLAMA: dict[str, Field] = dict.fromkeys(
    ["pixel_values", "aspect_ratio_ids", "aspect_ratio_mask", "num_tiles"], Nested(0)
)
SAMPLES: dict[str, Field] = {
    "pixel_values": ZEROS,
    "aspect_ratio_ids": ZEROS,
    "aspect_ratio_mask": Padded((1, 0, 0, 0)),
    "num_tiles": ROWS,
}
ONEVISION: dict[str, Field] = {"pixel_values": ZEROS, "image_sizes": ROWS, "batch_num_images": ROWS}

FAMILIES: dict[str, tuple[dict[str, Any], Layout]] = {
    "MiniCPMV4_6ImageProcessor": ({"scale_resolution": 112}, Layout(MINICPM)),
    "MiniCPMOcrImageProcessor": ({"scale_resolution": 112}, Layout(MINICPM)),
    "DeepseekOcr2ImageProcessor": ({"tile_size": 192, "size": {"height": 256, "width": 256}}, Layout(DEEPSEEK)),
    "UnlimitedOcrImageProcessor": (
        {"tile_size": 192, "size": {"height": 256, "width": 256}},
        Layout(
            {"pixel_values": ROWS, "pixel_values_local": Sometimes(ROWS), "num_local_patches": ROWS, "patches_grid": ROWS}
        ),
    ),
    "Step3p7ImageProcessor": (
        {},
        Layout({
            "pixel_values": ROWS, "num_local_patches": ROWS, "pixel_values_local": Sometimes(ROWS),
            "patch_newline_masks": Sometimes(PaddedLists(False), 1),
        }),
    ),
    "Molmo2ImageProcessor": (
        {},
        Layout({
            "pixel_values": ROWS, "image_token_pooling": RunningOffset("pixel_values", 2), "image_grids": ROWS,
            "image_num_crops": ROWS,
        }),
    ),
    "AriaImageProcessor": (
        {"split_image": True, "max_image_size": 490, "split_resolutions": [[490, 490], [490, 980], [980, 490]]},
        Layout({"pixel_values": ROWS, "pixel_mask": ROWS, "num_crops": Largest()}),
    ),
    "MllamaImageProcessor": ({"size": {"height": 56, "width": 56}}, Layout(MLLAMA, SAMPLES)),
    "LlavaOnevisionImageProcessor": (
        {"size": {"height": 56, "width": 56}, "image_grid_pinpoints": [[56, 56], [56, 112], [112, 56], [112, 112]]},
        Layout(ONEVISION, ONEVISION, whole_samples=True),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Small tensors on several threads are slower than on one, by a factor of ten on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# Not the trial's sizes: small, and large enough for several tiles, in different numbers.
NEW = [picture(1, 800, 400), picture(2, 90, 64), picture(3, 240, 520)]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_special_family_gets_the_layout_that_it_has_and_it_holds_for_new_pictures(name: str) -> None:
    options, expected = FAMILIES[name]
    processor = getattr(transformers, name)(**options)
    found = try_processor(Calls(lambda images: processor(images, return_tensors="pt")), picture(1), "nested")
    assert found == Verdict(layout=expected, steady_geometry=True), found.reason or found.layout
    for tensors in ("pt", "np", None):  # the layout is the same for all

        def call(images: Any, tensors: str | None = tensors) -> Any:
            return processor(images, return_tensors=tensors)

        singles = [call([image]) for image in NEW]
        for order in ([0, 1, 2], [1, 0, 1]):
            batch = call([NEW[i] for i in order])
            assert difference(batch, expected.join([singles[i] for i in order])) == "", (tensors, order)
        nested = [[NEW[1]], [NEW[0], NEW[2]]]
        if expected.whole_samples:
            joined = expected.join_samples([call([sample]) for sample in nested])
        else:
            joined = expected.join_nested([singles[i] for i in (1, 0, 2)], [1, 2])
        assert difference(call(nested), joined) == "", tensors


@pytest.mark.parametrize("name", ["PPOCRV5ServerRecImageProcessor", "PPOCRV6SmallRecImageProcessor"])
def test_where_the_widest_of_a_batch_decides_only_a_list_of_one_is_served(name: str) -> None:
    processor = getattr(transformers, name)()
    flat = try_processor(Calls(lambda images: processor(images, return_tensors="pt")), picture(1), "flat")
    assert (flat.served, flat.alone, flat.layout) == (False, True, None)
    assert "no layout explains how 'pixel_values'" in flat.reason
    nested = try_processor(Calls(lambda images: processor(images, return_tensors="pt")), picture(1), "nested")
    assert (nested.served, nested.alone) == (False, False)
