"""Sizes, rates and times as text are exact both ways, and short."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zcompiler.quantities import BANDWIDTHS, FLOP_RATES, SIZES, TIMES, Units, format_quantity, meant, parse_quantity


@pytest.mark.parametrize(
    ("value", "units", "text"),
    [
        (24 << 30, SIZES, "24GiB"),
        (3 << 39, SIZES, "1.5TiB"),
        (1024, SIZES, "1KiB"),
        (1000, SIZES, "1KB"),
        (1048577, SIZES, "1048577B"),
        (1.3e9, BANDWIDTHS, "1.3GB/s"),
        (500e6, BANDWIDTHS, "500MB/s"),
        (85e9, FLOP_RATES, "85GFLOP/s"),
        (8e-5, TIMES, "80us"),
        (0.05, TIMES, "50ms"),
        (2.0, TIMES, "2s"),
    ],
)
def test_a_quantity_is_written_shortly(value: float, units: Units, text: str) -> None:
    assert format_quantity(value, units) == text
    assert parse_quantity(text, units) == pytest.approx(value, rel=1e-15)


@given(st.floats(min_value=5e-324, max_value=1e300), st.sampled_from([BANDWIDTHS, FLOP_RATES, TIMES]))
def test_any_number_survives_being_written(value: float, units: Units) -> None:
    read = parse_quantity(format_quantity(value, units), units)
    assert read is not None and float(read) == value


@given(st.integers(1, 2**80))
def test_any_size_survives_being_written(value: int) -> None:
    assert parse_quantity(format_quantity(value, SIZES), SIZES) == value


@pytest.mark.parametrize("text", ["", "GiB", "1 GiB", "-1GiB", "1e9B", ".5GiB", "1.GiB", "1GB/s", "9" * 5000 + "B"])
def test_what_is_no_size(text: str) -> None:
    assert parse_quantity(text, SIZES) is None


@pytest.mark.parametrize(
    ("text", "right"), [("1.3 gb/S", "1.3GB/s"), ("1.3Gb/s", "1.3GB/s"), ("1.3GB", None), ("fast", None), ("", None)]
)
def test_what_was_meant(text: str, right: str | None) -> None:
    assert meant(text, BANDWIDTHS) == right
