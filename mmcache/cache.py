"""The cache: the straight line from a call to its output.

    keys of the images ──▶ flight ──▶ memory tier ──▶ join ──▶ the processor's own output
                             │ miss
                             └─▶ the real processor, one image ─▶ item ─▶ memory tier

A call (of a wrapped processor, a cached function, a stage) says how its images are identified, computed and joined;
the cache says when. Whatever goes wrong in here is a miss: the plain output is given, and the fault counted.
"""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from mmcache import registry
from mmcache.aliases import Aliases
from mmcache.budget import Budget
from mmcache.calls import Bypass, Call, ProcessorError, Unshared, processing, processor_seconds
from mmcache.errors import ItemGone, SourceChanged
from mmcache.fingerprints import UndecodableSource, choose_hasher, derive, digest_source, encode, handling
from mmcache.flight import Flight, Landed, computing, inside_computation
from mmcache.forks import renew_in_children
from mmcache.items import Item, NotStorable, freeze
from mmcache.layout.book import Trials
from mmcache.layout.compare import difference
from mmcache.settings import resolve, resolve_secret
from mmcache.stats import CacheInfo, Outcome, Stats, debug_lookup, span
from mmcache.tiers import MemoryTier
from mmcache.verification import Verification

# Part of every key: a change in how keys or items are made must not meet older ones.
_SCHEME = "mmcache 1"


_Landings = dict[bytes, Landed[Item | Unshared]]


