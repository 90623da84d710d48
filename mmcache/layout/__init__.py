"""How the outputs of single images make the output of a batch: fields, and the trial that finds and proves them."""

from mmcache.layout.fields import Batched, Field, FlatFromSizes, Layout, Nested, Padded, PerImageList, Same

__all__ = ["Batched", "Field", "FlatFromSizes", "Layout", "Nested", "Padded", "PerImageList", "Same"]
