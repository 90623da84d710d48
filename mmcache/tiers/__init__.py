"""The places where items live: memory."""

from mmcache.tiers.memory import MemoryInfo, MemoryTier, Sized

__all__ = ["MemoryInfo", "MemoryTier", "Sized"]
