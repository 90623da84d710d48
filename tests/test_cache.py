"""The cache itself: one computation, clear, faults that change nothing, forks, settings, the log line."""

import asyncio
import gc
import hashlib
import logging
import os
import pickle
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import mmcache
from mmcache.fingerprints import Hasher, HashState
from mmcache.layout.compare import difference
from mmcache.processwide import default_cache
from tests.pictures import counted, picture

A, B, C = picture(1), picture(2), picture(3, 64, 96)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[mmcache.Cache]:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    with mmcache.Cache("256MiB", name="test", verify_rate=0) as cache:
        yield cache


@pytest.fixture
def wrapped(cache: mmcache.Cache) -> transformers.CLIPImageProcessor:
    processor = mmcache.wrap(transformers.CLIPImageProcessor(), cache)
    processor([picture(90), picture(91)], return_tensors="pt")  # the trials of both forms
    processor(picture(90), return_tensors="pt")
    return processor


@pytest.fixture
def fast_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def plain(images: Any) -> Any:
    return transformers.CLIPImageProcessor()(images, return_tensors="pt")


def same(expected: Any, found: Any) -> None:
    assert difference(expected, found) == ""


@pytest.mark.usefixtures("fast_switches")
def test_thirty_two_threads_on_ten_cold_pictures_run_the_processor_ten_times(wrapped: Any) -> None:
    pictures = [picture(seed) for seed in range(100, 110)]
    barrier = threading.Barrier(32)

    def burst(number: int) -> list[Any]:
        outputs = []
        for image in pictures:
            barrier.wait(60)
            outputs.append(wrapped([image] if number % 2 else image, return_tensors="pt"))
        return outputs

    with counted(transformers.CLIPImageProcessor) as runs, ThreadPoolExecutor(32) as pool:
        results = list(pool.map(burst, range(32)))
    assert runs.images == 10
    for image, *outputs in zip(pictures, *results, strict=True):
        expected = plain(image)
        for output in outputs:
            same(expected, output)


def test_batches_in_opposite_orders_at_once_end_and_run_each_picture_once(wrapped: Any) -> None:
    pictures = [picture(seed) for seed in range(120, 130)]
    barrier = threading.Barrier(8)

    def batch(number: int) -> Any:
        barrier.wait(60)
        return wrapped(pictures if number % 2 else pictures[::-1], return_tensors="pt")

    with counted(transformers.CLIPImageProcessor) as runs, ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(batch, range(8)))
    assert runs.images == 10
    for number, output in enumerate(outputs):
        same(plain(pictures if number % 2 else pictures[::-1]), output)


def test_asyncio_tasks_share_one_computation_of_an_async_function(cache: mmcache.Cache) -> None:
    calls = []

    @mmcache.cached(cache=cache, version="1")
    async def slow(image: Image.Image) -> Any:
        calls.append(1)
        await asyncio.sleep(0)
        return np.asarray(image).mean()

    async def main() -> list[Any]:
        return await asyncio.gather(*[slow(A) for _ in range(50)])

    assert set(asyncio.run(main())) == {np.asarray(A).mean()}
    assert len(calls) == 1
    assert cache.cache_info().coalesced == 49


def test_nothing_that_began_before_clear_is_given_after_it(cache: mmcache.Cache) -> None:
    began, go_on = threading.Event(), threading.Event()
    values = iter(["old", "new"])

    @mmcache.cached(cache=cache, version="1")
    def process(image: Image.Image) -> str:
        value = next(values)
        if value == "old":
            began.set()
            assert go_on.wait(60)
        return value

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(process, A)
        assert began.wait(60)
        cache.clear()
        assert process(A) == "new"
        go_on.set()
        assert first.result(60) == "old"
    assert process(A) == "new"


def test_an_exception_reaches_every_waiter_as_it_is_and_the_next_call_tries_again(cache: mmcache.Cache) -> None:
    waiting, calls = threading.Barrier(9), []
    error = ValueError("no such picture")

    @mmcache.cached(cache=cache, version="1")
    def process(image: Image.Image) -> str:
        calls.append(1)
        if len(calls) == 1:
            waiting.wait(60)  # all others have been started
            while cache.flight.in_flight() != 1:
                pass
            raise error
        return "fine"

    def call() -> Any:
        if calls:
            waiting.wait(60)
        try:
            return process(A)
        except ValueError as found:
            return found

    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(process, A)
        while not calls:
            pass
        others = [pool.submit(call) for _ in range(8)]
        results = [other.result(60) for other in others]
        with pytest.raises(ValueError, match="no such picture") as found:
            first.result(60)
    assert found.value is error
    assert all(result is error or result == "fine" for result in results)
    assert process(A) == "fine"


