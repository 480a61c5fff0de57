"""How a quantity is written: the only place that knows. Inside the program there are bytes, seconds, FLOPs and tokens.

Parsers take what a person wrote and `what` they wrote it for (an option, a field), and raise one InputError that
says both, the rule and examples. Formatters serve the reports; they round, so nothing computes with what they return.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from ppadvisor.errors import InputError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
TFLOP = 10**12

LARGEST, SMALLEST = Decimal("1e30"), Decimal("1e-30")
"""No quantity of a cluster is near these: what lies beyond is a slip of the keyboard."""
LARGEST_COUNT = 10**15
"""Counts stay exact in 64-bit products and in readers of JSON that know only doubles."""

_BYTES = {"kB": KB, "MB": MB, "GB": GB, "TB": TB, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
_BITS = {f"{prefix}{bit}": scale for prefix, scale in {"M": MB, "G": GB, "T": TB}.items() for bit in ("b", "bit")}

_MEMORY_UNITS: dict[str, Fraction] = {unit: Fraction(scale) for unit, scale in _BYTES.items()}
_BANDWIDTH_UNITS: dict[str, Fraction] = {
    **{f"{unit}/s": Fraction(scale) for unit, scale in _BYTES.items()},
    **{f"{unit}/s": Fraction(scale, 8) for unit, scale in _BITS.items()},
    **{f"{prefix}bps": Fraction(scale, 8) for prefix, scale in {"M": MB, "G": GB, "T": TB}.items()},
}
_BINARY_SUFFIXES = {"": Fraction(1), "k": Fraction(KIB), "K": Fraction(KIB), "M": Fraction(MIB)}
_DURATION_UNITS = {"": Fraction(1), "us": Fraction(1, 10**6), "ms": Fraction(1, 10**3), "s": Fraction(1)}
_TOKEN_UNITS = {f"{suffix}tok": scale for suffix, scale in _BINARY_SUFFIXES.items()}

_BITS_OR_BYTES = "GB/s counts bytes and Gb/s bits (8 Gb/s = 1 GB/s)"
_NUMBER_AND_UNIT = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*([A-Za-z/%]*)")


# --- what a person writes ---------------------------------------------------------------------------------------------


def parse_bandwidth(text: str, what: str = "bandwidth") -> float:
    """Bytes per second of `450GB/s`, `400Gb/s`, `3.35TB/s`, `25GiB/s`.

    >>> parse_bandwidth("400Gb/s")
    50000000000.0
    """
    examples = f"450GB/s, 400Gb/s, 25GiB/s; {_BITS_OR_BYTES}"
    return float(_quantity(text, what, _BANDWIDTH_UNITS, examples))


def parse_memory(text: str, what: str = "memory") -> int:
    """Bytes of `80GB` (10^9) or `141GiB` (2^30); a whole number of bytes, the fraction of one cut off."""
    examples = "80GB (10^9 bytes), 141GiB (2^30 bytes)"
    return _bounded_count(int(_quantity(text, what, _MEMORY_UNITS, examples)), text, what, examples)


def parse_sequence_length(text: str, what: str = "sequence length") -> int:
    """Tokens of `8192`, `8k` (binary: 8192) or `1M` (1048576)."""
    return _whole(text, what, _BINARY_SUFFIXES, "8192, 8k (= 8192), 1M (= 1048576)")


def parse_batch(text: str, what: str = "batch") -> tuple[Literal["sequences", "tokens"], int]:
    """A batch in sequences (`2048`) or in tokens (`4Mtok`, `512ktok`; binary)."""
    examples = "2048 (sequences), 4Mtok (= 4194304 tokens), 512ktok"
    if text.strip().endswith("tok"):
        return "tokens", _whole(text, what, _TOKEN_UNITS, examples)
    return "sequences", _whole(text, what, {"": Fraction(1)}, examples)


def parse_count(text: str, what: str = "count") -> int:
    """A positive whole number, written plainly."""
    return _whole(text, what, {"": Fraction(1)}, "a positive whole number such as 8")


def parse_tflops(text: str, what: str = "peak rate") -> float:
    """FLOP/s of a plain number of TFLOP/s: `989`."""
    return float(_quantity(text, what, {"": Fraction(TFLOP)}, "a plain number of TFLOP/s such as 989"))


def parse_duration(text: str, what: str = "time") -> float:
    """Seconds of `1.5`, `1.5s`, `20ms`, `3us` or `0`.

    >>> parse_duration("20ms"), parse_duration("0")
    (0.02, 0.0)
    """
    examples = "a time that is not negative, in seconds unless it says otherwise: 1.5, 20ms, 3us, 0"
    return float(_quantity(text, what, _DURATION_UNITS, examples, zero=True))


def parse_hourly(text: str, what: str = "price") -> float:
    """Money for an hour: `2.50/h`."""
    return float(_quantity(text, what, {"/h": Fraction(1)}, "a price for one GPU and hour such as 2.50/h"))


def parse_tolerance(text: str, what: str = "tolerance") -> float:
    """A share that may be none, or above one where it says so in percent: `0.02`, `2%`, `150%`, `0`.

    >>> parse_tolerance("2%"), parse_tolerance("0")
    (0.02, 0.0)
    """
    examples = "a share such as 0.02 or 2% (one above 1 in percent), 0"
    value = _quantity(text, what, {"": Fraction(1), "%": Fraction(1, 100)}, examples, zero=True)
    if value >= 1 and not text.strip().endswith("%"):
        raise _refused(text, what, "may be meant in percent", examples)
    return float(value)


def parse_fraction(text: str, what: str = "fraction") -> float:
    """A share in (0, 1]: `0.9`, `90%` or `9/10`."""
    return float(parse_exact_fraction(text, what))


def parse_exact_fraction(text: str, what: str = "fraction") -> Fraction:
    """A share in (0, 1] exactly as it was written: `0.05` is 1/20, not the double beside it.

    >>> parse_exact_fraction("5%") == parse_exact_fraction("0.05") == parse_exact_fraction("1/20")
    True
    """
    examples = "a share above 0 and at most 1, such as 0.9, 90% or 9/10"
    ratio = re.fullmatch(r"\s*([0-9]{1,15})\s*/\s*([0-9]{1,15})\s*", text)
    if ratio and int(ratio[1]) and int(ratio[2]):
        value = Fraction(int(ratio[1]), int(ratio[2]))
    else:
        value = _quantity(text, what, {"": Fraction(1), "%": Fraction(1, 100)}, examples)
    if value > 1:
        raise _refused(text, what, "is above 1", examples)
    return value


def _quantity(text: str, what: str, units: Mapping[str, Fraction], examples: str, *, zero: bool = False) -> Fraction:
    """The positive number (or 0, where that is allowed) times its unit, exactly; InputError for anything else."""
    match = _NUMBER_AND_UNIT.fullmatch(text.strip())
    if not match:
        raise _refused(text, what, "is not a quantity" if text.strip() else "is empty", examples)
    number, unit = Decimal(match[1]), match[2]
    if unit not in units:
        raise _refused(text, what, f"has the wrong unit {unit!r}" if unit else "has no unit", examples)
    if zero and number == 0:
        return Fraction(0)
    if number <= 0:
        raise _refused(text, what, "must not be negative" if zero else "must be above zero", examples)
    # Bounded before it becomes a fraction: 1e999 written out as an integer would take a while.
    if not SMALLEST <= number <= LARGEST:
        raise _refused(text, what, "is far too small" if number < 1 else "is far too large", examples)
    return Fraction(number) * units[unit]


def _whole(text: str, what: str, units: Mapping[str, Fraction], examples: str) -> int:
    value = _quantity(text, what, units, examples)
    if not re.fullmatch(r"[0-9]+\s*[A-Za-z]*", text.strip()):
        raise _refused(text, what, "is not a whole number", examples)
    return _bounded_count(int(value), text, what, examples)


def _bounded_count(value: int, text: str, what: str, examples: str) -> int:
    if not 0 < value <= LARGEST_COUNT:
        raise _refused(text, what, "is far too small" if value == 0 else "is far too large", examples)
    return value


def _refused(text: str, what: str, problem: str, examples: str) -> InputError:
    shown = text if len(text) <= 40 else text[:37] + "..."
    return InputError(f"{what}: {shown!r} {problem}; allowed: {examples}")


# --- what a report shows ----------------------------------------------------------------------------------------------


def format_gib(size_bytes: float) -> str:
    """GiB with one decimal, for a column whose header says the unit: `65.3`."""
    return f"{size_bytes / GIB:.1f}"


def format_bytes_gib(size_bytes: float) -> str:
    """`65.3 GiB`."""
    return f"{format_gib(size_bytes)} GiB"


_BYTE_STEPS = ((1, "B"), (KIB, "KiB"), (MIB, "MiB"), (GIB, "GiB"))


def format_bytes(size_bytes: float) -> str:
    """Three digits in the unit that reads best, for what is far smaller than a memory: `64.0 MiB`, `1.63 GiB`.

    >>> format_bytes(2**26), format_bytes(12)
    ('64.0 MiB', '12 B')
    """
    scale, unit = next(step for step in reversed(_BYTE_STEPS) if size_bytes >= step[0] or step[0] == 1)
    return f"{_three_digits(size_bytes / scale) if scale > 1 else f'{size_bytes:.0f}'} {unit}"


_TIME_STEPS = ((1e-6, "us"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "d"))


def format_seconds(time_s: float) -> str:
    """Three digits in the unit that reads best: `85.0 ms`, `12.3 s`, `2.10 min`, `3.50 d`."""
    # Minutes begin at 120 s, hours at 120 min, days at 48 h: below that the smaller unit still reads better.
    if time_s == 0:
        return "0 s"
    scale, unit = time_unit(time_s)
    return f"{_three_digits(time_s / scale)} {unit}"


def time_unit(time_s: float) -> tuple[float, str]:
    """(seconds, name) of the unit in which this time reads best, for columns and axes that have one unit.

    >>> time_unit(0.085)
    (0.001, 'ms')
    """
    rounded = float(f"{time_s:.3g}")
    scale, unit = _TIME_STEPS[0]
    for next_scale, next_unit in _TIME_STEPS[1:]:
        if rounded >= next_scale * (2 if next_scale > 1 else 1):
            scale, unit = next_scale, next_unit
    return scale, unit


_COUNT_STEPS = ((10**12, "T"), (10**9, "B"), (10**6, "M"))


def format_count(count: float) -> str:
    """`70.55 B`, `124.44 M`; below a million every digit: `1,024`."""
    for scale, suffix in _COUNT_STEPS:
        if count >= scale * (1 - 5e-6):  # what would round up to 1000.00 of the smaller unit
            return f"{count / scale:.2f} {suffix}"
    return f"{count:,.0f}"


def format_fraction(share: float, digits: int = 1) -> str:
    """A share in percent: `17.9 %`."""
    return f"{100 * share:.{digits}f} %"


def format_bandwidth(bandwidth_bytes_per_s: float) -> str:
    """`450 GB/s`, `12.5 GB/s`, `3.35 TB/s`."""
    scale, unit = (TB, "TB/s") if bandwidth_bytes_per_s >= TB else (GB, "GB/s")
    return f"{bandwidth_bytes_per_s / scale:.4g} {unit}"


def format_tflops(flops_per_s: float) -> str:
    """`989 TFLOP/s`."""
    return f"{flops_per_s / TFLOP:,.4g} TFLOP/s"


def format_tokens_per_s(tokens_per_s: float) -> str:
    """`45,123 tok/s`, `6.01 M tok/s`."""
    return f"{format_count(tokens_per_s)} tok/s"


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"
