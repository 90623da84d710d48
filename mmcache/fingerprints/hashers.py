"""The digests: which algorithm, with which key.

A store that never leaves one process of one owner can use the fastest hash there is, with a random seed. As soon as
somebody else can write into the store, or choose the pictures and see which of them hit, equal digests must not be
constructible: for xxh3 two different pictures with equal digests can be written down by hand, seed or no seed, so
there the digest is keyed and cryptographic.
"""

import hashlib
import hmac
import importlib.util
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from mmcache.errors import BadArgument, MissingExtra

if TYPE_CHECKING:
    from typing_extensions import Buffer

# The key of each: xxh3 takes a seed of 64 bits, blake3 a key of exactly 32 bytes, and HMAC-SHA256 is at its full
# strength with a key of its digest's size.
_KEY_BYTES = {"xxh3_128": 8, "blake3": 32, "sha256": 32}


class HashState(Protocol):
    """A hash in the making."""

    def update(self, data: "Buffer", /) -> object:
        """Take in more bytes; a megabyte or more at once lets other threads run meanwhile."""

    def digest(self) -> bytes:
        """Return the digest of all bytes so far: 16 bytes for xxh3_128, 32 for the others."""
        ...


@dataclass(frozen=True)
class Hasher:
    """An algorithm with its key: ``"xxh3_128"``, ``"blake3"`` or ``"sha256"``.

    The key is empty (unkeyed: equal digests everywhere), or for xxh3_128 a seed of 8 bytes, for blake3 a key of 32
    bytes, for sha256 any key, which makes it HMAC-SHA256. The key is a secret and is not shown.

    Raises ``BadArgument`` for an unknown algorithm or a key of the wrong length.
    """

    algorithm: str
    key: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        """Refuse at once what could not hash later."""
        if self.algorithm not in _KEY_BYTES:
            raise BadArgument("algorithm", self.algorithm, "one of " + ", ".join(_KEY_BYTES))
        if self.key and self.algorithm != "sha256" and len(self.key) != _KEY_BYTES[self.algorithm]:
            # The length only: a key must not get into a message.
            raise BadArgument("len(key)", len(self.key), f"0 or {_KEY_BYTES[self.algorithm]} for {self.algorithm}")

    @property
    def digest_size(self) -> int:
        """The length of a digest in bytes."""
        return 16 if self.algorithm == "xxh3_128" else 32

    def new(self) -> HashState:
        """Start a hash."""
        if self.algorithm == "xxh3_128":
            import xxhash

            return xxhash.xxh3_128(seed=int.from_bytes(self.key, "little"))
        if self.algorithm == "blake3":
            return _new_blake3(self.key)
        return hmac.new(self.key, digestmod="sha256") if self.key else hashlib.sha256()

    def digest(self, data: "Buffer") -> bytes:
        """Return the digest of one piece of bytes."""
        state = self.new()
        state.update(data)
        return state.digest()


# What ``mmcache.fingerprint`` uses: the same for everybody and for ever.
SHA256 = Hasher("sha256")


def _new_blake3(key: bytes) -> HashState:
    try:
        from blake3 import blake3
    except ImportError:
        raise MissingExtra("blake3", "blake3", "hasher='blake3'") from None
    state: HashState = blake3(key=key) if key else blake3()
    return state


def choose_hasher(name: str, *, secret: bytes | None, exposed: bool) -> Hasher:
    """Choose the hasher of a cache.

    ``name`` is ``"auto"``, ``"xxh3_128"``, ``"blake3"`` or ``"sha256"``. ``exposed`` says that items leave the process,
    or that others than its owner choose the pictures. ``"auto"`` is xxh3_128 with a random seed when there is neither
    a secret nor exposure; else keyed blake3 where that package is installed, else HMAC-SHA256. With a secret the key
    follows from it (equal in all processes that know it), without one it is random.

    Raises ``BadArgument`` for an unknown name and for xxh3_128 where it would be no protection, and ``MissingExtra``
    for ``"blake3"`` without its package.
    """
    protected = secret is not None or exposed
    if name == "auto":
        name = _strongest() if protected else "xxh3_128"
    elif name not in _KEY_BYTES:
        raise BadArgument("hasher", name, "'auto', " + ", ".join(map(repr, _KEY_BYTES)))
    if name == "xxh3_128" and protected:
        accepted = (
            "'auto', 'blake3' or 'sha256' when there is a secret or items are shared: xxh3 is no protection, "
            "equal digests of different pictures can be constructed"
        )
        raise BadArgument("hasher", name, accepted)
    hasher = Hasher(name, _key(name, secret))
    hasher.new()  # a missing package shows here, not at the first picture
    return hasher


def _strongest() -> str:
    return "blake3" if importlib.util.find_spec("blake3") else "sha256"


def _key(name: str, secret: bytes | None) -> bytes:
    size = _KEY_BYTES[name]
    if secret is None:
        return os.urandom(size)
    return hmac.digest(secret, b"mmcache hasher 1 " + name.encode(), "sha256")[:size]


def derive(secret: bytes, namespace: str) -> bytes:
    """Return the namespace's own secret, 32 bytes: keys of two namespaces have nothing in common."""
    return hmac.digest(secret, b"mmcache namespace 1 " + namespace.encode("utf-8", "surrogatepass"), "sha256")
