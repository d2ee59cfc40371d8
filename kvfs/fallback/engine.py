"""Level 2: the engine as its callers see it; what it does is in core.py."""

from __future__ import annotations

import contextlib
import math
import os
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from kvfs.fallback import crc32c
from kvfs.fallback.checks import (
    check_bool,
    check_byte_limit,
    check_checksum,
    check_index_mode,
    check_ints,
    check_io_engine,
    check_job_id,
    check_key,
    check_keys,
    check_lengths,
    check_mode,
    check_optional_limit,
    check_path,
    check_seconds,
    check_threads,
    check_timeout,
    type_error,
)
from kvfs.fallback.chunks import Chunks
from kvfs.fallback.core import Core
from kvfs.fallback.ownership import Ownership
from kvfs.fallback.primary import PrimaryTier
from kvfs.fallback.queue import ByteLimits
from kvfs.fallback.seals import Seals
from kvfs.fallback.space import Space, SpaceLimits
from kvfs.fallback.tier_lookup import TierLookup
from kvfs.jobs import Completion
from kvfs.paths import make_directories
from kvfs.permissions import DIR_MODE, FILE_MODE

if TYPE_CHECKING:
    from typing_extensions import Buffer

_Answer = TypeVar("_Answer")


class Engine:
    """Threads that run jobs against one namespace; see docs/engine.md, level 2. Thread-safe.

    Python threads do the I/O: each system call runs without the GIL, what lies between them does not.
    An engine that is dropped without `close()` closes itself.

    Args:
        base_path: The namespace's directory; made with its parents if it is missing.
        buffer: The primary tier: writable, C-contiguous, one byte an element, of shape
            (num_chunks, chunk_size_bytes). Held until `close()`.
        n_read_threads: Threads, 1 to 1024, together with the next ones; each takes what is most urgent.
        n_write_threads: More threads, 1 to 1024.
        use_o_direct: Whether to try O_DIRECT.
        io_engine: "auto" or "psync"; "uring" is refused, since Python has no way to it.
        max_inflight_read_bytes: Loads that may be in flight at once; one chunk always may.
        max_inflight_write_bytes: The same for stores; an eighth of it while loads wait or run.
        max_queued_store_bytes: Stores that may wait; what comes on top is shed. None sheds nothing.
        index_mode: "owner", "shared", or "auto": the owner if nobody else uses the namespace.
        negative_ttl_s: How long a shared engine believes that a chunk is absent.
        checksum: "auto" seals and verifies chunks where the file system has extended attributes, "require"
            takes no chunk without a seal, "off" does neither; see docs/integrity.md.
        file_mode: Mode of new files, with the owner's read and write bits.
        dir_mode: Mode of new directories, with all of the owner's bits.
        capacity_bytes: What all files below `space_root` may take on disk, at least four chunks; chunks are
            evicted before it is reached. None is no limit. See docs/capacity.md.
        min_free_bytes: What is to be left free on that file system. None is no limit.
        space_root: What the limits are for, made if it is missing; None is `base_path`.

    Raises:
        TypeError: An argument of the wrong type.
        ValueError: An argument with a wrong value.
        OSError: The directory cannot be made, "uring" was asked for, there are too few threads, somebody
            else uses the namespace and "owner" was asked for (EBUSY), or the file system has no extended
            attributes and checksums are required (ENOTSUP).
    """

    io_engine: Final = "python"
    io_engine_reason: Final = "the pure-Python engine has no other"

    def __init__(  # noqa: PLR0913, PLR0917 - the extension's interface
        self,
        base_path: str,
        buffer: Buffer,
        n_read_threads: int,
        n_write_threads: int,
        use_o_direct: bool = True,
        io_engine: str = "auto",
        max_inflight_read_bytes: int = 64 << 20,
        max_inflight_write_bytes: int = 16 << 20,
        max_queued_store_bytes: int | None = None,
        index_mode: str = "auto",
        negative_ttl_s: float = 1.0,
        checksum: str = "auto",
        file_mode: int = FILE_MODE,
        dir_mode: int = DIR_MODE,
        capacity_bytes: int | None = None,
        min_free_bytes: int | None = None,
        space_root: str | None = None,
    ) -> None:
        check_path("base_path", base_path)
        if not base_path:
            raise ValueError("base_path must not be empty; give the namespace's directory")
        n_threads = check_threads("n_read_threads", n_read_threads)
        n_threads += check_threads("n_write_threads", n_write_threads)
        check_bool("use_o_direct", use_o_direct)
        queue_limits = ByteLimits(
            check_byte_limit("max_inflight_read_bytes", max_inflight_read_bytes),
            check_byte_limit("max_inflight_write_bytes", max_inflight_write_bytes),
            check_optional_limit("max_queued_store_bytes", max_queued_store_bytes),
        )
        check_index_mode(index_mode)
        ttl_s = check_seconds("negative_ttl_s", negative_ttl_s)
        check_checksum(checksum)
        new_file_mode = check_mode("file_mode", file_mode, FILE_MODE)
        new_dir_mode = check_mode("dir_mode", dir_mode, DIR_MODE)
        check_io_engine(io_engine, base_path)
        space_limits = SpaceLimits(
            check_optional_limit("capacity_bytes", capacity_bytes),
            check_optional_limit("min_free_bytes", min_free_bytes),
        )
        root = base_path if space_root is None else check_path("space_root", space_root)
        with contextlib.ExitStack() as undo:
            primary = PrimaryTier(buffer)
            undo.callback(primary.release)
            space_limits.check(primary.chunk_size_bytes)
            make_directories(base_path, new_dir_mode)
            # What lies there may be no directory.
            os.close(os.open(base_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            # Before the first temporary: another engine's scan would take it for an orphan.
            ownership = Ownership(base_path, index_mode, new_file_mode)
            undo.callback(ownership.release)
            chunks = Chunks(base_path, Seals(base_path, checksum), new_file_mode, new_dir_mode)
            space = Space(space_limits, root, primary.chunk_size_bytes, new_file_mode, new_dir_mode)
            undo.callback(space.close)
            core = Core(chunks, ownership, space, primary, n_threads, use_o_direct, queue_limits, ttl_s)
            undo.pop_all()
        self._core = core
        self._finalizer = weakref.finalize(self, core.close_dropped)
        if chunks.seals.active:
            crc32c.prepare()

    def submit_store(self, job_id: int, keys: bytes, key_size_bytes: int, chunk_ids: list[int]) -> None:
        """Accept a job that stores rows of the primary tier. Does not block.

        Raises:
            TypeError: An argument of the wrong type; nothing was accepted.
            ValueError: An argument of the wrong size; nothing was accepted.
            RuntimeError: The engine is closed.
        """
        self._submit_transfer("store", job_id, keys, key_size_bytes, chunk_ids)

    def submit_load(self, job_id: int, keys: bytes, key_size_bytes: int, chunk_ids: list[int]) -> None:
        """Accept a job that loads into rows of the primary tier. Does not block.

        Raises:
            TypeError: An argument of the wrong type; nothing was accepted.
            ValueError: An argument of the wrong size; nothing was accepted.
            RuntimeError: The engine is closed.
        """
        self._submit_transfer("load", job_id, keys, key_size_bytes, chunk_ids)

    def submit_lookup(self, job_id: int, keys: bytes, key_size_bytes: int) -> None:
        """Accept a job that looks keys up. Does not block.

        Raises:
            TypeError: An argument of the wrong type; nothing was accepted.
            ValueError: An argument of the wrong size; nothing was accepted.
            RuntimeError: The engine is closed.
        """
        number = check_job_id(job_id)
        check_keys(keys, key_size_bytes)
        self._core.submit(number, "lookup", keys, key_size_bytes, [])

    def lookup(self, key: bytes) -> int:
        """Return what is known of a key: `MISS`, `HIT`, `RETRY` or `EXPIRED`. Never touches the disk.

        Raises:
            TypeError: No bytes.
            ValueError: A key of less than 5 or more than 255 bytes.
        """
        check_key(key)
        return self._core.lookup(key)

    def ask(self, key: bytes, waiting_since_s: float = math.inf) -> int:
        """Return `MISS` or `HIT`; or `RETRY`, and then the disk is asked. Does not block.

        Args:
            key: The key.
            waiting_since_s: An absence found since then (`time.monotonic()`) counts, however old it is.

        Raises:
            TypeError: No bytes.
            ValueError: A key of less than 5 or more than 255 bytes.
        """
        check_key(key)
        if not isinstance(waiting_since_s, int | float):
            raise type_error("waiting_since_s", "a number of seconds", waiting_since_s)
        return self._core.ask(key, waiting_since_s)[0]

    def tier_lookup(self, miss: _Answer, hit: _Answer, retry: _Answer) -> TierLookup[_Answer]:
        """Return what answers the lookups of a tier; see `kvfs.jobs.EngineLike.tier_lookup`."""
        return TierLookup(self._core, miss, hit, retry)

    def lookup_prefix(self, keys: bytes, key_size_bytes: int) -> int:
        """Count the packed keys that are hits, up to the first that is none. Never touches the disk.

        Raises:
            TypeError: An argument of the wrong type.
            ValueError: An argument of the wrong size.
        """
        return self._core.lookup_prefix(_unpacked(keys, key_size_bytes))

    def probe(self, key: bytes) -> None:
        """Ask the disk about a key, unless that is being done or it is a hit. Does not block.

        Raises:
            TypeError: No bytes.
            ValueError: A key of less than 5 or more than 255 bytes.
        """
        check_key(key)
        self._core.probe(key)

    def submit_probes(self) -> None:
        """Hand the questions that were collected to the threads. Does not block."""
        self._core.submit_probes()

    def touch(self, keys: bytes, key_size_bytes: int) -> None:
        """Note that the packed keys were used now, where they are present. Does not block.

        Raises:
            TypeError: An argument of the wrong type.
            ValueError: An argument of the wrong size.
        """
        self._core.touch(_unpacked(keys, key_size_bytes))

    def take_evicted(self) -> list[bytes]:
        """Return the keys of chunks evicted since the last call, the last 65,536 of them. Does not block."""
        return self._core.take_evicted()

    def poll(self) -> list[Completion]:
        """Return the jobs that finished since the last call, each exactly once. Does not block."""
        return self._core.poll()

    def drain(self, timeout_s: float | None = None) -> bool:
        """Block until no job and no probe is unfinished; False when `timeout_s` passed first.

        Raises:
            TypeError: `timeout_s` is neither None nor a number.
            ValueError: `timeout_s` is negative or NaN.
        """
        return self._core.drain(check_timeout(timeout_s))

    def close(self, timeout_s: float | None = None) -> int:
        """Cancel queued ops, wait for running ones, join the threads, release the buffer.

        Completions that remain can still be polled. May be called again, from any thread.

        Args:
            timeout_s: How long to wait at most; None waits as long as it takes.

        Returns:
            0, or how many jobs have not ended because the file system does not answer, at least 1; then the
            buffer stays pinned.

        Raises:
            TypeError: `timeout_s` is neither None nor a number.
            ValueError: `timeout_s` is negative or NaN.
        """
        return self._core.close(check_timeout(timeout_s))

    def stats(self) -> dict[str, int]:
        """Return counts of events since the start, and of what is there now. Does not block."""
        return self._core.stats()

    def _submit_transfer(
        self, kind: str, job_id: int, keys: bytes, key_size_bytes: int, chunk_ids: list[int]
    ) -> None:
        number = check_job_id(job_id)
        count = check_keys(keys, key_size_bytes)
        ids = check_ints("chunk_ids", chunk_ids)
        check_lengths(keys=range(count), chunk_ids=ids)
        self._core.submit(number, kind, keys, key_size_bytes, ids)


def _unpacked(keys: bytes, key_size_bytes: int) -> Iterator[bytes]:
    """Return the packed keys one by one, after checking them all."""
    count = check_keys(keys, key_size_bytes)
    # Not the argument: a NumPy integer of a few bits would overflow.
    size = len(keys) // max(count, 1)
    return (keys[at * size : (at + 1) * size] for at in range(count))
