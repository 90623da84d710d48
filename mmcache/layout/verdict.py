"""How a trial ended."""

from dataclasses import dataclass

from mmcache.layout.coding import Coding
from mmcache.layout.conversion import Conversion
from mmcache.layout.fields import Layout


@dataclass(frozen=True)
class Verdict:
    """How a trial ended: a layout that was tried to be exact (none is needed for a single image), or a reason.

    ``steady_geometry`` says that images of one size had outputs of one shape, so that a size's geometry may be
    remembered. ``alone`` says that a list of one image may be served whatever the reason, which is then one against
    batches only. With a ``conversion`` items are those of ``return_tensors=None``, with a ``coding`` they are kept as
    codes.
    """

    reason: str = ""
    layout: Layout | None = None
    steady_geometry: bool = False
    alone: bool = False
    conversion: Conversion | None = None
    coding: Coding | None = None

    @property
    def as_it_came(self) -> bool:
        """Whether an item's output for a single image is that of the processor, in every way."""
        return self.conversion is None and self.coding is None

    @property
    def served(self) -> bool:
        """Whether calls of this structure may be served from the cache."""
        return not self.reason