class Cache:
    """A cache of processed images, shared by whatever it is given to: processors, functions, stages, threads.

    Args:
        max_bytes: the budget, in bytes or as ``"4GiB"``. Counts all that mmcache keeps alive, not what callers hold.
            Default: 4 GiB, or a tenth of the memory limit if that is less.
        name: stands in the log line.
        namespace: tenants with different namespaces never share an item.
        secret: keys the digests, so that nobody who chooses pictures can make two of them collide.
        hasher: ``"auto"``, ``"xxh3_128"``, ``"blake3"`` or ``"sha256"``. ``"auto"`` is the fastest that is safe.
        log_interval: the least number of seconds between two lines in the log.
        max_overhead: the share of the processing time that the cache may cost where nothing comes back: it steps aside
            while it costs more. None is 2 %; with 1 everything is always looked up.
        verify_rate: the share of outputs that are compared with the plain processor's before they are given, after
            the first ones of each structure and stratum. None is 1 in 256, 0 turns all verification off.

    Arguments that are not given come from the environment (``MMCACHE_MAX_BYTES``, ``MMCACHE_NAMESPACE``,
    ``MMCACHE_SECRET``, ``MMCACHE_HASHER``, ``MMCACHE_LOG_INTERVAL``, ``MMCACHE_VERIFY_RATE``, ``MMCACHE_MAX_OVERHEAD``); ``MMCACHE_DISABLED=1`` makes every call
    plain.

    Raises:
        BadArgument: an argument is not accepted; it says what was given and what is.

    >>> cache = Cache("1GiB", name="docs")
    >>> cache.cache_info().maxsize
    1073741824
    """

    def __init__(
        self,
        max_bytes: int | str | None = None,
        *,
        name: str = "default",
        namespace: str | None = None,
        secret: bytes | str | None = None,
        hasher: str | None = None,
        log_interval: float | None = None,
        verify_rate: float | None = None,
        max_overhead: float | None = None,
    ) -> None:
        """Start empty; see the class."""
        self._settings = resolve(max_bytes, name, namespace, hasher, log_interval, verify_rate, max_overhead)
        own_secret = resolve_secret(secret)
        if own_secret is not None:
            own_secret = derive(own_secret, self._settings.namespace)
        self.hasher = choose_hasher(self._settings.hasher, secret=own_secret, exposed=False)
        self.memory: MemoryTier[Item | Unshared] = MemoryTier(self._settings.max_bytes)
        self.stats = Stats(name, self._settings.log_interval)
        self.flight: Flight[Item | Unshared] = Flight(on_fault=self.stats.fault)
        self.trials = Trials()
        self.aliases = Aliases()
        self._verification = Verification(self._settings.verify_rate)
        self._budget = Budget(self._settings.max_overhead)
        self.token = os.urandom(8)
        self._closed = False
        registry.close_at_exit(self)
        # Without a secret, caches of equal settings are as good as each other; with one, only this one is itself.
        self._journey_name = None if own_secret is None else self.token
        registry.name(self, self._journey_name or self._settings)
        renew_in_children(self.memory, self.flight, self.stats, self.trials, self._verification)

    def key(self, identity: bytes, source: Any, *, metadata: bool) -> bytes:
        """Return the key of an image for a processor: a digest over scheme, namespace, identity and fingerprint.

        ``metadata`` is for code that may read more of an image than its pixels.
        """
        return self.key_of_content(identity, self.fingerprint(source, metadata=metadata))

    def fingerprint(self, source: Any, *, metadata: bool) -> bytes:
        """Return the digest of an image's content, with what decides how it is handled."""
        return encode((digest_source(source, self.hasher, metadata=metadata), handling(source)))

    def key_of_content(self, identity: bytes, fingerprint: bytes) -> bytes:
        """Return the key of an image whose fingerprint is known."""
        parts = (_SCHEME, self.hasher.algorithm, self._settings.namespace, identity, fingerprint)
        return self.hasher.digest(encode(parts))

    def serve(self, call: Call) -> Any:
        """Return what ``call.plain()`` would return, or raise what it would raise, with as little work as possible."""
        if inside_computation():
            return call.plain()
        failure: Exception
        raws: dict[bytes, Any] = {}
        before = time.thread_time() - processor_seconds()
        try:
            return self._finish(call, *self._flown(call, raws), raws)
        except Exception as error:  # noqa: BLE001 - law 3: nothing of ours reaches the caller; sorted out just below
            failure = error
        finally:
            self._budget.pay(time.thread_time() - processor_seconds() - before, call.images)
        self.settle_failure(call, failure)
        return self._plainly(call)

    def passes(self, samples: Callable[[], Sequence[int]], images: int) -> bool:
        """Whether images are processed without a look-up, since that costs more than may be spent; count them if so.

        ``samples`` takes one of each (see `mmcache.fingerprints.sampling`).
        """
        if not self._budget.exhausted or inside_computation():
            return False
        try:
            if not self._budget.lets_pass(samples):
                return False
            self.stats.passed(images)
            self._report_if_due()
        except Exception as fault:  # noqa: BLE001 - law 3
            self.stats.fault(fault)
            return False
        return True

    def passed(self, plain: Callable[[], Any]) -> Any:
        """Return what the plain processor gives for images of which `passes` was said."""
        started = time.perf_counter()
        try:
            with computing():
                return plain()
        finally:
            self._budget.passed(time.perf_counter() - started)

    def _plainly(self, call: Call) -> Any:
        started = time.perf_counter()
        try:
            return call.plain()
        finally:
            self._budget.processed(time.perf_counter() - started)

    async def aserve(self, call: Call) -> Any:
        """`serve` for a call whose ``compute`` and ``plain`` are awaited."""
        if inside_computation():
            return await call.plain()
        failure: Exception
        try:
            keys, epoch, first = self._begin(call)
            raws: dict[bytes, Any] = {}

            async def computed(key: bytes) -> Item | Unshared:
                started = time.perf_counter()
                with self._span("mmcache.miss"):
                    raw = await call.compute(first[key])
                return self._frozen(key, raw, started, raws)

            landed = await self.flight.afly(
                list(first), self.memory.get_many, computed, lambda key, item: self._publish(key, item, epoch)
            )
            return self._finish(call, keys, landed, raws)
        except Exception as error:  # noqa: BLE001 - law 3, as in serve
            failure = error
        self.settle_failure(call, failure)
        return await call.plain()

    def items(self, call: Call) -> list[Item]:
        """Return the items of a call, looked up or computed, without joining them.

        Raises whatever keeps it from that; `settle_failure` sorts it out.
        """
        return self._items(*self._flown(call, {}))

    def _flown(self, call: Call, raws: dict[bytes, Any]) -> tuple[Sequence[bytes], _Landings]:
        """Bring every key of a call to its item; what was computed here stands in ``raws`` as it came."""
        keys, epoch, first = self._begin(call)

        def computed(key: bytes) -> Item | Unshared:
            started = time.perf_counter()
            with self._span("mmcache.miss"):
                raw = call.compute(first[key])
            return self._frozen(key, raw, started, raws)

        def publish(key: bytes, item: Item | Unshared) -> None:
            self._publish(key, item, epoch)

        return keys, self.flight.fly(list(first), self.memory.get_many, computed, publish)

    def _begin(self, call: Call) -> tuple[Sequence[bytes], int, dict[bytes, int]]:
        """Return the keys, the epoch in which this call began, and each distinct key with its first position."""
        if self._settings.disabled or self._closed:
            raise Bypass("the cache is disabled" if self._settings.disabled else "the cache is closed")
        # Before anything is looked up: what is computed from here on is not kept if the cache is cleared meanwhile.
        epoch = self.memory.epoch
        keys = call.keys()
        first: dict[bytes, int] = {}
        for position, key in enumerate(keys):
            first.setdefault(key, position)
        return keys, epoch, first

    def _span(self, name: str) -> AbstractContextManager[Any]:
        """Return a span; a fault of the profiler's must not keep anything from being computed."""
        try:
            return span(name)
        except Exception as fault:  # noqa: BLE001 - law 3
            self.stats.fault(fault)
            return contextlib.nullcontext()

    def _frozen(self, key: bytes, raw: Any, started: float, raws: dict[bytes, Any]) -> Item | Unshared:
        seconds = time.perf_counter() - started
        self._budget.processed(seconds)
        raws[key] = raw.value if isinstance(raw, Unshared) else raw
        if isinstance(raw, Unshared):
            return raw
        try:
            return freeze(raw, seconds)
        except NotStorable as reason:
            return Unshared(raw, str(reason))
        except Exception as fault:  # noqa: BLE001 - law 3: the processor's output is there, and is given
            self.stats.fault(fault)
            return Unshared(raw, "a fault inside the cache")

    def _publish(self, key: bytes, item: Item | Unshared, epoch: int) -> None:
        if isinstance(item, Unshared) or self.memory.put(key, item, epoch=epoch) or epoch != self.memory.epoch:
            return
        self.stats.warn_once(
            "oversize",
            "an item of %d bytes is not stored, since max_bytes (%d) has no room for it beside what is pinned: raise max_bytes",
            item.nbytes,
            self._settings.max_bytes,
        )

    def _finish(self, call: Call, keys: Sequence[bytes], landed: _Landings, raws: dict[bytes, Any]) -> Any:
        if call.single and keys[0] in raws:
            # Computed here, for this caller alone: it gets what the processor gave, the store has a copy.
            output = call.given(raws[keys[0]])
            self._check(landed, keys)
            converted = output is not raws[keys[0]] and isinstance(landed[keys[0]].value, Item)
            return self._verified(call, keys, output, missed=False) if converted else output
        items = self._items(keys, landed)
        misses = [end.how == "miss" for end in landed.values()]
        with self._span("mmcache.miss" if all(misses) else "mmcache.hit"):
            output = call.join(items)
        return self._verified(call, keys, output, missed=any(misses))

    def _verified(self, call: Call, keys: Sequence[bytes], output: Any, *, missed: bool) -> Any:
        """Return an output, compared with the plain processor's if its turn has come; if they differ, that one."""
        place = call.stratum()
        if place is None or not self._verification.wants(place[0][0], place[1], missed=missed):
            return output
        self._note(self.stats.count, "verified")
        try:
            with processing():
                expected = call.plain()
        except (SourceChanged, ItemGone):  # a ticket's source is not what it was: there is nothing to compare with
            return output
        except Exception as error:  # noqa: BLE001 - the plain call refuses what was joined: so will the next one
            self._condemn(place[0], f"the plain processor raises {type(error).__name__}")
            raise Bypass("an output that the plain processor refuses") from None
        found = difference(expected, output)
        # Unless somebody writes into an image meanwhile: then there are two right outputs.
        if found and list(call.keys()) == list(keys):
            self._condemn(place[0], found)
        return expected

    def _condemn(self, structures: Sequence[bytes], found: str) -> None:
        """End caching for what gave a wrong output, and drop what it may have stored."""
        self.trials.condemn(structures, f"verification found a difference: {found}")
        self.clear()
        self._note(self.stats.mismatch, found)

    def _check(self, landed: _Landings, keys: Sequence[bytes]) -> None:
        """Count how a single own computation ended; raise what its caller must not get the output of."""
        item = landed[keys[0]].value
        if not isinstance(item, Unshared):
            self._note(self._count, keys, landed)
        elif item.error is not None:
            raise item.error
        else:
            self._note(self.stats.bypass, item.reason, 1)

    def _items(self, keys: Sequence[bytes], landed: _Landings) -> list[Item]:
        failed = next((end.error for end in landed.values() if end.how == "failed"), None)
        if failed is not None:
            raise failed
        items = []
        for key in keys:
            item = landed[key].value
            if isinstance(item, Unshared):
                raise item.error if item.error is not None and landed[key].own else Bypass(item.reason)
            assert item is not None, "what landed without failing has a value"
            items.append(item)
        self._note(self._count, keys, landed)
        return items

    def _count(self, keys: Sequence[bytes], landed: _Landings) -> None:
        outcomes: dict[str, Outcome] = {"hit": "hits", "miss": "misses", "coalesced": "coalesced"}
        seen: set[bytes] = set()
        for key in keys:
            end = landed[key]
            # A picture that stands in the batch again takes the computation of its first place.
            outcome = "coalesced" if key in seen and end.how == "miss" else outcomes[end.how]
            seen.add(key)
            saved = end.value.seconds if outcome != "misses" and isinstance(end.value, Item) else 0.0
            self._budget.earn(saved)
            self.stats.count(outcome, saved_seconds=saved)
            debug_lookup(self._settings.name, key, outcome)
        self._report_if_due()

    def _report_if_due(self) -> None:
        if self.stats.due():
            self.stats.report(self.cache_info())

    def settle_failure(self, call: Call, failure: Exception) -> None:
        """Raise what is the caller's; note everything else, so that the plain call can be made."""
        if isinstance(failure, UndecodableSource):
            raise failure.error
        if isinstance(failure, ItemGone | SourceChanged):
            raise failure
        if isinstance(failure, ProcessorError):
            if call.single:
                self._note(self.stats.count, "misses", 1)
                raise failure.error
            failure = Bypass("an image of the batch is refused by the processor")
        if isinstance(failure, Bypass):
            self._note(self.stats.bypass, str(failure), call.images)
            self._note(self._report_if_due)
        else:
            self.stats.fault(failure)

    def _note(self, record: Callable[..., None], *args: Any) -> None:
        """Count or log something; a fault there is a fault like any other, and changes nothing for the caller."""
        try:
            record(*args)
        except Exception as fault:  # noqa: BLE001 - law 3
            self.stats.fault(fault)

    def cache_info(self) -> CacheInfo:
        """Return the counters and what is kept; see `CacheInfo`."""
        memory, counts = self.memory.info(), self.stats.counts
        return CacheInfo(
            hits=counts["hits"], misses=counts["misses"], maxsize=memory.max_bytes, currsize=memory.currsize,
            coalesced=counts["coalesced"], bypassed=counts["bypassed"], passed=counts["passed"], errors=counts["errors"],
            evictions=memory.evictions, mismatches=counts["mismatches"], verified=counts["verified"], refused=memory.refused, items=memory.items, pinned=memory.pinned,
            saved_seconds=self.stats.saved_seconds, bypass_reasons=dict(self.stats.reasons),
        )  # fmt: skip

    def clear(self) -> None:
        """Drop every item. No call that begins after this gets a value whose computation began before it."""
        self.memory.clear()
        self.aliases.clear()
        self.flight.forget()

    def settle(self) -> None:
        """Wait until no work of the cache runs in the background (trials)."""
        self.trials.settle()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Write the last line in the log and drop every item; later calls are plain. Closing twice does nothing."""
        if not self._closed:
            self._closed = True
            self._note(lambda: self.stats.report(self.cache_info()))
            self.memory.close()

    def __enter__(self) -> "Cache":
        """Return the cache itself, to be closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the cache."""
        self.close()

    def __repr__(self) -> str:
        """Show the settings, never the secret."""
        s = self._settings
        return f"Cache({s.max_bytes}, name={s.name!r}, namespace={s.namespace!r}, hasher={self.hasher.algorithm!r})"

    def __copy__(self) -> "Cache":
        """Copies of what uses a cache use the same cache."""
        return self

    def __deepcopy__(self, _: object) -> "Cache":
        """Deep copies of what uses a cache use the same cache."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as settings and a name for itself: no items, no secret.

        Where it came from it is itself again; elsewhere, caches of equal settings that arrived are one.
        """
        settings = replace(self._settings, hasher=self.hasher.algorithm) if self._journey_name else self._settings
        from mmcache.processwide import arrived

        return (arrived, (settings, self._journey_name))
