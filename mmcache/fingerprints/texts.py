"""Texts that name a picture, as a function sees them: data URLs, base64 and ``file://`` URLs.

A data URL or base64 text *is* the picture, so it is known by itself, without decoding: two texts of one picture are
two sources. Whether a text is base64 is told from the first bytes of a picture in it; any other text may be a name that
only the function understands, and is no source.
"""

import base64
import binascii
import re
from urllib.parse import urlsplit

from mmcache.errors import UnsupportedSource
from mmcache.fingerprints.encoding import encode
from mmcache.fingerprints.hashers import Hasher

# Two letters or more, so that drives of Windows are none.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")

# Of a media type and its parameters; what stands before the comma of a data URL is never longer in practice.
_LONGEST_MEDIA_TYPE = 1024

# No path is longer: of a longer text that begins like base64 of a picture, the rest is not looked at, as that would cost
# more than its digest. What is shorter than any picture in base64 may be a name.
_LONGEST_PATH = 4096
_SHORTEST_BASE64 = 48
_BASE64 = re.compile(r"[A-Za-z0-9+/=_\s-]+\Z")

# What files of pictures begin with: JPEG, PNG, GIF, TIFF (both byte orders).
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"II*\0", b"MM\0*")
_SIGNATURE_BYTES = 12


def is_url(text: str) -> bool:
    """Whether a text begins like a URL with ``://``, which is never taken for a path."""
    return _URL.match(text) is not None


def file_of(text: str) -> str | None:
    """Return the path in a ``file://`` URL; None for any other text.

    Raises `UnsupportedSource` where loaders disagree on what the path is: some decode ``%20``, some know hosts.
    """
    if not text.startswith("file://"):
        return None
    path = text.removeprefix("file://")
    if not path.startswith("/") or set(path) & set("%?#") or urlsplit(text).path != path:
        raise UnsupportedSource("a file:// URL with a host, escapes or a query: loaders read them differently")
    return path


def digest_text(text: str, hasher: Hasher, decoding: tuple[object, ...]) -> bytes:
    """Return the digest of a data URL or base64 text, which differs from that of any other kind of source.

    ``decoding`` is what decides how pictures are decoded. Raises `UnsupportedSource` for a URL that names no content,
    and for a text that is neither.
    """
    if not _is_data_url(text) and not _is_base64(text):
        named = "a URL names no content" if is_url(text) else "a text that is no file, data URL or base64 picture"
        raise UnsupportedSource(named)
    data = text.encode("utf-8", "surrogatepass")
    state = hasher.new()
    state.update(encode(("mmcache text", *decoding, len(data))))
    state.update(data)
    return state.digest()


def _is_data_url(text: str) -> bool:
    return text.startswith("data:") and "," in text[:_LONGEST_MEDIA_TYPE]


def _is_base64(text: str) -> bool:
    begin = text[: _LONGEST_PATH + 1]
    if len(text) < _SHORTEST_BASE64 or _BASE64.match(begin) is None:
        return False
    try:
        first = base64.b64decode("".join(begin[:64].split())[: _SIGNATURE_BYTES * 4 // 3])
    except binascii.Error:
        return False
    if first.startswith(_SIGNATURES):
        return True
    # WebP and other RIFF, AVIF and HEIC, BMP (whose bytes 6 to 9 are reserved).
    return (
        (first[:4], first[8:]) == (b"RIFF", b"WEBP")
        or first[4:8] == b"ftyp"
        or (first[:2], first[6:10]) == (b"BM", bytes(4))
    )
