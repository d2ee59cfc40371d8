"""copy_pages: what is copied, and that no byte moves when a range or a buffer is bad."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvfs.jobs import IoBackend

PAGE = 16
SOURCE = bytes(range(64))


@pytest.mark.parametrize("page_size_bytes", [1, 3, 64, 4096, 65537])
def test_copy_pages_scattered_pages_lands_each_at_its_offset(io: IoBackend, page_size_bytes: int) -> None:
    rng = random.Random(page_size_bytes)
    count = 20
    src = rng.randbytes(count * page_size_bytes + 5)
    dst = bytearray(count * page_size_bytes + 7)
    src_offsets = [number * page_size_bytes + 5 for number in rng.sample(range(count), count)]
    dst_offsets = [number * page_size_bytes + 7 for number in rng.sample(range(count), count)]
    expected = bytearray(dst)
    for start, end in zip(src_offsets, dst_offsets, strict=True):
        expected[end : end + page_size_bytes] = src[start : start + page_size_bytes]
    io.copy_pages(src, dst, src_offsets, dst_offsets, page_size_bytes)
    assert dst == expected


def test_copy_pages_one_source_page_to_many_places_copies_all(io: IoBackend) -> None:
    dst = bytearray(64)
    io.copy_pages(SOURCE, dst, [16, 16, 16], [0, 16, 48], PAGE)
    assert dst == SOURCE[16:32] * 2 + bytes(16) + SOURCE[16:32]


def test_copy_pages_multi_dimensional_buffers_are_flat_bytes(io: IoBackend) -> None:
    src = np.arange(32, dtype=np.int16).reshape(4, 8)
    dst = np.zeros((2, 32), dtype=np.int8)
    io.copy_pages(src, dst, [16], [40], PAGE)  # type: ignore[arg-type] # NumPy hides it for 3.11
    assert dst.tobytes() == bytes(40) + src.tobytes()[16:32] + bytes(8)


@pytest.mark.parametrize("offset", [0, 48], ids=["first", "last"])
def test_copy_pages_at_the_bounds_copies(io: IoBackend, offset: int) -> None:
    dst = bytearray(64)
    io.copy_pages(SOURCE, dst, [offset], [48 - offset], PAGE)
    assert dst[48 - offset : 64 - offset] == SOURCE[offset : offset + PAGE]


def test_copy_pages_within_one_buffer_copies(io: IoBackend) -> None:
    memory = bytearray(SOURCE)
    io.copy_pages(memory, memory, [0], [8], PAGE)
    assert memory == SOURCE[:8] + SOURCE[:16] + SOURCE[24:]


def test_copy_pages_pages_of_no_bytes_copy_nothing(io: IoBackend) -> None:
    dst = bytearray(64)
    io.copy_pages(SOURCE, dst, [0, 64], [64, 0], 0)
    io.copy_pages(b"", bytearray(), [], [], PAGE)
    assert dst == bytes(64)


def test_copy_pages_numpy_integers_are_offsets(io: IoBackend) -> None:
    dst = bytearray(64)
    io.copy_pages(SOURCE, dst, list(np.array([16])), list(np.array([32])), PAGE)
    assert dst == bytes(32) + SOURCE[16:32] + bytes(16)


def test_copy_pages_no_offsets_copies_nothing(io: IoBackend) -> None:
    dst = bytearray(64)
    io.copy_pages(SOURCE, dst, [], [], PAGE)
    assert dst == bytes(64)


@pytest.mark.parametrize("side", ["src", "dst"])
@pytest.mark.parametrize(
    "offset", [-1, -16, 49, 64, 2**31, 2**63 - 1, 2**63 - PAGE, 2**64 - 8, -(2**63), 2**64, -(2**70)]
)
def test_copy_pages_range_outside_raises_value_error_with_index_and_copies_nothing(
    io: IoBackend, side: str, offset: int
) -> None:
    dst = bytearray(64)
    offsets = {"src": [0, 16, 0], "dst": [0, 16, 32], side: [0, 16, offset]}
    with pytest.raises(ValueError, match=r"\b2\b"):
        io.copy_pages(SOURCE, dst, offsets["src"], offsets["dst"], PAGE)
    assert dst == bytes(64)


@pytest.mark.parametrize("page_size_bytes", [-1, -(2**63), 2**64], ids=str)
def test_copy_pages_impossible_page_size_raises(io: IoBackend, page_size_bytes: int) -> None:
    dst = bytearray(64)
    with pytest.raises((TypeError, ValueError)):
        io.copy_pages(SOURCE, dst, [0], [0], page_size_bytes)
    assert dst == bytes(64)


@pytest.mark.parametrize("page_size_bytes", [65, 2**31, 2**62, 2**63 - 1])
def test_copy_pages_page_larger_than_the_buffer_raises_value_error(
    io: IoBackend, page_size_bytes: int
) -> None:
    dst = bytearray(64)
    with pytest.raises(ValueError, match=r"\b0\b"):
        io.copy_pages(SOURCE, dst, [0], [0], page_size_bytes)
    assert dst == bytes(64)


@pytest.mark.parametrize(("src_count", "dst_count"), [(1, 2), (3, 2), (0, 1)])
def test_copy_pages_mismatched_lengths_raises_value_error_with_lengths(
    io: IoBackend, src_count: int, dst_count: int
) -> None:
    dst = bytearray(64)
    with pytest.raises(ValueError, match=str(src_count)) as caught:
        io.copy_pages(SOURCE, dst, [0] * src_count, [0] * dst_count, PAGE)
    assert str(dst_count) in str(caught.value)
    assert dst == bytes(64)


@pytest.mark.parametrize(
    ("src", "dst", "error", "words"),
    [
        pytest.param(SOURCE, bytes(64), ValueError, "writable", id="read-only-dst"),
        pytest.param(SOURCE, memoryview(bytearray(128))[::2], ValueError, "contiguous", id="strided-dst"),
        pytest.param(memoryview(bytes(128))[::2], bytearray(64), ValueError, "contiguous", id="strided-src"),
        pytest.param("text", bytearray(64), TypeError, "str", id="str-src"),
        pytest.param(SOURCE, None, TypeError, "None", id="none-dst"),
    ],
)
def test_copy_pages_unusable_buffer_raises(
    io: IoBackend, src: bytes, dst: bytearray, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        io.copy_pages(src, dst, [0], [0], PAGE)


@pytest.mark.parametrize("offsets", [(0,), None, 0, "0", [0.0], ["0"], [None]], ids=repr)
@pytest.mark.parametrize("side", ["src", "dst"])
def test_copy_pages_offsets_no_list_of_int_raises_type_error(
    io: IoBackend, side: str, offsets: list[int]
) -> None:
    dst = bytearray(64)
    arguments = {"src": [0], "dst": [0], side: offsets}
    with pytest.raises(TypeError):
        io.copy_pages(SOURCE, dst, arguments["src"], arguments["dst"], PAGE)
    assert dst == bytes(64)
