"""Chunks of one namespace by key: the one door to the native engine or to its Python stand-in."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Self

from kvfs import backend, filesystems, identity, permissions
from kvfs.config import TierConfig
from kvfs.jobs import SHED, CompletionLike
from kvfs.paths import Namespace

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Buffer

# vLLM's usual key, for jobs without keys to look at.
_DEFAULT_KEY_SIZE_BYTES = 36

_logger = logging.getLogger("kvfs")


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
            ValueError: The buffer has another shape, or the namespace belongs to another configuration or
                holds other chunks.
        """
        with memoryview(buffer) as view:
            queued = config.max_queued_store_bytes or max(1, view.nbytes // 2)
            chunk_size_bytes = identity.chunk_size_of(view)
        namespace.write_config(config.file_mode, config.dir_mode)
        # What is no primary tier the engine refuses below; nothing is recorded of it.
        record = identity.settle(namespace, chunk_size_bytes, config.file_mode) if chunk_size_bytes else {}
        self.namespace = namespace
        self._max_queued_store_bytes = queued
        self._warned_direct = False
        self._warned_shed = False
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
            )
        except OSError as error:
            if error.errno != errno.EBUSY or index_mode != "owner":
                raise
            raise OSError(
                errno.EBUSY,
                "another kvfs uses this namespace, and index_mode is 'owner'; use 'auto' or 'shared'",
                namespace.base_path,
            ) from error
        # No wrapper: vLLM asks key by key on its scheduler's thread.
        self.ask: Callable[[bytes, float], int] = self._native.ask
        """`MISS`, `HIT` or `RETRY` for a key, from memory; see `kvfs.jobs.EngineLike.ask`."""
        stats = self._native.stats()
        self._alone = bool(stats["owner"])
        _warn_of_the_place(namespace, config, sealed=bool(stats["seals"]))
        _logger.info(
            "kvfs serves %s, chunks of %d bytes, weights %s, through %s (%s) with %d threads, %s",
            namespace.base_path,
            chunk_size_bytes,
            record.get("weights") or "unknown",
            self._native.io_engine,
            self._native.io_engine_reason,
            config.n_read_threads + config.n_write_threads,
            "as its only writer" if self._alone else "beside other writers",
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

    def lookup_prefix(self, keys: Collection[bytes]) -> int:
        """Count the keys that are hits, up to the first that is none; errors as in `submit_store`."""
        return self._native.lookup_prefix(*_packed(keys))

    def submit_probes(self) -> None:
        """Hand the questions that `ask` has collected to the threads."""
        self._native.submit_probes()

    def touch(self, keys: Collection[bytes]) -> None:
        """Note that keys were used now, where they are present; errors as in `submit_store`."""
        self._native.touch(*_packed(keys))

    def poll(self) -> Sequence[CompletionLike]:
        """Take the jobs that ended since the last call, each exactly once."""
        completions = self._native.poll()
        if completions:
            self._warn_of_changes()
        if not self._warned_shed and any(
            each.kind == "store" and SHED in each.outcomes for each in completions
        ):
            self._warned_shed = True
            _logger.warning(
                "%s does not keep up with stores: %d bytes of them may wait, and what comes on top is not "
                "stored. stats()['shed_stores'] counts them; a larger max_queued_store_bytes lets more wait.",
                self.namespace.base_path,
                self._max_queued_store_bytes,
            )
        return completions

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until no job is unfinished; False when `timeout_s` passed first."""
        return self._native.drain(timeout_s)

    @property
    def io_engine(self) -> str:
        """How chunks are loaded: "uring", "psync" or, without the extension, "python"."""
        return self._native.io_engine

    def stats(self) -> dict[str, int]:
        """Count the engine's events since its start; docs/engine.md has their names."""
        return self._native.stats()

    def close(self) -> None:
        """Cancel what is queued, wait for what runs, end the threads, let go of the buffer."""
        self._native.close()

    def __enter__(self) -> Self:
        """Return the engine, to be closed on leaving."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the engine."""
        self.close()

    def _warn_of_changes(self) -> None:
        if self._warned_direct and not self._alone:
            return
        stats = self._native.stats()
        if stats["direct_fallbacks"] and not self._warned_direct:
            self._warned_direct = True
            _logger.warning(
                "O_DIRECT was refused at %s or does not fit the chunk size; kvfs goes on through the page "
                "cache. Set use_o_direct to false to silence this.",
                self.namespace.base_path,
            )
        if self._alone and not stats["owner"]:
            self._alone = False
            _logger.warning(
                "%s has other writers by now; what kvfs does not know there it asks the disk from now on. "
                "Set index_mode to 'shared' to do so from the start.",
                self.namespace.base_path,
            )


def _warn_of_the_place(namespace: Namespace, config: TierConfig, *, sealed: bool) -> None:
    """Say what there is no protection against where the chunks lie."""
    if config.checksum == "auto" and not sealed:
        _logger.warning(
            "%s has no extended attributes of users, so chunks get no checksums and damaged ones are not "
            "noticed. Use another file system, or set checksum to 'off' to silence this.",
            namespace.base_path,
        )
    open_path = permissions.writable_by_others(namespace.root_dir, namespace.base_path)
    if open_path is not None:
        _logger.warning(
            "%s can be written by others than its owner, who could replace chunks. Take those rights away "
            "(chmod go-w).",
            open_path,
        )


def _packed(keys: Collection[bytes]) -> tuple[bytes, int]:
    """Return the keys one after the other, and the length of each."""
    sizes = {len(key) for key in keys}
    if len(sizes) > 1:
        raise ValueError(f"all keys of a job must be equally long, got lengths {sorted(sizes)}")
    return b"".join(keys), sizes.pop() if sizes else _DEFAULT_KEY_SIZE_BYTES
