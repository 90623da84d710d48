"""``mmcache.fingerprint``: what a picture is, for everybody and for ever."""

import io
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmcache.fingerprints.encoding import encode
from mmcache.fingerprints.hashers import SHA256
from mmcache.fingerprints.loading import UndecodableSource
from mmcache.fingerprints.pixels import update_pixels
from mmcache.fingerprints.sources import SCHEME, digest_source, kind_of, read_encoded, unsupported

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Fingerprint:
    """The digest of a source's content, with the algorithm that made it.

    ``str()`` is ``"sha256:"`` and the digest in hex: safe to print, to store and to compare.
    """

    algorithm: str
    digest: bytes

    def __str__(self) -> str:
        """Return ``algorithm:hex``."""
        return f"{self.algorithm}:{self.digest.hex()}"


def fingerprint(source: object) -> Fingerprint:
    """Return the fingerprint of an image: unkeyed sha256, the same on every machine and in every version.

    A PIL image counts by mode, size, pixels, palette and transparency; an array or tensor by dtype, shape and values
    (of any memory layout). Encoded bytes, ``io.BytesIO`` (from its position on) and paths
    count by the picture in them, as Hugging Face's loader gives it: decoded, turned upright as EXIF says, and
    converted to RGB. So a file, its bytes and a lossless copy in another format agree with each other. They differ
    from the opened image, which a processor takes as it is. A list or tuple of sources counts by its members in order.

    Raises ``UnsupportedSource`` for anything else, ``NotEncodable`` for a transparency that is no plain value, and
    the loader's own error for what cannot be decoded.

    >>> from PIL import Image
    >>> str(fingerprint(Image.new("L", (2, 2))))[:15]
    'sha256:3c1e732d'
    """
    try:
        return Fingerprint(SHA256.algorithm, _content_digest(source))
    except UndecodableSource as undecodable:
        error = undecodable.error
    except RecursionError:
        raise unsupported(source) from None
    raise error


def _content_digest(source: object) -> bytes:
    if type(source) in (list, tuple):
        members = [_content_digest(member) for member in source]  # type: ignore[attr-defined]
        return SHA256.digest(encode(("mmcache source", SCHEME, "list", members)))
    kind = kind_of(source)
    if kind is None:
        raise unsupported(source)
    if kind in ("encoded", "path"):
        return _loaded_digest(source)
    return digest_source(source, SHA256)


class _NamedBytes(io.BytesIO):
    """The bytes of a source, named in errors as Pillow names what it is given."""

    def __init__(self, source: object) -> None:
        super().__init__(read_encoded(source))
        self._source = source

    def __repr__(self) -> str:
        if isinstance(self._source, (str, os.PathLike)):
            return repr(os.fspath(self._source))
        return repr(self._source) if isinstance(self._source, io.BytesIO) else super().__repr__()


def _loaded_digest(source: object) -> bytes:
    image = _loaded(_NamedBytes(source))
    state = SHA256.new()
    state.update(encode(("mmcache source", SCHEME, "loaded", image.size)))
    update_pixels(image, state)
    return state.digest()


def _loaded(file: io.BytesIO) -> "Image":
    """Decode a file as ``transformers.image_utils.load_image`` does."""
    from PIL import Image, ImageOps

    try:
        with Image.open(file) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:
        raise UndecodableSource(error) from error
