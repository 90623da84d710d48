"""Counters, the line in the log, warnings once per cause, and spans in a profiler's trace."""

import json
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import mmcache
from mmcache import stats
from mmcache.stats import CacheInfo, Stats, debug_lookup, span

LINE = re.compile(
    r"mmcache\[(?P<name>[^]]+)\] (?P<seconds>\d+)s: (?P<images>\d+) images, hit (?P<rate>\d+\.\d)% "
    r"\(lifetime (?P<lifetime>\d+\.\d)%\), coalesced (?P<coalesced>\d+), bypassed (?P<bypassed>\d+), "
    r"evicted (?P<evicted>\d+), (?P<items>\d+) items, (?P<bytes>\d+\.\d)/(?P<max>\d+\.\d) (?P<unit>KiB|MiB|GiB), "
    r"saved (?P<saved>\d+\.\d) s"
)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(stats, "time", made)
    return made


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, logger="mmcache"):
        yield caplog


def info(**figures: Any) -> CacheInfo:
    defaults: dict[str, Any] = {
        "hits": 0, "misses": 0, "maxsize": 4 << 30, "currsize": 0, "coalesced": 0, "bypassed": 0, "passed": 0, "errors": 0,
        "evictions": 0, "mismatches": 0, "verified": 0, "refused": 0, "items": 0, "pinned": 0, "saved_seconds": 0.0,
    }  # fmt: skip
    return CacheInfo(**{**defaults, **figures})


def mean(image: Any) -> float:
    return float(image.mean())


def images(*numbers: int) -> list[Any]:
    return [np.full((4, 4), number) for number in numbers]


# The line


def test_the_line_is_as_it_is_documented_to_the_letter(clock: Clock, log: pytest.LogCaptureFixture) -> None:
    counters = Stats("default", 10.0)
    counters.count("hits", 40)
    counters.count("misses", 79)
    counters.report(info(evictions=3, saved_seconds=4.0))
    log.clear()
    clock.now += 10.2
    counters.count("hits", 377)
    counters.count("coalesced", 7)
    counters.count("misses", 28)
    counters.report(
        info(maxsize=4 << 30, currsize=3_328_599_654, items=841, evictions=15, saved_seconds=42.44),
    )
    assert [record.getMessage() for record in log.records] == [
        "mmcache[default] 10s: 412 images, hit 93.2% (lifetime 79.8%), coalesced 7, bypassed 0, evicted 12, 841 items, "
        "3.1/4.0 GiB, saved 38.4 s"
    ]
    record = log.records[0]
    assert (record.name, record.levelname) == ("mmcache", "INFO")
    figures = record.mmcache  # type: ignore[attr-defined]
    assert json.loads(json.dumps(figures)) == {
        "cache": "default", "seconds": 10.2, "images": 412, "hit_rate": pytest.approx(384 / 412),
        "lifetime_hit_rate": pytest.approx(424 / 531), "coalesced": 7, "bypassed": 0, "errors": 0, "evicted": 12,
        "items": 841, "bytes": 3_328_599_654, "max_bytes": 4 << 30, "saved_seconds": 38.44,
    }  # fmt: skip


def test_there_is_no_line_for_an_interval_without_traffic(clock: Clock, log: pytest.LogCaptureFixture) -> None:
    counters = Stats("default", 10.0)
    assert not counters.due()
    clock.now += 10
    assert counters.due()
    counters.report(info())
    assert not counters.due()
    clock.now += 30
    counters.count("bypassed")
    counters.report(info())
    clock.now += 10
    counters.report(info())
    assert [LINE.fullmatch(r.getMessage())["seconds"] for r in log.records] == ["30"]  # type: ignore[index]


@pytest.mark.usefixtures("clock")
def test_the_interval_counts_its_own_images_and_the_lifetime_all(log: pytest.LogCaptureFixture) -> None:
    counters = Stats("x", 1.0)
    counters.count("misses", 3)
    counters.report(info())
    counters.count("hits", 1)
    counters.report(info())
    found = [LINE.fullmatch(record.getMessage()) for record in log.records]
    assert [(m["images"], m["rate"], m["lifetime"]) for m in found if m] == [
        ("3", "0.0", "0.0"),
        ("1", "100.0", "25.0"),
    ]


