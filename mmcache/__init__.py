"""A content-addressed cache for image preprocessing in vision-language inference."""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mmcache.errors import (
    BadArgument,
    InUse,
    ItemGone,
    MissingExtra,
    MMCacheError,
    NotEncodable,
    NotIdentifiable,
    NotJoinable,
    SourceChanged,
    UnsupportedSource,
)

if TYPE_CHECKING:
    from mmcache import layout
    from mmcache.cache import Cache
    from mmcache.fingerprints import Fingerprint, fingerprint
    from mmcache.functions import CachedCallable, cached
    from mmcache.lengths import geometry
    from mmcache.stages import Stages
    from mmcache.stats import CacheInfo
    from mmcache.tickets import Request, Ticket
    from mmcache.verifying import Report, verify
    from mmcache.wrapping import Installation, install, unwrap, wrap

__version__ = "0.1.0"

# Where each name comes from, so that importing mmcache loads nothing that it may not need.
_HOMES = {
    "Cache": "mmcache.cache",
    "CacheInfo": "mmcache.stats",
    "CachedCallable": "mmcache.functions",
    "Fingerprint": "mmcache.fingerprints",
    "Installation": "mmcache.wrapping",
    "Report": "mmcache.verifying",
    "Request": "mmcache.tickets",
    "Stages": "mmcache.stages",
    "Ticket": "mmcache.tickets",
    "cached": "mmcache.functions",
    "fingerprint": "mmcache.fingerprints",
    "geometry": "mmcache.lengths",
    "install": "mmcache.wrapping",
    "layout": "mmcache.layout",
    "unwrap": "mmcache.wrapping",
    "verify": "mmcache.verifying",
    "wrap": "mmcache.wrapping",
}

__all__ = [
    "BadArgument",
    "Cache",
    "CacheInfo",
    "CachedCallable",
    "Fingerprint",
    "InUse",
    "Installation",
    "ItemGone",
    "MMCacheError",
    "MissingExtra",
    "NotEncodable",
    "NotIdentifiable",
    "NotJoinable",
    "Report",
    "Request",
    "SourceChanged",
    "Stages",
    "Ticket",
    "UnsupportedSource",
    "cached",
    "fingerprint",
    "geometry",
    "install",
    "layout",
    "unwrap",
    "verify",
    "wrap",
]

logging.getLogger("mmcache").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    """Load a public name's module when the name is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mmcache' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    value = home if name == "layout" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Show the public names, loaded or not."""
    return sorted(__all__)
