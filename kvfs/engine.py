"""Chunks of one namespace by key: the one door to the native engine or to its Python stand-in."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from kvfs import backend, filesystems, identity
from kvfs.config import TierConfig
from kvfs.jobs import CompletionLike, TierLookupLike
from kvfs.notices import Notices, warn_of_the_place
from kvfs.paths import Namespace

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Buffer

# vLLM's usual key, for jobs without keys to look at.
_DEFAULT_KEY_SIZE_BYTES = 36

_logger = logging.getLogger("kvfs")
_Answer = TypeVar("_Answer")


class ChunkEngine:
    """Store, load and look up chunks as jobs that run on the engine's own threads.

    Not thread-safe against `close()`; any thread may submit or poll. No method but `drain` and `close`
    blocks, and none of them touches the disk on the calling thread.
    """

    def __init__(self, namespace: Namespace, buffer: Buffer, config: TierConfig) -> None:
        """Write the namespace's `config.json` and `kvfs.json`, or compare with them, and start the engine.

        Args:
            namespace: Where the chunks lie.
            buffer: The primary tier, shape (num_chunks, chunk_size_bytes), one byte an element, writable,
                C-contiguous. Pinned until `close()`.
            config: Thread counts, limits, how to do I/O.

        Raises:
            OSError: The namespace cannot be read or written, there is no room for the threads, it is in use
                (EBUSY, with `index_mode` "owner"), or no place for checksums (ENOTSUP, "require").
            ValueError: The buffer has another shape, the capacity is less than four chunks, or the namespace
                belongs to another configuration or holds other chunks.
        """
        with memoryview(buffer) as view:
            queued = config.max_queued_store_bytes or max(1, view.nbytes // 2)
            chunk_size_bytes = identity.chunk_size_of(view)
        namespace.write_config(config.file_mode, config.dir_mode)
        # What is no primary tier the engine refuses below; nothing is recorded of it.
        record = identity.settle(namespace, chunk_size_bytes, config.file_mode) if chunk_size_bytes else {}
        self.namespace = namespace
        index_mode = config.index_mode
        if index_mode == "auto" and not filesystems.is_local(namespace.base_path):
            index_mode = "shared"
        try:
            self._native = backend.load().Engine(
                namespace.base_path,
                buffer,
                config.n_read_threads,
                config.n_write_threads,
                config.use_o_direct,
                config.io_engine,
                config.max_inflight_read_bytes,
                config.max_inflight_write_bytes,
                queued,
                index_mode,
                config.negative_ttl_s,
                config.checksum,
                config.file_mode,
                config.dir_mode,
                config.capacity_bytes,
                config.min_free_bytes,
                # One limit for all namespaces, also of other models and ranks.
                namespace.root_dir,
            )
        except OSError as error:
            if error.errno != errno.EBUSY or index_mode != "owner":
                raise
            raise OSError(
                errno.EBUSY,
                "another kvfs uses this namespace, and index_mode is 'owner'; use 'auto' or 'shared'",
                namespace.base_path,
            ) from error
        # No wrappers: vLLM asks key by key on its scheduler's thread.
        self.ask: Callable[[bytes, float], int] = self._native.ask
        """`MISS`, `HIT` or `RETRY` for a key, from memory; see `kvfs.jobs.EngineLike.ask`."""
        self._notices = Notices(namespace, config, queued, self._native.stats)
        warn_of_the_place(namespace, config, sealed=bool(self._native.stats()["seals"]))
        _logger.info(
            "kvfs serves %s, chunks of %d bytes, weights %s, through %s (%s) with %d threads, %s",
            namespace.base_path,
            chunk_size_bytes,
            record.get("weights") or "unknown",
            self._native.io_engine,
            self._native.io_engine_reason,
            config.n_read_threads + config.n_write_threads,
            "as its only writer" if self._notices.alone else "beside other writers",
        )

    def submit_store(self, job_id: int, keys: Collection[bytes], chunk_ids: Sequence[int]) -> None:
        """Enqueue the store of rows `chunk_ids` of the buffer under `keys`.

        Args:
            job_id: Comes back in the completion.
            keys: Equally long keys: a block hash and 4 bytes of group index, big-endian.
            chunk_ids: One row a key; one outside the buffer fails for its key alone.

        Raises:
            ValueError: Keys of different lengths, or another number of rows than keys.
            RuntimeError: The engine is closed.
        """
        self._native.submit_store(job_id, *_packed(keys), list(chunk_ids))

    def submit_load(self, job_id: int, keys: Collection[bytes], chunk_ids: Sequence[int]) -> None:
        """Enqueue the load of `keys` into rows `chunk_ids`; arguments and errors as in `submit_store`."""
        self._native.submit_load(job_id, *_packed(keys), list(chunk_ids))

    def submit_lookup(self, job_id: int, keys: Collection[bytes]) -> None:
        """Enqueue the question which of `keys` are on disk; errors as in `submit_store`."""
        self._native.submit_lookup(job_id, *_packed(keys))

    def tier_lookup(self, miss: _Answer, hit: _Answer, retry: _Answer) -> TierLookupLike[_Answer]:
        """Return what answers the lookups of a tier; see `kvfs.jobs.EngineLike.tier_lookup`."""
        return self._native.tier_lookup(miss, hit, retry)

    def lookup_prefix(self, keys: Collection[bytes]) -> int:
        """Count the keys that are hits, up to the first that is none; errors as in `submit_store`."""
        return self._native.lookup_prefix(*_packed(keys))

    def submit_probes(self) -> None:
        """Hand the questions that `ask` has collected to the threads."""
        self._native.submit_probes()

    def touch(self, keys: Collection[bytes]) -> None:
        """Note that keys were used now, where they are present; errors as in `submit_store`."""
        self._native.touch(*_packed(keys))

    def take_evicted(self) -> list[bytes]:
        """Take the keys evicted since the last call, or the last 65,536, without those that are back."""
        return [key for key in self._native.take_evicted() if not self._native.lookup_prefix(key, len(key))]

    def poll(self) -> Sequence[CompletionLike]:
        """Take the jobs that ended since the last call, each exactly once."""
        completions = self._native.poll()
        if completions:
            self._notices.take(completions)
        return completions

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until no job is unfinished; False when `timeout_s` passed first."""
        return self._native.drain(timeout_s)

    @property
    def io_engine(self) -> str:
        """How chunks are loaded: "uring", "psync" or, without the extension, "python"."""
        return self._native.io_engine

    def stats(self) -> dict[str, int]:
        """Count the engine's events since its start; docs/engine.md and docs/capacity.md have the names."""
        return self._native.stats()

    def close(self, timeout_s: float | None = None) -> int:
        """Cancel what is queued, wait for what runs, end the threads, let go of the buffer.

        Args:
            timeout_s: How long to wait at most; None waits as long as it takes.

        Returns:
            0; or how many jobs have not ended because the file system does not answer, at least 1. Then the
            buffer stays pinned, since threads still use it. It may be called again.

        Raises:
            ValueError: A negative time.
        """
        return self._native.close(timeout_s)

    def __enter__(self) -> Self:
        """Return the engine, to be closed on leaving."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the engine."""
        self.close()


def _packed(keys: Collection[bytes]) -> tuple[bytes, int]:
    """Return the keys one after the other, and the length of each."""
    sizes = {len(key) for key in keys}
    if len(sizes) > 1:
        raise ValueError(f"all keys of a job must be equally long, got lengths {sorted(sizes)}")
    return b"".join(keys), sizes.pop() if sizes else _DEFAULT_KEY_SIZE_BYTES
