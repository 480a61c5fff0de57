"""Quantities are read exactly and refused clearly; expected values are worked out by hand beside each case."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppadvisor import units
from ppadvisor.errors import InputError

PARSERS: list[tuple[Callable[[str], object], str]] = [
    (units.parse_bandwidth, "GB/s"),
    (units.parse_memory, "GB"),
    (units.parse_sequence_length, ""),
    (units.parse_batch, ""),
    (units.parse_batch, "Mtok"),
    (units.parse_count, ""),
    (units.parse_tflops, ""),
    (units.parse_fraction, ""),
    (units.parse_fraction, "%"),
    (units.parse_tokens, "B"),
    (units.parse_money, "M"),
    (units.parse_hourly, "/h"),
    (units.parse_days, ""),
    (units.parse_hours, "h"),
]


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("450GB/s", 450_000_000_000),
        ("400Gb/s", 50_000_000_000),  # 400 / 8
        ("400Gbps", 50_000_000_000),
        ("400 Gbit/s", 50_000_000_000),
        ("3.35TB/s", 3_350_000_000_000),
        ("25GiB/s", 26_843_545_600),  # 25 x 1073741824
        ("1.6Tb/s", 200_000_000_000),
    ],
)
def test_bandwidth_is_bytes_per_second(text: str, bytes_per_s: float) -> None:
    """Link speeds in bits and in bytes, decimal and binary, become the same bytes per second."""
    assert units.parse_bandwidth(text) == bytes_per_s


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_tokens, "15T", 15_000_000_000_000),
        (units.parse_tokens, "1.4e12", 1_400_000_000_000),
        (units.parse_tokens, "300B", 300_000_000_000),
        (units.parse_money, "2M", 2_000_000.0),
        (units.parse_money, "1.5B", 1_500_000_000.0),
        (units.parse_money, "250k", 250_000.0),
        (units.parse_hourly, "2.50/h", 2.5),
        (units.parse_days, "60d", 60.0),
        (units.parse_hours, "50000", 50_000.0),
        (units.parse_rate, "2e-5", 2e-5),
        (units.parse_rate, "0", 0.0),
        (units.parse_duration, "10min", 600.0),
        (units.parse_duration, "1.5h", 5400.0),
    ],
)
def test_what_a_training_run_is_sized_by(parse: Callable[[str], float], text: str, value: float) -> None:
    """Tokens and money are decimal, a price is for an hour, times of failures may be minutes and hours."""
    assert parse(text) == value


@pytest.mark.parametrize("text", ["450", "450GB", "450gb/s", "450Gb", "450 G B/s", "GB/s"])
def test_bandwidth_without_its_unit_tells_bits_from_bytes(text: str) -> None:
    """A missing or wrong unit is an error that says what GB/s and Gb/s mean."""
    with pytest.raises(InputError, match=r"GB/s counts bytes and Gb/s bits \(8 Gb/s = 1 GB/s\)"):
        units.parse_bandwidth(text)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("80GB", 80_000_000_000), ("141GiB", 151_397_597_184), ("1.5 TiB", 1_649_267_441_664), ("16MB", 16_000_000)],
)
def test_memory_is_whole_bytes(text: str, size_bytes: int) -> None:
    """GB is 10^9 and GiB 2^30 (141 x 1073741824), and the result is an integer."""
    size = units.parse_memory(text)
    assert size == size_bytes
    assert isinstance(size, int)


@pytest.mark.parametrize("text", ["80", "80G", "80gb", "80Gb", "80GB/s"])
def test_memory_needs_its_unit(text: str) -> None:
    """A bare number, or a unit that is not one of memory, is refused with both readings shown."""
    with pytest.raises(InputError, match=r"80GB \(10\^9 bytes\), 141GiB \(2\^30 bytes\)"):
        units.parse_memory(text)


@pytest.mark.parametrize(
    ("text", "tokens"), [("8192", 8192), ("8k", 8192), ("8K", 8192), ("128k", 131_072), ("1M", 1_048_576)]
)
def test_sequence_lengths_are_binary(text: str, tokens: int) -> None:
    """k is 1024 and M is 1048576 tokens of a sequence."""
    assert units.parse_sequence_length(text) == tokens


@pytest.mark.parametrize(
    ("text", "batch"),
    [
        ("2048", ("sequences", 2048)),
        ("4Mtok", ("tokens", 4_194_304)),
        ("512ktok", ("tokens", 524_288)),
        ("1000000tok", ("tokens", 1_000_000)),
    ],
)
def test_batches_say_sequences_or_tokens(text: str, batch: tuple[str, int]) -> None:
    """A plain number counts sequences; `tok` counts tokens, k and M binary."""
    assert units.parse_batch(text) == batch


@pytest.mark.parametrize("text", ["4M", "2k", "4Mtokens", "4MTOK", "512 k tok"])
def test_batches_do_not_guess(text: str) -> None:
    """4M could be sequences or tokens, so it is neither."""
    with pytest.raises(InputError, match="4Mtok"):
        units.parse_batch(text)


def test_tflops_is_a_plain_number() -> None:
    """989 TFLOP/s is 989e12 FLOP/s, and a unit behind the number is refused."""
    assert units.parse_tflops("989") == 989_000_000_000_000
    with pytest.raises(InputError, match="plain number of TFLOP/s"):
        units.parse_tflops("989TFLOPS")


@pytest.mark.parametrize("text", ["0.9", "90%", "90 %", "9/10", ".9", "0.90"])
def test_fractions_have_three_spellings(text: str) -> None:
    """A decimal, a percentage and a ratio name the same share, exactly."""
    assert units.parse_exact_fraction(text) == Fraction(9, 10)
    assert units.parse_fraction(text) == 0.9


@pytest.mark.parametrize("text", ["1.0000001", "9", "101%", "3/2", "1/0", "0/1", "0.0.5", "1//2"])
def test_a_fraction_is_above_zero_and_at_most_one(text: str) -> None:
    """A share outside (0, 1] is refused with the rule."""
    with pytest.raises(InputError, match="above 0 and at most 1"):
        units.parse_fraction(text)


@pytest.mark.parametrize("text", ["8.0", "8.5", "1e3", "+8", "8,192", "0x10", "1_000", "٣"])
@pytest.mark.parametrize("parse", [units.parse_count, units.parse_sequence_length, units.parse_batch])
def test_counts_are_digits(parse: Callable[[str], object], text: str) -> None:
    """A count written as a float, with separators or in other digits is not a count."""
    with pytest.raises(InputError):
        parse(text)


BAD_NUMBERS = ["", " ", "-", "nan", "NaN", "inf", "-inf", "Infinity", "-1", "0", "0.0", "-0", "1e31", "1e999", "abc"]


@pytest.mark.parametrize(("parse", "unit"), PARSERS, ids=lambda p: getattr(p, "__name__", p or "plain"))
@pytest.mark.parametrize("number", [*BAD_NUMBERS, "9" * 5000, "1 2", "1;2", "½", "\x00"])
def test_every_parser_refuses_what_is_no_size(parse: Callable[[str], object], unit: str, number: str) -> None:
    """NaN, infinities, zero, negative, empty, huge and garbage are one InputError each, short and on one line."""
    with pytest.raises(InputError) as caught:
        parse(number + unit)
    message = str(caught.value)
    assert "allowed: " in message
    assert "\n" not in message
    assert len(message) < 220


def test_an_error_names_what_was_asked_for() -> None:
    """The option or field, the text that was given and the rule stand in one line."""
    with pytest.raises(InputError) as caught:
        units.parse_memory("80G", what="--gpu-memory")
    assert str(caught.value) == (
        "--gpu-memory: '80G' has the wrong unit 'G'; allowed: 80GB (10^9 bytes), 141GiB (2^30 bytes)"
    )


@given(st.decimals(min_value=Decimal("1e-3"), max_value=Decimal("1e6"), places=6).filter(lambda x: x > 0))
def test_a_decimal_bandwidth_is_rounded_once(number: Decimal) -> None:
    """For any decimal the result is the double nearest to the exact product, not a product of roundings."""
    exact = Fraction(number) * 10**9 / 8
    assert units.parse_bandwidth(f"{number:f}Gb/s") == exact.numerator / exact.denominator


@given(st.text(max_size=30))
def test_any_text_is_a_number_or_an_input_error(text: str) -> None:
    """No text makes a parser fail in another way than InputError, or return what is not a positive finite number."""
    for parse, _ in PARSERS:
        try:
            value = parse(text)
        except InputError:
            continue
        number = value[1] if isinstance(value, tuple) else value
        assert isinstance(number, int | float)
        assert math.isfinite(number)
        assert number > 0


@pytest.mark.parametrize(
    ("time_s", "shown"),
    [
        (0.0, "0 s"),
        (42e-6, "42.0 us"),
        (0.085, "85.0 ms"),
        (0.99951, "1.00 s"),  # never 1000 ms
        (12.345, "12.3 s"),
        (119.0, "119 s"),
        (126.0, "2.10 min"),
        (12_600.0, "3.50 h"),
        (302_400.0, "3.50 d"),
    ],
)
def test_times_read_with_three_digits(time_s: float, shown: str) -> None:
    """A time is shown with three digits in the unit that suits it."""
    assert units.format_seconds(time_s) == shown


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (units.format_gib(70_115_074_048), "65.3"),  # 65.3 x 1073741824
        (units.format_bytes_gib(70_115_074_048), "65.3 GiB"),
        (units.format_count(70_553_706_496), "70.55 B"),
        (units.format_count(124_439_808), "124.44 M"),
        (units.format_count(999_999_999), "1.00 B"),  # never 1000.00 M
        (units.format_count(1024), "1,024"),
        (units.format_fraction(7 / 39), "17.9 %"),
        (units.format_fraction(7 / 141, digits=2), "4.96 %"),
        (units.format_bandwidth(450e9), "450 GB/s"),
        (units.format_bandwidth(12.5e9), "12.5 GB/s"),
        (units.format_bandwidth(3.35e12), "3.35 TB/s"),
        (units.format_tflops(989e12), "989 TFLOP/s"),
        (units.format_tokens_per_s(45_123.4), "45,123 tok/s"),
        (units.format_tokens_per_s(6_012_345), "6.01 M tok/s"),
    ],
)
def test_quantities_read_as_people_write_them(shown: str, expected: str) -> None:
    """Each formatter shows the unit and the digits that reports promise."""
    assert shown == expected