@pytest.mark.usefixtures("clock")
def test_bypassed_images_are_images_but_not_in_the_rate(log: pytest.LogCaptureFixture) -> None:
    counters = Stats("x", 1.0)
    counters.count("hits", 1)
    counters.count("misses", 1)
    counters.bypass("why", 8)
    counters.report(info())
    match = LINE.fullmatch(log.records[-1].getMessage())
    assert match is not None
    assert (match["images"], match["rate"], match["bypassed"]) == ("10", "50.0", "8")


def test_no_figures_are_made_for_a_log_that_nobody_reads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unused(*_: object) -> str:
        raise AssertionError("formatted for nobody")

    monkeypatch.setattr(stats, "format_share", unused)
    with caplog.at_level(logging.WARNING, logger="mmcache"):
        counters = Stats("x", 1.0)
        counters.count("hits")
        counters.report(info())
    assert not caplog.records


def test_the_first_look_up_after_an_interval_writes_the_line(clock: Clock, log: pytest.LogCaptureFixture) -> None:
    with mmcache.Cache("64MiB", name="mine", log_interval=10) as cache:
        cached = mmcache.cached(cache=cache)(mean)
        one, two = images(1, 2)
        cached(one), cached(one), cached(two)
        assert not [r for r in log.records if LINE.fullmatch(r.getMessage())]
        clock.now += 10
        cached(two)
        clock.now += 50
    lines = [LINE.fullmatch(record.getMessage()) for record in log.records]
    assert [m.group("name", "seconds", "images", "rate", "items", "unit") for m in lines if m] == [
        ("mine", "10", "4", "50.0", "2", "MiB")
    ]


def test_closing_writes_the_last_line_once(clock: Clock, log: pytest.LogCaptureFixture) -> None:
    cache = mmcache.Cache("64MiB", name="mine")
    mmcache.cached(cache=cache)(mean)(images(1)[0])
    clock.now += 3
    cache.close()
    cache.close()
    assert [m["seconds"] for r in log.records if (m := LINE.fullmatch(r.getMessage()))] == ["3"]


PROGRAM = """
import logging
logging.basicConfig(level=logging.INFO)
import numpy as np, mmcache
def mean(image):
    return float(image.mean())
cached = mmcache.cached(mean)
for number in (1, 2, 1, 1):
    cached(np.full((4, 4), number))
unused = mmcache.Cache("1MiB", name="unused")
"""


def test_a_program_that_only_turned_logging_on_sees_the_line_at_its_end() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MMCACHE_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True,
        env={**environment, "MMCACHE_MAX_BYTES": "4GiB"},
    )  # fmt: skip
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert done.stdout == ""
    logged = re.fullmatch(rf"INFO:mmcache:{LINE.pattern}", lines[0])
    assert logged is not None, lines
    assert logged.group("name", "images", "rate", "lifetime", "items", "bytes", "max", "unit") == (
        "default", "4", "50.0", "50.0", "2", "0.0", "4.0", "GiB",
    )  # fmt: skip


# Look-ups, causes and faults


def test_debug_says_how_each_look_up_ended_with_twelve_digits_of_its_key(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="mmcache"), mmcache.Cache("64MiB", name="mine") as cache:
        cached = mmcache.cached(cache=cache)(mean)
        for image in images(1, 2, 1):
            cached(image)
    found = [
        re.fullmatch(r"mmcache\[mine\] (\w+) ([0-9a-f]{12})", r.getMessage())
        for r in caplog.records
        if r.levelname == "DEBUG"
    ]
    outcomes = [match.groups() for match in found if match]
    assert len(outcomes) == len(found) == 3
    assert [how for how, _ in outcomes] == ["misses", "misses", "hits"]
    assert outcomes[0][1] == outcomes[2][1] != outcomes[1][1]


def test_no_line_is_made_for_a_look_up_below_debug(log: pytest.LogCaptureFixture) -> None:
    debug_lookup("x", b"\1" * 16, "hits")
    assert not log.records


