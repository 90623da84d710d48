"""What one image became, kept so that nobody outside can change it."""

from mmcache.items.codes import Coded, NotCodable
from mmcache.items.images import is_image
from mmcache.items.item import Item, copy_tree, destined, expanded, freeze, is_tensor
from mmcache.items.storable import NotStorable

__all__ = [
    "Coded",
    "Item",
    "NotCodable",
    "NotStorable",
    "copy_tree",
    "destined",
    "expanded",
    "freeze",
    "is_image",
    "is_tensor",
]
