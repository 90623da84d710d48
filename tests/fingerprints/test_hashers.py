import hashlib
import hmac
import subprocess
import sys
import threading

import blake3
import pytest
import xxhash

from mmcache.errors import BadArgument, MissingExtra
from mmcache.fingerprints import SHA256, Hasher, choose_hasher, derive

DATA = bytes(range(256)) * 20


@pytest.mark.parametrize(
    ("hasher", "expected"),
    [
        (Hasher("xxh3_128"), xxhash.xxh3_128(DATA).digest()),
        (Hasher("xxh3_128", (77).to_bytes(8, "little")), xxhash.xxh3_128(DATA, seed=77).digest()),
        (Hasher("blake3"), blake3.blake3(DATA).digest()),
        (Hasher("blake3", b"k" * 32), blake3.blake3(DATA, key=b"k" * 32).digest()),
        (SHA256, hashlib.sha256(DATA).digest()),
        (Hasher("sha256", b"key"), hmac.digest(b"key", DATA, "sha256")),
    ],
    ids=str,
)
def test_a_digest_is_what_the_algorithm_says_in_one_piece_or_many(hasher: Hasher, expected: bytes) -> None:
    state = hasher.new()
    for start in range(0, len(DATA), 77):
        state.update(memoryview(DATA)[start : start + 77])
    assert state.digest() == hasher.digest(DATA) == expected
    assert len(expected) == hasher.digest_size


@pytest.mark.parametrize(
    "args", [("md5",), ("xxh3_128", b"short"), ("blake3", b"k" * 31), ("xxh3_128", b"k" * 9)], ids=repr
)
def test_an_unknown_algorithm_or_a_key_of_the_wrong_length_is_refused_at_once(args: tuple[str, bytes]) -> None:
    with pytest.raises(BadArgument):
        Hasher(*args)


def test_the_key_is_never_shown() -> None:
    hasher = Hasher("sha256", b"very secret key")
    assert "secret" not in repr(hasher)
    with pytest.raises(BadArgument) as refusal:
        Hasher("blake3", b"very secret key")
    assert "secret" not in str(refusal.value)


def test_inside_one_process_auto_is_seeded_xxh3_and_each_time_another() -> None:
    hashers = [choose_hasher("auto", secret=None, exposed=False) for _ in range(3)]
    assert {hasher.algorithm for hasher in hashers} == {"xxh3_128"}
    assert len({hasher.digest(DATA) for hasher in hashers}) == 3
    assert all(hasher.digest(DATA) != xxhash.xxh3_128(DATA).digest() for hasher in hashers)


def test_exposed_auto_is_keyed_blake3_with_a_random_key() -> None:
    hashers = [choose_hasher("auto", secret=None, exposed=True) for _ in range(3)]
    assert {hasher.algorithm for hasher in hashers} == {"blake3"}
    assert {len(hasher.key) for hasher in hashers} == {32}
    assert len({hasher.digest(DATA) for hasher in hashers}) == 3


@pytest.mark.parametrize("name", ["auto", "blake3", "sha256"])
def test_with_a_secret_the_key_follows_from_it(name: str) -> None:
    one, same, other = (choose_hasher(name, secret=secret, exposed=True) for secret in (b"a", b"a", b"b"))
    assert one == same
    assert one.digest(DATA) == same.digest(DATA) != other.digest(DATA)
    assert one.key not in (b"", b"a")


def test_algorithms_do_not_share_a_key() -> None:
    keys = {choose_hasher(name, secret=b"secret", exposed=True).key for name in ("blake3", "sha256")}
    assert len(keys) == 2


@pytest.mark.parametrize(("secret", "exposed"), [(b"secret", False), (None, True), (b"", False)])
def test_xxh3_is_refused_where_it_would_be_no_protection(secret: bytes | None, exposed: bool) -> None:
    with pytest.raises(BadArgument, match="no protection"):
        choose_hasher("xxh3_128", secret=secret, exposed=exposed)
    assert choose_hasher("auto", secret=secret, exposed=exposed).algorithm == "blake3"


@pytest.mark.parametrize("name", ["", "md5", "XXH3_128", "sha-256"])
def test_an_unknown_name_is_refused_with_those_that_are_known(name: str) -> None:
    with pytest.raises(BadArgument, match="'auto', 'xxh3_128', 'blake3', 'sha256'"):
        choose_hasher(name, secret=None, exposed=False)


def test_without_the_blake3_package_auto_is_keyed_sha256_and_blake3_names_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "blake3", None)
    hasher = choose_hasher("auto", secret=b"secret", exposed=True)
    assert hasher.algorithm == "sha256"
    assert hasher.digest(DATA) == hmac.digest(hasher.key, DATA, "sha256")
    with pytest.raises(MissingExtra, match=r"mmcache\[blake3\]"):
        choose_hasher("blake3", secret=None, exposed=False)


def test_namespaces_of_one_secret_have_unrelated_secrets() -> None:
    derived = {derive(b"secret", name) for name in ("", "a", "b", "ab", "\udcff")}
    assert len(derived) == 5
    assert {len(secret) for secret in derived} == {32}
    assert derive(b"secret", "a") == derive(b"secret", "a") != derive(b"other", "a")
    assert derive(b"secret", "") != choose_hasher("sha256", secret=b"secret", exposed=True).key


def test_the_derived_key_is_the_same_in_another_process() -> None:
    code = "from mmcache.fingerprints import *; print(choose_hasher('auto', secret=b's', exposed=True).key.hex())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == choose_hasher("auto", secret=b"s", exposed=True).key.hex()


def test_one_hasher_serves_many_threads() -> None:
    hasher = Hasher("xxh3_128", b"12345678")
    digests: list[bytes] = []
    threads = [threading.Thread(target=lambda: digests.append(hasher.digest(DATA * 200))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(digests) == {hasher.digest(DATA * 200)}
    assert len(digests) == 8