def test_an_item_larger_than_the_cache_is_served_not_stored_and_warned_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    with mmcache.Cache(100_000) as small:
        wrapped = mmcache.wrap(transformers.CLIPImageProcessor(), small)
        for image in (A, A, B):
            same(plain(image), wrapped(image, return_tensors="pt"))
        info = small.cache_info()
        assert (info.items, info.misses, info.hits, info.errors, info.refused) == (0, 3, 0, 0, 3)
    assert sum("raise max_bytes" in record.message for record in caplog.records) == 1


FAULTS = {
    "look-up": "mmcache.tiers.memory.MemoryTier.get_many",
    "store": "mmcache.tiers.memory.MemoryTier.put",
    "freeze": "mmcache.cache.freeze",
    "join": "mmcache.processing.ProcessorCall.join",
    "thaw": "mmcache.items.item.Item.thaw",
    "key": "mmcache.cache.Cache.key",
    "identity": "mmcache.processing.described",
    "trial": "mmcache.layout.book.Trials.verdict",
    "arrangement": "mmcache.processing.arranged",
    "flight": "mmcache.flight.Flight.fly",
    "stats": "mmcache.stats.Stats.count",
    "report": "mmcache.stats.Stats.due",
    "debug log": "mmcache.cache.debug_lookup",
    "span": "mmcache.cache.span",
}


