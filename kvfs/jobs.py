"""What a job's result looks like, and the interface that both I/O implementations keep.

`kvfs_ext` (C++) and `kvfs.fallback` (Python) satisfy `IoBackend`; the behaviour behind it is written
down in docs/engine.md. An outcome is an errno, one a key, in the job's order:

- `SUCCESS` (0): stored, loaded, or (lookup) present;
- `ENOENT`: load, lookup: no such chunk;
- `EBADMSG`: load, lookup: a file that is not of the chunk's size; load: one whose content is damaged;
- `ENODATA`: load: a file without the seal that is required;
- `EINVAL`: the chunk id lies outside the buffer, or the system said so;
- `ECANCELED`: the engine was closed before the op started;
- `SHED` (EAGAIN): store: the queue was full, there is no room, or the disk takes no stores for a while;
- any other (`EISDIR`, `ELOOP`, `EACCES`, `ENOSPC`, `EROFS`, ...): what the system said.
"""

from __future__ import annotations

import errno
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    # collections.abc.Buffer appeared in 3.12; type checkers know this module, nobody imports it.
    from typing_extensions import Buffer

SUCCESS: Final = 0
SHED: Final = errno.EAGAIN

# What an engine knows of a key at once; docs/lookup.md explains them.
MISS: Final = 0
HIT: Final = 1
RETRY: Final = 2
EXPIRED: Final = 3

