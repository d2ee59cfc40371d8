"""Level 1: batches over paths, in the calling thread."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from kvfs.fallback import files
from kvfs.fallback.checks import check_bool, check_lengths, check_paths, flat_views

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer


def batch_lookup(paths: list[str]) -> list[bool]:
    """Tell for each path whether a regular file that is not empty lies there.

    Blocks. Links are not followed, and a path that cannot be looked at is a no.

    Raises:
        TypeError: Not a list, or an element that is no str.
        ValueError: A path with NUL or that the file system encoding cannot express.
    """
    return [files.exists(path) for path in check_paths("paths", paths)]


def batch_store(
    tmp_paths: list[str], dest_paths: list[str], buffers: list[Buffer], use_o_direct: bool = True
) -> None:
    """Store each buffer at its destination, through the temporary of the same index.

    Blocks. A destination that is a regular file of the buffer's size is left as it is.

    Raises:
        TypeError: Not a list, an element that is no str, no buffer protocol.
        ValueError: A bad path, an empty or non-contiguous buffer, lists of different lengths.
        OSError: The first failure; `num_succeeded` buffers were stored before it.
    """
    temporaries = check_paths("tmp_paths", tmp_paths)
    destinations = check_paths("dest_paths", dest_paths)
    with flat_views("buffers", buffers, writable=False) as chunks:
        check_lengths(tmp_paths=temporaries, dest_paths=destinations, buffers=chunks)
        check_bool("use_o_direct", use_o_direct)
        for index, (temporary, path, chunk) in enumerate(zip(temporaries, destinations, chunks, strict=True)):
            direct = use_o_direct and len(chunk) % files.DIRECT_ALIGNMENT_MIN == 0
            with _numbered(index, path):
                files.store(files.BlockFile(path), temporary, chunk, direct=direct, report=files.OpReport())


def batch_load(paths: list[str], buffers: list[Buffer], use_o_direct: bool = True) -> None:
    """Fill each buffer from the file of exactly its size at the path of the same index.

    Blocks. After a failure the content of the buffers from that index on is unspecified.

    Raises:
        TypeError: Not a list, an element that is no str, no buffer protocol.
        ValueError: A bad path, an empty, read-only or non-contiguous buffer, lists of different lengths.
        OSError: The first failure; `num_succeeded` buffers were loaded before it.
    """
    sources = check_paths("paths", paths)
    with flat_views("buffers", buffers, writable=True) as chunks:
        check_lengths(paths=sources, buffers=chunks)
        check_bool("use_o_direct", use_o_direct)
        for index, (path, chunk) in enumerate(zip(sources, chunks, strict=True)):
            direct = use_o_direct and len(chunk) % files.DIRECT_ALIGNMENT_MIN == 0
            with _numbered(index, path):
                files.load(files.BlockFile(path), chunk, direct=direct, report=files.OpReport())


@contextlib.contextmanager
def _numbered(index: int, path: str) -> Iterator[None]:
    """Give an OSError the path it is about and the count of elements that succeeded before it."""
    try:
        yield
    except OSError as error:
        numbered = OSError(error.errno, error.strerror, path)
        numbered.num_succeeded = index  # type: ignore[attr-defined] # vLLM's fs_io_C sets it the same way
        raise numbered from error
