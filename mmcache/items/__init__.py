"""What one image became, kept so that nobody outside can change it."""

from mmcache.items.item import Item, NotStorable, copy_tree, freeze, is_tensor

__all__ = ["Item", "NotStorable", "copy_tree", "freeze", "is_tensor"]
