"""What one image became, kept so that nobody outside can change it."""

from mmcache.items.codes import Coded, NotCodable
from mmcache.items.item import Item, NotStorable, cast, copy_tree, expanded, freeze, is_tensor

__all__ = ["Coded", "Item", "NotCodable", "NotStorable", "cast", "copy_tree", "expanded", "freeze", "is_tensor"]
