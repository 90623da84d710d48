"""What an image is: digests of values, sources and processors."""

from mmcache.fingerprints.chat import taken_apart
from mmcache.fingerprints.content import Fingerprint, fingerprint
from mmcache.fingerprints.encoding import encode
from mmcache.fingerprints.hashers import SHA256, Hasher, HashState, choose_hasher, derive
from mmcache.fingerprints.loading import UndecodableSource, load
from mmcache.fingerprints.sampling import samples_of
from mmcache.fingerprints.sources import (
    SCHEME,
    Kind,
    digest_encoded,
    digest_source,
    handling,
    kind_of,
    read_encoded,
)
from mmcache.fingerprints.texts import is_url

__all__ = [
    "SCHEME",
    "SHA256",
    "Fingerprint",
    "HashState",
    "Hasher",
    "Kind",
    "UndecodableSource",
    "choose_hasher",
    "derive",
    "digest_encoded",
    "digest_source",
    "encode",
    "fingerprint",
    "handling",
    "is_url",
    "kind_of",
    "load",
    "read_encoded",
    "samples_of",
    "taken_apart",
]
