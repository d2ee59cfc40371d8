"""CRC32C (Castagnoli) of chunks: with NumPy fast and mostly without the GIL, otherwise byte by byte."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Final

# The polynomial without its highest term, its lowest degree in the highest bit.
POLYNOMIAL: Final = 0x82F63B78
ALL_ONES: Final = 0xFFFFFFFF

_logger = logging.getLogger("kvfs")


def checksum(data: memoryview) -> int:
    """Return the CRC32C of flat, contiguous bytes of any length. Copies none of them."""
    return _implementation()(data)


def prepare() -> None:
    """Choose how to compute, which imports NumPy and makes tables, and warn where there is none. Blocks.

    Not for a thread of the engine: the process may fork at any time, which leaves an import half done.
    """
    checksum(memoryview(bytes(1)))


def byte_by_byte(data: memoryview) -> int:
    """Return the CRC32C without NumPy: about 10 MB/s, and the GIL is held."""
    table = byte_table()
    state = ALL_ONES
    for byte in data:
        state = (state >> 8) ^ table[(state ^ byte) & 0xFF]
    return state ^ ALL_ONES


@functools.cache
def byte_table() -> tuple[int, ...]:
    """Return what each value of the lowest byte adds to the state when that byte is shifted out."""
    return tuple(functools.reduce(shift_bit, range(8), value) for value in range(256))


def shift_bit(state: int, _: int = 0) -> int:
    """Return the state after one zero bit."""
    return (state >> 1) ^ (POLYNOMIAL if state & 1 else 0)


@functools.cache
def _implementation() -> Callable[[memoryview], int]:
    try:
        # Not at the top: kvfs needs no NumPy, whose import takes a moment and starts threads.
        from kvfs.fallback import crc32c_numpy  # noqa: PLC0415
    except ImportError:
        _logger.warning(
            "without NumPy kvfs's Python engine computes checksums at about 10 MB/s; install NumPy or kvfs's "
            "native extension, or set checksum to 'off'"
        )
        return byte_by_byte
    return crc32c_numpy.checksum
