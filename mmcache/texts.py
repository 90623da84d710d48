"""Pictures that a processor is given as text (a path, base64, a data URL): looked up before anything is decoded.

The bytes that a text names are digested; if there is an alias for them, the content is known, and nothing is loaded until
an item turns out to be missing. Loading is always the processor's own, with whatever it does to a picture.
"""

import functools
from typing import Any

from mmcache.aliases import Content
from mmcache.cache import Cache
from mmcache.calls import Bypass
from mmcache.errors import NotEncodable, NotIdentifiable, UnsupportedSource
from mmcache.fingerprints import UndecodableSource, digest_encoded, encode, is_url, kind_of, read_encoded
from mmcache.fingerprints.identity import describe_code, has_foreign_code, plain_class, surroundings
from mmcache.layout import probes
from mmcache.layout.probes import Trait

_NOT_LOADED = "an image given as text that cannot be loaded"


class TextLoader:
    """A processor's way from texts to images."""

    def __init__(self, cache: Cache, processor: Any) -> None:
        """Load nothing yet."""
        self._cache, self._processor = cache, processor

    def source(self, text: str) -> "TextSource":
        """Return the picture that a text names, loaded only if nothing is known of its bytes; may raise `Bypass`."""
        if is_url(text):
            raise Bypass("a URL names no content")
        named = self._bytes_named(text)
        if (content := self._cache.aliases.get(named)) is not None:
            return TextSource(self, text, content)
        image, content = self.load(text)
        if self._bytes_named(text) == named:  # else the file was replaced meanwhile: who knows what was loaded
            self._cache.aliases.put(named, content)
        return TextSource(self, text, content, image)

    def load(self, text: str) -> tuple[Any, Content]:
        """Load a picture; raise `Bypass` where that fails, since the error is the plain call's."""
        try:
            image = self._processor.fetch_images(text)
        except Exception:  # noqa: BLE001 - whatever it is, the plain call raises it again, as its own
            raise Bypass(_NOT_LOADED) from None
        check_kind(image)
        try:
            fingerprint = self._cache.fingerprint(image, metadata=False)
        except (UnsupportedSource, NotEncodable) as refused:
            raise Bypass(str(refused)) from None
        return image, Content(fingerprint, trait_of(image), size_of(image))

    @functools.cached_property
    def _identity(self) -> bytes:
        """What identifies the code that loads."""
        cls = plain_class(type(self._processor))
        if has_foreign_code(cls) or not hasattr(cls, "fetch_images"):
            raise Bypass("images given as text, to a loader that was not tried")
        try:
            return encode((describe_code(cls.fetch_images), surroundings()))
        except (NotEncodable, NotIdentifiable) as refused:
            raise Bypass(str(refused)) from None

    def _bytes_named(self, text: str) -> bytes:
        """Return the digest of a file's bytes, or of a text that is no path, and of how they are loaded."""
        loader, hasher = self._identity, self._cache.hasher
        if kind_of(text) != "path":
            return digest_encoded(text.encode("utf-8", "surrogatepass"), "encoded", hasher, loader)
        try:
            return digest_encoded(read_encoded(text), "path", hasher, loader)
        except UndecodableSource:
            raise Bypass(_NOT_LOADED) from None


class TextSource:
    """A picture given as text, whose content is known."""

    def __init__(self, loader: TextLoader, text: str, content: Content, image: Any = None) -> None:
        """``image`` is the picture, if it had to be loaded to know its content."""
        self.content = content
        self._loader, self._text, self._image = loader, text, image

    def image(self) -> Any:
        """Return the picture; raise `Bypass` if it is no longer the one whose content is known."""
        if self._image is None:
            image, content = self._loader.load(self._text)
            if content != self.content:
                raise Bypass("an image given as text that changed meanwhile")
            self._image = image
        return self._image


def check_kind(image: Any) -> None:
    """Raise `Bypass` for what is no image, array or tensor."""
    if kind_of(image) not in ("image", "array", "tensor"):
        raise Bypass(f"images of type {type(image).__module__}.{type(image).__qualname__}")


def loaded(source: Any) -> Any:
    """Return a source, or a sample of sources, with all that is given as text loaded."""
    if isinstance(source, list):
        return [loaded(image) for image in source]
    return source.image() if isinstance(source, TextSource) else source


def trait_of(source: Any) -> Trait:
    """Return the trait of a source, without loading it."""
    return source.content.trait if isinstance(source, TextSource) else probes.trait_of(source)


def size_of(source: Any) -> tuple[int, ...]:
    """Return the size of a source, without loading it."""
    return source.content.size if isinstance(source, TextSource) else probes.size_of(source)