_Answer = TypeVar("_Answer")
_Answer_co = TypeVar("_Answer_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of one job; the Python engine's own. Every accepted job gets exactly one.

    Attributes:
        job_id: The caller's number for the job, echoed.
        kind: "store", "load" or "lookup".
        outcomes: One errno a key, in the job's order; see the module's docstring.
        bytes_moved: Bytes that crossed the file system; a duplicate store moves none.
        queue_s: Seconds from acceptance until the first op started.
        transfer_s: Seconds from the first op's start until the last one's end.
        detail: A sentence on the first failure by position; empty when there was none. That a
            chunk is absent is a lookup's answer, not a failure.
    """

    job_id: int
    kind: str
    outcomes: list[int]
    bytes_moved: int
    queue_s: float
    transfer_s: float
    detail: str


class CompletionLike(Protocol):
    """What became of one job, from either implementation; `Completion` explains the attributes."""

    @property
    def job_id(self) -> int:
        """Return the caller's number for the job."""

    @property
    def kind(self) -> str:
        """Return "store", "load" or "lookup"."""

    @property
    def outcomes(self) -> list[int]:
        """Return one errno a key, in the job's order."""

    @property
    def bytes_moved(self) -> int:
        """Return the bytes that crossed the file system."""

    @property
    def queue_s(self) -> float:
        """Return the seconds until the first op started."""

    @property
    def transfer_s(self) -> float:
        """Return the seconds from the first op's start to the last one's end."""

    @property
    def detail(self) -> str:
        """Return a sentence on the first failure, or the empty string."""


class RequestLike(Protocol):
    """vLLM's `ReqContext`, as far as lookups read it.

    The extension also takes a hint from its `_offload_key_positions`, where there are any: docs/lookup.md.
    """

    @property
    def req_id(self) -> str:
        """Return the request's name."""


class TierLookupLike(Protocol[_Answer_co]):
    """The lookups of a tier: `EngineLike.ask` for its requests, and what is noted of those.

    No call blocks, and one thread may call at a time.
    """

    @property
    def ask(self) -> Callable[[bytes, RequestLike], _Answer_co]:
        """Return a function `(key, req_context)` that answers for the request `req_context.req_id`.

        It answers with the objects that stand for a miss, a hit and a question, and raises what
        `EngineLike.ask` raises. A request that was told to wait since the beginning of a step takes any
        absence that was found since then. Once it has had to ask, its other keys of that step are asked about
        without a look: it waits in any case.
        """

    def __bool__(self) -> bool:
        """Tell whether anything is noted of any request."""

    @property
    def end_step(self) -> Callable[..., None]:
        """Return a function that hands the step's questions to the threads.

        Whoever was told to wait waits for their answers. It takes vLLM's context of the step, or nothing, and
        does not look at it.
        """

    def deny(self, keys: Iterable[bytes], request_id: str) -> None:
        """Make keys a miss for a request as long as it lives, whatever is known of them.

        Without this it could be sent to the same bad chunk again and again (vLLM#49176).
        """

    def forget(self, request_id: str) -> None:
        """Drop what was noted of a request."""


class EngineLike(Protocol):
    """Threads that run jobs against one namespace; thread-safe, from either implementation."""

    def submit_store(self, job_id: int, keys: bytes, key_size_bytes: int, chunk_ids: list[int]) -> None:
        """Accept a job that stores rows of the primary tier. Does not block.

        Args:
            job_id: Echoed in the completion.
            keys: The keys, packed one after the other.
            key_size_bytes: Bytes of one key: the hash and 4 bytes of group index, big-endian.
            chunk_ids: One row a key. A row outside the buffer is that key's EINVAL.

        Raises:
            TypeError: An argument of the wrong type; nothing was accepted.
            ValueError: An argument of the wrong size; nothing was accepted.
            RuntimeError: The engine is closed.
        """

    def submit_load(self, job_id: int, keys: bytes, key_size_bytes: int, chunk_ids: list[int]) -> None:
        """Accept a job that loads into rows of the primary tier; as `submit_store`."""

    def submit_lookup(self, job_id: int, keys: bytes, key_size_bytes: int) -> None:
        """Accept a job that looks keys up; as `submit_store`."""

    def lookup(self, key: bytes) -> int:
        """Return what is known of a key: `MISS`, `HIT`, `RETRY` or `EXPIRED`. Never touches the disk.

        Raises:
            TypeError: No bytes.
            ValueError: A key of less than 5 or more than 255 bytes.
        """

    def ask(self, key: bytes, waiting_since_s: float = math.inf) -> int:
        """Return `MISS` or `HIT`; or `RETRY`, and then the disk is asked. Errors as in `lookup`.

        Args:
            key: The key.
            waiting_since_s: An absence found since then (`time.monotonic()`) counts, however old it is.
        """

    def tier_lookup(self, miss: _Answer, hit: _Answer, retry: _Answer) -> TierLookupLike[_Answer]:
        """Return what answers the lookups of a tier. It keeps the engine.

        Args:
            miss: Stands for a miss.
            hit: Stands for a hit.
            retry: Says that the disk is asked.
        """

    def lookup_prefix(self, keys: bytes, key_size_bytes: int) -> int:
        """Count the packed keys that are hits, up to the first that is none; errors as in `submit_store`."""

    def probe(self, key: bytes) -> None:
        """Ask the disk about a key, unless that is being done. Does not block; errors as in `lookup`."""

    def submit_probes(self) -> None:
        """Hand the questions that were collected to the threads. Does not block."""

    def touch(self, keys: bytes, key_size_bytes: int) -> None:
        """Note that the packed keys were used now, where they are present; errors as in `submit_store`."""

    def take_evicted(self) -> list[bytes]:
        """Return the keys of chunks evicted since the last call, the last 65,536 of them. Does not block."""

    def poll(self) -> Sequence[CompletionLike]:
        """Return the jobs that finished since the last call, each exactly once. Does not block."""

    def drain(self, timeout_s: float | None = None) -> bool:
        """Block until no accepted job is unfinished; False when `timeout_s` passed first."""

    def close(self, timeout_s: float | None = None) -> int:
        """Cancel queued ops, wait for running ones, join the threads, release the buffer; 0 then.

        Otherwise how many jobs have not ended within the time; the buffer stays pinned.
        """

    @property
    def io_engine(self) -> str:
        """Return how chunks are loaded: "uring", "psync" or "python"."""

    @property
    def io_engine_reason(self) -> str:
        """Return why it is that one, in a few words."""

    def stats(self) -> dict[str, int]:
        """Return counts of events since the start, and `inflight_jobs`."""


class EngineFactory(Protocol):
    """The `Engine` class of an implementation."""

    def __call__(  # noqa: PLR0913, PLR0917 - the engine's options, in one place
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
        file_mode: int = 0o600,
        dir_mode: int = 0o700,
        capacity_bytes: int | None = None,
        min_free_bytes: int | None = None,
        space_root: str | None = None,
    ) -> EngineLike:
        """Start an engine on the namespace `base_path`.

        Args:
            base_path: The namespace's directory; made with its parents if it is missing.
            buffer: The primary tier: writable, C-contiguous, one byte an element, of shape
                (num_chunks, chunk_size_bytes). Held until `close()`.
            n_read_threads: Threads, 1 to 1024, together with the next ones; each takes what is most urgent.
            n_write_threads: More threads, 1 to 1024.
            use_o_direct: Whether to try O_DIRECT.
            io_engine: "auto", "uring" or "psync".
            max_inflight_read_bytes: Loads that may be in flight at once, at least one chunk.
            max_inflight_write_bytes: The same for stores; an eighth of it while loads wait or run.
            max_queued_store_bytes: Stores that may wait; what comes on top is shed. None sheds nothing.
            index_mode: "owner", "shared", or "auto": the owner if nobody else uses the namespace.
            negative_ttl_s: How long a shared engine believes that a chunk is absent.
            checksum: "auto" seals and verifies chunks where the file system has extended attributes,
                "require" takes no chunk without a seal, "off" does neither.
            file_mode: Mode of new files, whatever the umask is; with the owner's read and write bits.
            dir_mode: Mode of new directories; with all of the owner's bits.
            capacity_bytes: What all files below `space_root` may take on disk, at least four chunks; chunks
                are evicted before it is reached. None is no limit.
            min_free_bytes: What is to be left free on that file system. None is no limit.
            space_root: What the limits are for, made if it is missing; None is `base_path`.

        Raises:
            TypeError: An argument of the wrong type.
            ValueError: An argument with a wrong value.
            OSError: The directory cannot be made, "uring" does not work here, too few threads, somebody
                else uses the namespace and "owner" was asked for (EBUSY), or the file system has no extended
                attributes and checksums are required (ENOTSUP).
        """


class IoBackend(Protocol):
    """The module of an implementation: `kvfs_ext` or `kvfs.fallback`."""

    @property
    def Engine(self) -> EngineFactory:  # noqa: N802 - a class, seen as the module's attribute
        """Return the engine class."""

    def batch_lookup(self, paths: list[str]) -> list[bool]:
        """Tell for each path whether a regular file that is not empty lies there. Blocks."""

    def batch_store(
        self, tmp_paths: list[str], dest_paths: list[str], buffers: list[Buffer], use_o_direct: bool = True
    ) -> None:
        """Store each buffer at its destination through its temporary. Blocks.

        Raises:
            TypeError: Not a list, or an element of the wrong type.
            ValueError: A bad path or buffer, or lists of different lengths.
            OSError: The first failure, with `errno`, `filename` and `num_succeeded`.
        """

    def batch_load(self, paths: list[str], buffers: list[Buffer], use_o_direct: bool = True) -> None:
        """Fill each buffer from the file of exactly its size at its path. Blocks.

        Raises:
            TypeError: Not a list, or an element of the wrong type.
            ValueError: A bad path or buffer, or lists of different lengths.
            OSError: The first failure, with `errno`, `filename` and `num_succeeded`.
        """

    def copy_pages(
        self,
        src: Buffer,
        dst: Buffer,
        src_offsets: list[int],
        dst_offsets: list[int],
        page_size_bytes: int,
    ) -> None:
        """Copy a page from each offset of `src` to the matching offset of `dst`. Blocks.

        Raises:
            TypeError: An argument of the wrong type.
            ValueError: A bad buffer, or a range outside of one; nothing was copied.
        """
