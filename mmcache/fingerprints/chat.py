"""Chat content: the dicts in which a message carries a picture.

Such as ``{"type": "image", "image": X, "max_pixels": 200704}`` or ``{"type": "image_url", "image_url": {"url": X}}``.
"""

from enum import Enum
from typing import Any

from mmcache.errors import UnsupportedSource

# Under which a source stands, in the dialects of Qwen, OpenAI and transformers. All else are values like other arguments.
_CARRIERS = frozenset({"image", "image_url", "url", "path", "base64"})


class _Place(Enum):
    """Marks where something was taken out; an enum, since no content can hold this one."""

    SOURCE = "a source"
    CONTENT = "content inside of content"


def taken_apart(content: dict[Any, Any], *, inner: bool = False) -> tuple[list[tuple[Any, ...]], list[Any]]:
    """Return the entries of chat content in order, with places for the sources in it, and the sources.

    Raises `UnsupportedSource` where there is none.
    """
    entries: list[tuple[Any, ...]] = []
    sources: list[Any] = []
    for name, value in content.items():
        if name not in _CARRIERS or value is None:
            entries.append((name, value))
        elif type(value) is dict and not inner:
            within, found = taken_apart(value, inner=True)
            entries.append((name, _Place.CONTENT, within))
            sources += found
        else:
            entries.append((name, _Place.SOURCE))
            sources.append(value)
    if not sources:
        raise UnsupportedSource(f"a dict without a source under any of {', '.join(sorted(_CARRIERS))}")
    return entries, sources
