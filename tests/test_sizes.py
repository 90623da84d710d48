"""Sizes in bytes: read, written, and found out about the machine."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcache import BadArgument, sizes
from mmcache.sizes import default_max_bytes, format_share, format_size, memory_limit, parse_size


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4GiB", 4 << 30), ("4gib", 4 << 30), ("4 GiB", 4 << 30), ("  1.5 MiB ", 1_572_864), ("500 MB", 500_000_000),
        ("500mb", 500_000_000), ("1TiB", 1 << 40), ("2kb", 2000), ("2KiB", 2048), ("7", 7), ("7b", 7), ("0.5KiB", 512),
        ("9007199254740993", 9007199254740993), ("1.1KB", 1100), ("0.1GB", 100_000_000),
    ],
)  # fmt: skip
def test_sizes_are_read_exactly(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "bad",
    [0, -1, True, False, 1.5, None, b"4GiB", [4], "", "  ", "GiB", "-1", "0", "0GiB", "0.4", "4 Gi B", "4GiBs", "1e9",
     "1_000", "nan", "inf", "4PiB", "4,5GiB", "1.2.3", "4GiB 5", "0x10"],
)  # fmt: skip
def test_what_is_no_size_is_refused_with_what_was_given_and_what_is_accepted(bad: Any) -> None:
    with pytest.raises(BadArgument, match=r"max_bytes=.*expected a number of bytes above 0"):
        parse_size(bad)
    with pytest.raises(BadArgument, match="budget="):
        parse_size(bad, "budget")


def test_a_number_that_no_float_holds_is_a_number() -> None:
    assert parse_size("9" * 400) > 10**399
    assert parse_size(10**400) == 10**400


@given(st.integers(1, 1 << 60))
def test_a_number_means_itself(nbytes: int) -> None:
    assert parse_size(nbytes) == parse_size(str(nbytes)) == parse_size(f" {nbytes} B") == nbytes


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (4 << 30, "4.0 GiB"),
     (3_328_599_654, "3.1 GiB"), (5 << 40, "5120.0 GiB"), (-2048, "-2.0 KiB")],
)  # fmt: skip
def test_sizes_are_written_for_people(nbytes: int, text: str) -> None:
    assert format_size(nbytes) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(3_328_599_654, 4 << 30, "3.1/4.0 GiB"), (0, 4 << 30, "0.0/4.0 GiB"), (512 << 20, 4 << 30, "0.5/4.0 GiB"),
     (48 << 20, 64 << 20, "48.0/64.0 MiB"), (100, 1023, "100/1023 B"), (2048, 10240, "2.0/10.0 KiB")],
)  # fmt: skip
def test_a_part_and_its_whole_are_written_in_one_unit(part: int, whole: int, text: str) -> None:
    assert format_share(part, whole) == text


def test_the_container_limits_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    v2, v1 = tmp_path / "memory.max", tmp_path / "limit_in_bytes"
    monkeypatch.setattr(sizes, "_CGROUP_LIMITS", (v2, v1))
    machine = memory_limit()
    assert machine > 1 << 20
    v1.write_text("2000000\n")
    assert memory_limit() == 2_000_000
    v2.write_text("max\n")
    assert memory_limit() == 2_000_000
    v2.write_text("1000000\n")
    assert memory_limit() == 1_000_000
    assert default_max_bytes() == 100_000
    v2.write_text("9223372036854771712\n")
    assert memory_limit() == machine


def test_the_default_is_a_tenth_and_four_gib_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, expected in ((1 << 30, (1 << 30) // 10), (40 << 30, 4 << 30), (1 << 50, 4 << 30)):
        monkeypatch.setattr(sizes, "memory_limit", lambda limit=limit: limit)
        assert default_max_bytes() == expected
