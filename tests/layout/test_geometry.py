"""Geometry: outputs without their pixels, small, and readable by code that expects tensors."""

import numpy as np
import torch
from transformers import BatchFeature

from mmcache.items import freeze
from mmcache.layout.compare import difference
from mmcache.layout.geometry import filled, outline, summary

OUTPUT = {
    "pixel_values": torch.rand(1000, 64),
    "image_grid_thw": torch.tensor([[1, 4, 6]]),
    "mask": torch.ones(40, 40, dtype=torch.bool),
    "indices": torch.zeros(5000, dtype=torch.int64),
    "array": np.ones((30, 40), np.float32),
    "sizes": np.array([[480, 640]]),
    "rows": [[2, 3]],
    "note": "x",
}


def test_an_outline_keeps_integers_and_takes_pixels_and_masks_out() -> None:
    outlined = outline(OUTPUT)
    assert list(outlined) == list(OUTPUT)
    for name in ("pixel_values", "mask", "indices"):
        assert outlined[name].is_meta
        assert (outlined[name].shape, outlined[name].dtype) == (OUTPUT[name].shape, OUTPUT[name].dtype)  # type: ignore[attr-defined]
    assert difference(OUTPUT["image_grid_thw"], outlined["image_grid_thw"]) == ""
    assert difference(OUTPUT["sizes"], outlined["sizes"]) == ""
    assert outlined["array"].strides == (0, 0)
    assert outlined["rows"] == [[2, 3]]


def test_an_outline_is_independent_of_the_output() -> None:
    output = BatchFeature({"grid": torch.tensor([1]), "rows": [1]})
    outlined = outline(output)
    output["grid"].fill_(9)
    output["rows"].append(2)
    assert outlined["grid"].tolist() == [1]
    assert outlined["rows"] == [1]


def test_pictures_of_one_size_have_one_outline_whatever_is_on_them() -> None:
    def output(seed: int, grid: int) -> dict[str, torch.Tensor]:
        return {
            "pixels": torch.rand(grid, 5, generator=torch.Generator().manual_seed(seed)),
            "grid": torch.tensor([grid]),
        }

    assert difference(outline(output(1, 4)), outline(output(2, 4))) == ""
    assert difference(outline(output(1, 4)), outline(output(2, 5))) != ""


def test_a_filled_outline_can_be_read_and_takes_no_memory() -> None:
    shapes = filled(outline(OUTPUT))
    assert shapes["pixel_values"].shape == (1000, 64)
    assert shapes["pixel_values"].sum() == 0
    assert shapes["pixel_values"].untyped_storage().nbytes() == 4
    assert shapes["image_grid_thw"].prod() == 24
    assert shapes["array"].sum() == 0


def test_a_summary_is_plain_python() -> None:
    assert summary(outline(OUTPUT)) == {
        "pixel_values": (1000, 64), "image_grid_thw": [[1, 4, 6]], "mask": (40, 40), "indices": (5000,),
        "array": (30, 40), "sizes": [[480, 640]], "rows": [[2, 3]], "note": "x",
    }  # fmt: skip


def test_an_outline_is_small_where_the_item_is_large() -> None:
    assert freeze(OUTPUT).nbytes > 250_000
    assert (
        sum(
            leaf.numel() * leaf.element_size()
            for leaf in outline(OUTPUT).values()
            if isinstance(leaf, torch.Tensor) and not leaf.is_meta
        )
        < 100
    )
