"""What mmcache raises, and when.

Nothing here is ever raised because a look-up failed (a fault inside the cache is a logged miss): these say that
something was set up or handed over wrongly, or that a ticket cannot be redeemed any more.

    MMCacheError
    ├── BadArgument        (ValueError)    an argument that is not accepted, with what would be
    ├── NotEncodable       (TypeError)     a value that cannot be hashed exactly
    ├── UnsupportedSource  (TypeError)     a source that is no image, or one that mmcache cannot fingerprint
    ├── NotIdentifiable    (TypeError)     code whose every influence cannot be named; wants ``version=``
    ├── NotJoinable        (ValueError)    outputs of single images that make no batch
    ├── InUse              (RuntimeError)  ``install`` while another cache is installed
    ├── MissingExtra       (ImportError)   an optional package is not there; names the extra that brings it
    ├── ItemGone           (LookupError)   a ticket without its source, and its item is in no tier any more
    └── SourceChanged      (RuntimeError)  the source of a ticket is not what it was when it was added
"""


class MMCacheError(Exception):
    """The root of all errors that mmcache raises."""


class BadArgument(MMCacheError, ValueError):
    """An argument that is not accepted.

    Says what was given and what is accepted: ``BadArgument("max_bytes", -1, "a number of bytes above 0")``.
    """

    def __init__(self, name: str, given: object, accepted: str) -> None:
        """Keep the parts as attributes and write the message from them."""
        self.name, self.given, self.accepted = name, given, accepted
        super().__init__(f"{name}={given!r}: expected {accepted}")


class NotEncodable(MMCacheError, TypeError):
    """A value that cannot be hashed exactly, so that nothing that depends on it is cached."""

    def __init__(self, value: object, where: str = "value") -> None:
        """Keep the type's name, not the value: errors are logged, values may be large or private."""
        self.type_name = f"{type(value).__module__}.{type(value).__qualname__}"
        self.where = where
        super().__init__(
            f"{where} is a {self.type_name}, which cannot be hashed exactly; accepted are None, bool, int, float, "
            f"str, bytes, enums, numpy scalars and arrays, torch tensors, dtypes and devices, and lists, tuples, sets "
            f"and dicts of these"
        )


class UnsupportedSource(MMCacheError, TypeError):
    """A source that mmcache cannot fingerprint; the message says what it is and what is accepted."""


class NotIdentifiable(MMCacheError, TypeError):
    """Code whose every influence on its output cannot be named, so that caching it could give a wrong hit."""

    def __init__(self, what: str, culprit: str) -> None:
        """``what`` is the function or class, ``culprit`` the thing in it that has no identity."""
        self.what, self.culprit = what, culprit
        super().__init__(
            f"{what} cannot be identified safely: {culprit}. Give version=..., a string that you change whenever "
            f"the outputs change"
        )


class NotJoinable(MMCacheError, ValueError):
    """Outputs of single images that make no batch (most often: unequal sizes where the processor refuses them)."""


class InUse(MMCacheError, RuntimeError):
    """``install`` was called while another installation is open."""


class MissingExtra(MMCacheError, ImportError):
    """An optional package is missing; the message names the extra that installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        """``package`` is what is missing, ``extra`` the extra of mmcache that brings it."""
        self.package, self.extra = package, extra
        super().__init__(f"{purpose} needs the package {package}: pip install 'mmcache[{extra}]'", name=package)


class ItemGone(MMCacheError, LookupError):
    """A ticket that carries no source, and whose item is in no tier any more: add the image again."""


class SourceChanged(MMCacheError, RuntimeError):
    """The source of a ticket was changed between ``add`` and its processing; nothing was stored. Add it again."""
