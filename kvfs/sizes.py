"""Sizes as people write them: whole bytes, or a number with a unit such as "200GiB" or "1.5 TB"."""

from __future__ import annotations

import fractions
import re
from typing import Final

# What the extension's integers hold.
BYTES_MAX: Final = 2**63 - 1

_SIZE: Final = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?) ?([a-zA-Z]*)")
_LETTERS: Final = "KMGTPE"
# Letters without a B are left out: to some 1 G is 10**9 bytes, to others 2**30.
_BYTES_BY_UNIT: Final = {
    "": 1,
    "B": 1,
    "kB": 1000,
    **{f"{letter}B": 1000 ** (power + 1) for power, letter in enumerate(_LETTERS)},
    **{f"{letter}iB": 1024 ** (power + 1) for power, letter in enumerate(_LETTERS)},
}
EXPECTED: Final = 'a number of bytes, or text such as "200GiB", "1.5TB" or "500 MiB" (kB to EB, KiB to EiB)'


def parse_size(size: int | str) -> int:
    """Return how many bytes a size is; fractions of a byte are dropped.

    Raises:
        TypeError: Neither an integer nor text.
        ValueError: Text that is no size, or a size outside 1 to 2**63 - 1.
    """
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise TypeError(f"must be {EXPECTED}, got {size!r}")
    size_bytes = size if isinstance(size, int) else _parse(size)
    if not 1 <= size_bytes <= BYTES_MAX:
        raise ValueError(f"must be at least 1 and at most {BYTES_MAX} bytes, got {size!r}")
    return size_bytes


def format_size(size_bytes: int) -> str:
    """Return a size for people, in the largest binary unit that it fills."""
    power = min(max(size_bytes.bit_length() - 1, 0) // 10, len(_LETTERS))
    return f"{size_bytes / 1024**power:.1f} {_LETTERS[power - 1]}iB" if power else f"{size_bytes} B"


def _parse(text: str) -> int:
    parts = _SIZE.fullmatch(text.strip())
    unit_bytes = _BYTES_BY_UNIT.get(parts[2]) if parts else None
    if parts is None or unit_bytes is None:
        raise ValueError(f"must be {EXPECTED}, got {text!r}")
    # Not a float, which holds no more than 53 bits.
    return int(fractions.Fraction(parts[1]) * unit_bytes)
