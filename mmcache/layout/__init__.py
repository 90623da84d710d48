"""How the outputs of single images make the output of a batch: fields, and the trial that finds and proves them."""

from mmcache.layout.fields import Batched, Field, FlatFromSizes, Layout, Nested, Padded, PerImageList, Same
from mmcache.layout.rare import Along, Largest, PaddedLists, RunningOffset, Sometimes

__all__ = [
    "Along",
    "Batched",
    "Field",
    "FlatFromSizes",
    "Largest",
    "Layout",
    "Nested",
    "Padded",
    "PaddedLists",
    "PerImageList",
    "RunningOffset",
    "Same",
    "Sometimes",
]