def test_each_cause_is_logged_once_for_each_cache_and_counted_always(log: pytest.LogCaptureFixture) -> None:
    one, other = Stats("one", 10), Stats("other", 10)
    for counters in (one, one, other):
        counters.bypass("no sizes", 3)
        counters.bypass("other reason", 1)
        counters.warn_once("cause", "too large: %d", 3)
    assert [(r.levelname, r.getMessage().partition("]")[0]) for r in log.records] == [
        (level, f"mmcache[{name}") for name in ("one", "other") for level in ("INFO", "INFO", "WARNING")
    ]
    assert one.reasons == {"no sizes": 6, "other reason": 2}
    assert one.counts["bypassed"] == 8


def test_a_fault_is_a_warning_once_for_each_place_and_type(log: pytest.LogCaptureFixture) -> None:
    counters = Stats("one", 10)

    def fault(kind: type[Exception]) -> None:
        try:
            raise kind("secret text")
        except Exception as error:  # noqa: BLE001 - what is noted here is any fault
            counters.fault(error)

    for _ in range(3):
        fault(OSError)
        fault(ValueError)
    counters.fault(RuntimeError("never raised"))
    assert counters.counts["errors"] == 7
    assert [(r.levelname, r.exc_info[0]) for r in log.records if r.exc_info] == [
        ("WARNING", OSError), ("WARNING", ValueError), ("WARNING", RuntimeError),
    ]  # fmt: skip


def test_a_flood_of_causes_is_counted_and_not_logged(log: pytest.LogCaptureFixture) -> None:
    counters = Stats("one", 10)
    for number in range(1000):
        counters.bypass(f"reason {number}", 1)
    assert counters.counts["bypassed"] == 1000
    assert len(log.records) < 300


def test_a_fault_in_the_cache_gives_the_plain_output_and_one_warning(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mmcache.Cache("64MiB") as cache:
        cached = mmcache.cached(cache=cache)(mean)

        def broken(*_: object, **__: object) -> Any:
            raise ZeroDivisionError("in here")

        monkeypatch.setattr(cache.memory, "get_many", broken)
        assert [cached(image) for image in images(1, 2, 1)] == [1.0, 2.0, 1.0]
        assert cache.cache_info().errors == 3
        assert [r.levelname for r in log.records] == ["WARNING"]


def test_sixteen_threads_lose_no_count() -> None:
    counters = Stats("x", 10)
    barrier = threading.Barrier(16)

    def count() -> None:
        barrier.wait(30)
        for _ in range(500):
            counters.count("hits", 2, saved_seconds=0.25)
            counters.bypass("why", 1)

    threads = [threading.Thread(target=count) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (counters.counts["hits"], counters.counts["bypassed"], counters.saved_seconds) == (16_000, 8_000, 2_000.0)


def test_the_hit_rate_is_of_looked_up_images() -> None:
    assert info().hit_rate == 0
    assert info(hits=2, coalesced=1, misses=1, bypassed=50).hit_rate == 0.75


def test_hits_save_the_time_that_the_computation_took() -> None:
    with mmcache.Cache("64MiB") as cache:
        cached = mmcache.cached(cache=cache)(mean)
        image = images(1)[0]
        cached(image)
        assert cache.cache_info().saved_seconds == 0
        cached(image)
        once = cache.cache_info().saved_seconds
        cached(image)
        assert cache.cache_info().saved_seconds == pytest.approx(2 * once)
        assert once > 0


# Spans


def test_without_a_profiler_no_span_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def costly(*_: object) -> Any:
        raise AssertionError("a span for nobody")

    monkeypatch.setattr(torch.profiler, "record_function", costly)
    monkeypatch.setattr(torch.autograd.profiler, "record_function", costly)
    with span("mmcache.hit"):
        pass
    with mmcache.Cache("64MiB") as cache:
        cached = mmcache.cached(cache=cache)(mean)
        assert [cached(image) for image in images(1, 1)] == [1.0, 1.0]
        info = cache.cache_info()
        assert (info.hits, info.misses, info.errors, info.bypassed) == (1, 1, 0, 0)


@pytest.mark.filterwarnings("ignore")
def test_a_profilers_trace_shows_hits_and_misses() -> None:
    with mmcache.Cache("64MiB") as cache:
        cached = mmcache.cached(cache=cache)(mean)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for image in images(1, 1, 1):
                cached(image)
        counts = {event.key: event.count for event in profile.key_averages()}
        assert counts["mmcache.hit"] == 2
        assert counts["mmcache.miss"] >= 1


def test_without_torch_there_is_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    with span("mmcache.hit") as nothing:
        assert nothing is None
