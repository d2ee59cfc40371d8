"""Copying pages between two buffers in host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvfs.fallback.checks import check_int, check_ints, check_lengths, flat_view

if TYPE_CHECKING:
    from typing_extensions import Buffer


def copy_pages(
    src: Buffer, dst: Buffer, src_offsets: list[int], dst_offsets: list[int], page_size_bytes: int
) -> None:
    """Copy a page from each offset of `src` to the matching offset of `dst`.

    Both buffers are C-contiguous and seen as flat bytes; offsets are in bytes. Every range is
    checked before the first byte is copied. Blocks, and holds the GIL while a page is copied: the
    extension does not.

    Raises:
        TypeError: An argument of the wrong type.
        ValueError: A bad buffer or page size, lists of different lengths, a range outside its buffer.
    """
    src_starts = check_ints("src_offsets", src_offsets)
    dst_starts = check_ints("dst_offsets", dst_offsets)
    size = check_int("page_size_bytes", page_size_bytes)
    check_lengths(src_offsets=src_starts, dst_offsets=dst_starts)
    if size < 0:
        raise ValueError(f"page_size_bytes must not be negative, got {size}")
    with (
        flat_view("src", src, writable=False) as src_bytes,
        flat_view("dst", dst, writable=True) as dst_bytes,
    ):
        _check_ranges("src_offsets", src_starts, size, len(src_bytes))
        _check_ranges("dst_offsets", dst_starts, size, len(dst_bytes))
        for src_start, dst_start in zip(src_starts, dst_starts, strict=True):
            dst_bytes[dst_start : dst_start + size] = src_bytes[src_start : src_start + size]


def _check_ranges(name: str, starts: list[int], page_size_bytes: int, size_bytes: int) -> None:
    for index, start in enumerate(starts):
        if start < 0 or start > size_bytes - page_size_bytes:
            raise ValueError(
                f"{name}[{index}]: a page of {page_size_bytes} bytes at offset {start} lies outside "
                f"a buffer of {size_bytes} bytes"
            )
