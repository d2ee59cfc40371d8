"""The primary tier's memory: rows of one size, one a chunk."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final

from kvfs.fallback.checks import flat_view

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BUFFER_DIMENSIONS: Final = 2


class PrimaryTier:
    """The rows of a buffer, which is pinned until `release`.

    Args:
        buffer: Writable, C-contiguous, one byte an element, of shape (num_chunks, chunk_size_bytes).

    Raises:
        TypeError: No buffer protocol.
        ValueError: A buffer of another shape, read-only or not contiguous.
    """

    def __init__(self, buffer: Buffer) -> None:
        self._view = flat_view("buffer", buffer, writable=True)
        with memoryview(buffer) as view:
            shape, itemsize = tuple(view.shape or ()), view.itemsize
        if len(shape) != _BUFFER_DIMENSIONS or itemsize != 1 or not len(self._view):
            self._view.release()
            raise ValueError(
                "buffer must have shape (num_chunks, chunk_size_bytes) with one byte an element, got shape "
                f"{shape} with {itemsize} bytes an element"
            )
        self.num_chunks, self.chunk_size_bytes = shape
        # Only the address; the view keeps the memory where it is.
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._view))

    def row(self, chunk_id: int) -> memoryview:
        """Return a row, which the caller releases."""
        start = chunk_id * self.chunk_size_bytes
        return self._view[start : start + self.chunk_size_bytes]

    def aligned(self, chunk_id: int, offset: int, alignment: int) -> bool:
        """Tell whether a transfer from an offset of a row to its end is aligned."""
        address = self._address + chunk_id * self.chunk_size_bytes + offset
        return address % alignment == 0 and (self.chunk_size_bytes - offset) % alignment == 0

    def release(self) -> None:
        """Let go of the buffer. May be called again."""
        self._view.release()
