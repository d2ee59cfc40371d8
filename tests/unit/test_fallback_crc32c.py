"""The Python engine's checksums by themselves: every length and start, without a copy, and without NumPy."""

from __future__ import annotations

import json
import mmap
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from seal_parts import crc32c as textbook

from kvfs.fallback import crc32c, crc32c_numpy

# The Castagnoli polynomial with its highest term, the highest degree in the highest bit.
_POLYNOMIAL = 0x11EDC6F41
KNOWN = [
    (b"", 0),
    (b"a", 0xC1D04330),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
]


@pytest.mark.parametrize(("data", "expected"), KNOWN, ids=["empty", "a", "digits", "zeros", "ones", "count"])
def test_both_ways_give_the_published_checksums(data: bytes, expected: int) -> None:
    assert textbook(data) == expected
    assert crc32c.byte_by_byte(memoryview(data)) == expected
    assert crc32c_numpy.checksum(memoryview(data)) == expected
    assert crc32c.checksum(memoryview(data)) == expected


def test_numpy_every_short_length_is_right() -> None:
    data = random.Random(1).randbytes(700)
    for size in range(len(data)):
        view = memoryview(data)[:size]
        assert crc32c_numpy.checksum(view) == crc32c.byte_by_byte(view)


# Around the lengths from which the divisor is another one.
@pytest.mark.parametrize("gap", [1, 2, 4, 8])
@pytest.mark.parametrize("around", [1, 2, 3])
def test_numpy_lengths_around_those_of_the_divisors_are_right(gap: int, around: int) -> None:
    middle = around * gap * crc32c_numpy._DEGREE
    data = random.Random(middle).randbytes(middle + 9)
    for size in (middle - 1, middle, middle + 1, middle + 9):
        view = memoryview(data)[:size]
        assert crc32c_numpy.checksum(view) == crc32c.byte_by_byte(view)


def test_numpy_random_lengths_and_starts_are_right() -> None:
    draw = random.Random(2)
    data = draw.randbytes(900_000)
    for _ in range(12):
        start = draw.randrange(17)
        view = memoryview(data)[start : start + draw.randrange(draw.choice([5_000, 60_000, 880_000]))]
        assert crc32c_numpy.checksum(view) == crc32c.byte_by_byte(view)


def test_divisor_is_a_multiple_of_the_polynomial() -> None:
    degrees = (crc32c_numpy._DEGREE, *crc32c_numpy._MIDDLE_DEGREES, 0)
    remainder = 0
    for degree in degrees:
        remainder ^= _power_of_x(degree)
    assert remainder == 0


def _times(one: int, other: int) -> int:
    """Multiply two polynomials modulo the CRC's."""
    product = 0
    while other:
        product ^= one if other & 1 else 0
        other >>= 1
        one <<= 1
        one ^= _POLYNOMIAL if one >> 32 else 0
    return product


def _power_of_x(exponent: int) -> int:
    """Return x^exponent modulo the CRC's polynomial."""
    power, square = 1, 2
    while exponent:
        if exponent & 1:
            power = _times(power, square)
        square = _times(square, square)
        exponent >>= 1
    return power


def _reversed_bits(state: int) -> int:
    return int(f"{state:032b}"[::-1], 2)


def test_numpy_beyond_two_gib_is_right_and_copies_nothing() -> None:
    size_bytes = 2**31 + 4097
    end = b"123456789"
    # Pages that nobody has written take no memory.
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[size_bytes - len(end) :] = end
        view = memoryview(memory)
        tracemalloc.start()
        try:
            found = crc32c_numpy.checksum(view)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            view.release()
    zeros = _times(0xFFFFFFFF, _power_of_x(8 * (size_bytes - len(end))))
    state = _reversed_bits(zeros)
    for byte in end:
        state = state >> 8 ^ crc32c.byte_table()[state & 0xFF ^ byte]
    assert found == state ^ 0xFFFFFFFF
    assert peak_bytes < 16 << 20


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.bool_], ids=lambda kind: kind.__name__)
def test_numpy_views_of_other_formats_are_bytes(kind: type[np.generic]) -> None:
    data = np.frombuffer(random.Random(3).randbytes(5000), np.uint8).view(kind)
    flat = memoryview(data.view(np.uint8).data)
    assert crc32c.checksum(flat) == textbook(data.tobytes())


WITHOUT_NUMPY = """
import json, logging, sys
sys.modules["numpy"] = None
records = []
handler = logging.Handler()
handler.emit = lambda record: records.append((record.levelname, record.getMessage()))
logging.getLogger("kvfs").addHandler(handler)
from kvfs.fallback import Engine

checksums = []
for number in range(2):
    buffer = memoryview(bytearray(b"123456789" * 2)).cast("B", (2, 9))
    engine = Engine(sys.argv[1], buffer, 1, 1, index_mode="shared")
    engine.submit_store(1, bytes([number]) * 36, 36, [0])
    engine.submit_load(2, bytes([number]) * 36, 36, [1])
    engine.drain(30)
    engine.submit_load(3, bytes([number]) * 36, 36, [1])
    engine.drain(30)
    engine.close()
    checksums.append([engine.poll()[-1].outcomes, engine.stats()["seals"]])
print(json.dumps([checksums, records]))
"""


def test_without_numpy_chunks_are_sealed_and_one_warning_says_how_slowly(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMPY, str(tmp_path / "ns")],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    outcomes, records = json.loads(result.stdout)
    assert outcomes == [[[0], 1], [[0], 1]]
    assert [level for level, _ in records] == ["WARNING"]
    assert "without NumPy" in records[0][1]
    assert "checksum to 'off'" in records[0][1]