@pytest.mark.parametrize("where", FAULTS)
@pytest.mark.parametrize("images", [A, [A, C]], ids=["one", "batch"])
def test_a_fault_in_any_internal_call_gives_the_plain_output_one_warning_and_a_count(
    where: str, images: Any, wrapped: Any, cache: mmcache.Cache, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a fault inside")

    expected = plain(images)
    wrapped(images, return_tensors="pt")
    with monkeypatch.context() as patched:
        patched.setattr(FAULTS[where], broken)
        for image in (images, B, images, B):
            same(plain(image), wrapped(image, return_tensors="pt"))
    assert cache.cache_info().errors >= (1 if where in ("store", "freeze", "thaw", "join") else 4)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "a fault inside" in warnings[0].message
    same(expected, wrapped(images, return_tensors="pt"))


def test_the_nth_internal_call_may_fail_for_every_n(wrapped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 3, one call at a time: whichever look-up, put or copy fails, the output is the plain one."""
    from mmcache.items import item
    from mmcache.tiers.memory import MemoryTier

    for target, name in ((MemoryTier, "get_many"), (MemoryTier, "put"), (item, "_copy_leaf")):
        for failing in range(1, 8):
            calls = 0
            original = getattr(target, name)

            def faulty(*args: Any, _original: Any = original, _n: int = failing, **options: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == _n:
                    raise OSError("a fault inside")
                return _original(*args, **options)

            with monkeypatch.context() as patched:
                patched.setattr(target, name, faulty)
                images = [picture(1000 + failing), A, picture(2000 + failing, 64, 96)]
                for _ in range(2):
                    same(plain(images), wrapped(images, return_tensors="pt"))


def test_a_log_that_raises_changes_nothing(wrapped: Any, cache: mmcache.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a log that raises")

    for name in ("info", "warning", "debug"):
        monkeypatch.setattr(logging.getLogger("mmcache"), name, broken)
    logging.getLogger("mmcache").setLevel(logging.DEBUG)
    monkeypatch.setattr(cache.stats, "log_interval", 0.0)
    try:
        for image in (A, B, A):
            same(plain(image), wrapped(image, return_tensors="pt"))
        with pytest.raises(TypeError):
            wrapped(A, 1, 2, 3, no_such=1)
    finally:
        logging.getLogger("mmcache").setLevel(logging.NOTSET)
    assert cache.cache_info().errors > 0


def test_a_picture_that_does_not_decode_raises_the_loaders_error_each_time(wrapped: Any, cache: mmcache.Cache) -> None:
    import io

    buffer = io.BytesIO()
    picture(5).save(buffer, "PNG")
    truncated = Image.open(io.BytesIO(buffer.getvalue()[: len(buffer.getvalue()) // 2]))
    with pytest.raises(OSError, match=r".") as expected:
        plain(Image.open(io.BytesIO(buffer.getvalue()[: len(buffer.getvalue()) // 2])))
    items = cache.cache_info().items
    for images in (truncated, [truncated], [A, truncated]):
        with pytest.raises(type(expected.value)) as found:
            wrapped(images, return_tensors="pt")
        assert str(found.value) == str(expected.value)
    assert cache.cache_info().items == items
    assert cache.cache_info().errors == 0


def in_child(work: Callable[[], None]) -> int:
    """Run something in a forked child; return its exit status, 0 if all is well, -14 if it hung."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forked_while_another_thread_holds_every_lock_works(wrapped: Any, cache: mmcache.Cache) -> None:
    wrapped(A, return_tensors="pt")
    expected = plain([A, B, C])
    torch.set_num_threads(1)
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with cache.memory._lock, cache.flight._lock, cache.stats._lock, cache.trials._lock:
            held.set()
            assert let_go.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    try:

        def work() -> None:
            for _ in range(2):
                same(expected, wrapped([A, B, C], return_tensors="pt"))
            assert cache.cache_info().errors == 0

        assert in_child(work) == 0
    finally:
        let_go.set()
        holder.join()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forked_during_a_computation_computes_for_itself(cache: mmcache.Cache) -> None:
    began, go_on = threading.Event(), threading.Event()

    @mmcache.cached(cache=cache, version="1")
    def process(image: Image.Image) -> int:
        began.set()
        assert go_on.wait(60)
        return os.getpid()

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(process, A)
        assert began.wait(60)

        def work() -> None:
            go_on.set()
            assert process(A) == os.getpid()

        assert in_child(work) == 0
        go_on.set()
        assert first.result(60) == os.getpid()


def test_a_nested_call_is_plain(cache: mmcache.Cache) -> None:
    inner_calls = []

    @mmcache.cached(cache=cache, version="1")
    def inner(image: Image.Image) -> int:
        inner_calls.append(1)
        return 1

    @mmcache.cached(cache=cache, version="1")
    def outer(image: Image.Image) -> int:
        return inner(image) + inner(image)

    assert outer(A) == 2
    assert len(inner_calls) == 2
    assert cache.cache_info().items == 1


def test_namespaces_and_secrets_part_the_keys() -> None:
    def key(**options: Any) -> bytes:
        return mmcache.Cache("1MiB", hasher="sha256", **options).key(b"identity", A, metadata=False)

    assert key(secret=b"s") == key(secret=b"s")
    assert (
        len(
            {
                key(secret=b"s"),
                key(secret=b"t"),
                key(secret=b"s", namespace="n"),
                key(secret=b"s", namespace="m"),
                key(),
                key(),
            }
        )
        == 6
    )


class SameDigests(Hasher):
    """An algorithm by its name alone: its digests are those of any other."""

    def new(self) -> HashState:
        return hashlib.sha256()


def key_of(
    source: Any = A, *, algorithm: str = "sha256", namespace: str = "", identity: bytes = b"i", metadata: bool = False
) -> bytes:
    with mmcache.Cache("1MiB", namespace=namespace) as cache:
        cache.hasher = SameDigests(algorithm)
        return cache.key(identity, source, metadata=metadata)


ARRAY = np.asarray(A)
TENSOR = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"algorithm": "blake3"}),
        ({}, {"namespace": "n"}),
        ({}, {"identity": b"j"}),
        ({}, {"source": B}),
        ({}, {"metadata": True}),
        ({"source": ARRAY}, {"source": np.asfortranarray(ARRAY)}),
        ({"source": TENSOR}, {"source": torch.ones(3, 2).T}),
        ({"source": TENSOR}, {"source": torch.ones(2, 3, requires_grad=True)}),
    ],
    ids=["algorithm", "namespace", "identity", "content", "metadata", "strides", "strides of a tensor", "autograd"],
)
def test_each_part_of_a_key_makes_another_one(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert key_of(**one) == key_of(**one) != key_of(**other)


def test_another_scheme_makes_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of()
    monkeypatch.setattr("mmcache.cache._SCHEME", "mmcache 2")
    assert key_of() != before


def test_the_secret_is_never_shown_and_does_not_travel() -> None:
    cache = mmcache.Cache("1MiB", secret="do-not-show", name="secretive")
    assert "do-not-show" not in repr(cache)
    assert b"do-not-show" not in pickle.dumps(cache)


def test_a_cache_travels_as_settings_and_equal_settings_share_one() -> None:
    cache = mmcache.Cache("3MiB", name="traveller")
    assert pickle.loads(pickle.dumps(cache)) is cache
    sent = pickle.dumps(cache)
    cache.close()
    arrived = pickle.loads(sent)
    assert arrived is not cache
    assert arrived.cache_info().maxsize == 3 * 1024**2


def test_a_cache_that_travelled_back_is_itself_and_never_another_tenants() -> None:
    first = mmcache.Cache("3MiB", name="same", secret="one")
    second = mmcache.Cache("3MiB", name="same", secret="two")
    assert pickle.loads(pickle.dumps(first)) is first
    assert pickle.loads(pickle.dumps(second)) is second
    sent = pickle.dumps(first)
    first.close()
    arrived = pickle.loads(sent)
    assert arrived not in (first, second)
    assert arrived.hasher.algorithm == first.hasher.algorithm, "its digests stay keyed"
    assert pickle.loads(sent) is arrived


def test_a_closed_process_wide_cache_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmcache.processwide._held", {})
    first = default_cache()
    first.close()
    assert default_cache() is not first
    assert not default_cache().closed


def test_traffic_of_bypassed_images_alone_writes_the_line_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mmcache")
    with mmcache.Cache("1MiB", log_interval=0) as cache:
        wrapped = mmcache.wrap(transformers.CLIPImageProcessorPil(), cache)
        for _ in range(3):
            with pytest.raises(TypeError):
                wrapped([None])  # type: ignore[arg-type]
    assert sum("bypassed 1" in record.message for record in caplog.records) == 3


def test_a_dropped_cache_frees_its_items_at_once() -> None:
    gc.disable()
    try:
        cache = mmcache.Cache("64MiB")
        freed = weakref.ref(cache.memory)
        del cache
        assert freed() is None
    finally:
        gc.enable()


def test_a_fault_inside_a_computation_is_not_taken_for_the_processors(
    wrapped: Any, cache: mmcache.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("a fault inside")

    calls = []

    @mmcache.cached(cache=cache, version="1")
    def process(image: Image.Image) -> int:
        calls.append(1)
        return 7

    monkeypatch.setattr("mmcache.functions.random_states", broken)
    assert process(A) == 7
    assert cache.cache_info().errors == 1


def test_the_environment_fills_what_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMCACHE_MAX_BYTES", "7MiB")
    monkeypatch.setenv("MMCACHE_NAMESPACE", "tenant")
    monkeypatch.setenv("MMCACHE_HASHER", "sha256")
    monkeypatch.setenv("MMCACHE_SECRET", "hush")
    filled = mmcache.Cache()
    assert filled.cache_info().maxsize == 7 * 1024**2
    assert (filled.hasher.algorithm, "tenant" in repr(filled)) == ("sha256", True)
    assert mmcache.Cache("8MiB", hasher="sha256").cache_info().maxsize == 8 * 1024**2
    monkeypatch.setenv("MMCACHE_MAX_BYTES", "lots")
    with pytest.raises(mmcache.BadArgument, match="MMCACHE_MAX_BYTES='lots'"):
        mmcache.Cache()


def test_disabled_by_the_environment_every_call_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMCACHE_DISABLED", "1")
    with mmcache.Cache("64MiB") as cache:
        wrapped = mmcache.wrap(transformers.CLIPImageProcessor(), cache)
        with counted(transformers.CLIPImageProcessor) as runs:
            for _ in range(3):
                same(plain(A), wrapped(A, return_tensors="pt"))
        assert runs.images == 6
        assert cache.cache_info().bypass_reasons == {"the cache is disabled": 3}


def test_a_closed_cache_serves_plainly_and_keeps_nothing(wrapped: Any, cache: mmcache.Cache) -> None:
    wrapped(A, return_tensors="pt")
    cache.close()
    same(plain(A), wrapped(A, return_tensors="pt"))
    assert cache.cache_info().items == 0
    assert "the cache is closed" in cache.cache_info().bypass_reasons
    cache.close()


def test_there_is_one_process_wide_cache() -> None:
    assert default_cache() is default_cache()
    wrapped = mmcache.wrap(transformers.CLIPImageProcessor())
    wrapped(A)
    assert default_cache().cache_info().misses + default_cache().cache_info().hits > 0


def test_the_process_wide_cache_that_install_makes_has_keyed_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmcache.processwide._held", {})
    with mmcache.install() as installation:
        assert installation.cache is default_cache()
        assert installation.cache.hasher.algorithm in ("blake3", "sha256")
    monkeypatch.setattr("mmcache.processwide._held", {})
    assert default_cache().hasher.algorithm == "xxh3_128"


def test_the_cache_keeps_neither_images_nor_processors_alive(cache: mmcache.Cache) -> None:
    wrapped = mmcache.wrap(transformers.CLIPImageProcessorPil(), cache)  # the other backend keeps itself alive
    image = picture(44)
    wrapped(image, return_tensors="pt")
    cache.settle()
    references: list[Any] = [weakref.ref(image), weakref.ref(wrapped)]
    del image, wrapped
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_two_threads_on_one_lazily_opened_image_get_right_pixels(wrapped: Any) -> None:
    import io

    for seed in range(30):
        buffer = io.BytesIO()
        picture(3000 + seed, 200, 150).save(buffer, "PNG" if seed % 2 else "JPEG")
        expected = plain(Image.open(io.BytesIO(buffer.getvalue())))
        lazy = Image.open(io.BytesIO(buffer.getvalue()))
        barrier = threading.Barrier(2)

        def call(lazy: Any = lazy, barrier: threading.Barrier = barrier) -> Any:
            barrier.wait(60)
            return wrapped(lazy, return_tensors="pt")

        with ThreadPoolExecutor(2) as pool:
            for output in [pool.submit(call), pool.submit(call)]:
                same(expected, output.result(60))
