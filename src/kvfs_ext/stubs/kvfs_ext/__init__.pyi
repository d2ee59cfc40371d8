"""
kvfs's native engine: batched lookup, store and load of chunks without the GIL.

docs/engine.md in the source has the contract; kvfs.fallback keeps the same one in Python.
"""

from collections.abc import Callable, Iterable
from typing import Any

from typing_extensions import Buffer


def batch_lookup(paths: list[str]) -> list[bool]:
    """
    Say for each path whether a regular file that is not empty lies there.

    Blocks the calling thread without the GIL. Links are not followed.

    Args:
        paths: A list of str; an empty one is fine.

    Returns:
        One bool a path, in order. A path that cannot be looked at is False.

    Raises:
        TypeError: ``paths`` is no list or an element is no str.
        ValueError: A path has a null character or cannot be encoded.
    """

def batch_store(tmp_paths: list[str], dest_paths: list[str], buffers: list[Buffer], use_o_direct: bool = True) -> None:
    """
    Store each buffer at its path, whole or not at all.

    Blocks the calling thread without the GIL. Missing directories are made (0700); files get mode 0600.
    A file of the buffer's size that is there already is kept; one of another size is replaced.

    Args:
        tmp_paths: Where each file is written first. No other writer may use the same name.
        dest_paths: Where each file is published, on the same file system.
        buffers: C-contiguous buffers of at least one byte.
        use_o_direct: Try to bypass the page cache; what refuses that is written through it.

    Raises:
        TypeError: An argument is no list, an element no str or no buffer.
        ValueError: The lists differ in length, a path has a null character, a buffer is empty or not C-contiguous.
        OSError: The first store that failed, with ``errno``, ``filename`` and ``num_succeeded``.
    """

def batch_load(paths: list[str], buffers: list[Buffer], use_o_direct: bool = True) -> None:
    """
    Fill each buffer from its file, which must have exactly the buffer's size.

    Blocks the calling thread without the GIL. Links are not followed. A file that is shorter than its buffer is
    removed; after any other failure it stays. What a failed load leaves in its buffer is unspecified.

    Args:
        paths: The files.
        buffers: Writable C-contiguous buffers of at least one byte.
        use_o_direct: Try to bypass the page cache; what refuses that is read through it.

    Raises:
        TypeError: An argument is no list, an element no str or no buffer.
        ValueError: The lists differ in length, a path has a null character, a buffer is empty, read-only or
            not C-contiguous.
        OSError: The first load that failed, with ``errno`` (EBADMSG for a wrong size), ``filename`` and
            ``num_succeeded``.
    """

def copy_pages(src: Buffer, dst: Buffer, src_offsets: list[int], dst_offsets: list[int], page_size_bytes: int) -> None:
    """
    Copy pages of one size from offsets of one buffer to offsets of another.

    Blocks the calling thread without the GIL. All ranges are checked before the first byte is copied.

    Args:
        src: A C-contiguous buffer; offsets count its bytes, whatever its shape.
        dst: A writable C-contiguous buffer.
        src_offsets: Where each page starts in ``src``, in bytes.
        dst_offsets: Where each page goes in ``dst``, in bytes.
        page_size_bytes: Length of each page.

    Raises:
        TypeError: A buffer without the buffer protocol, an offset that is no integer.
        ValueError: Lists of different lengths, a page outside its buffer, a buffer that is not C-contiguous,
            a read-only ``dst``.
    """

class TierLookup:
    """
    The lookups of a tier: Engine.ask() for its requests, and what is noted of those.

    Made by Engine.tier_lookup(). No call blocks, and one thread may call at a time.
    """

    @property
    def ask(self) -> Callable[[bytes, Any], Any]:
        """
        A function ``(key, req_context)`` that answers for the request ``req_context.req_id``.

        It answers with the objects that stand for a miss, a hit and a question, and raises what Engine.ask() raises.
        Once a request has had to ask, its other keys of that step are asked about without a look: it waits in any
        case.
        """

    @property
    def end_step(self) -> Callable[..., None]:
        """
        A function that hands the step's questions to the threads.

        Whoever was told to wait waits for their answers. It takes the step's context, or none, and does not look at
        it.
        """

    def deny(self, keys: Iterable[bytes], request_id: str) -> None:
        """
        Make keys a miss for a request as long as it lives, whatever is known of them.
        """

    def forget(self, request_id: str) -> None:
        """Drop what was noted of a request."""

    def __bool__(self) -> bool:
        """Tell whether anything is noted of any request."""

class Completion:
    """What became of one job. Every accepted job gets exactly one."""

    @property
    def job_id(self) -> int:
        """The id given at submission."""

    @property
    def kind(self) -> str:
        """"store", "load" or "lookup"."""

    @property
    def outcomes(self) -> list[int]:
        """One errno a key, in the job's order; 0 is success."""

    @property
    def bytes_moved(self) -> int:
        """Bytes that crossed the file system; a duplicate store moves none."""

    @property
    def queue_s(self) -> float:
        """Seconds from acceptance until the first op started."""

    @property
    def transfer_s(self) -> float:
        """Seconds from the start of the first op until the end of the last."""

    @property
    def detail(self) -> str:
        """A sentence on the first failure by position, or ""."""

class Engine:
    """Threads that store, load and look up chunks of one namespace."""

    def __init__(self, base_path: str, buffer: Buffer, n_read_threads: int, n_write_threads: int, use_o_direct: bool = True, io_engine: str = 'auto', max_inflight_read_bytes: int = 67108864, max_inflight_write_bytes: int = 16777216, max_queued_store_bytes: int | None = None, index_mode: str = 'auto', negative_ttl_s: float = 1.0, checksum: str = 'auto', file_mode: int = 0o600, dir_mode: int = 0o700, capacity_bytes: int | None = None, min_free_bytes: int | None = None, space_root: str | None = None) -> None:
        """
        Start the threads and pin the buffer until close().

        Args:
            base_path: The namespace's directory; made with its parents if it is missing.
            buffer: The primary tier, shape (num_chunks, chunk_size_bytes), one byte an element, writable,
                C-contiguous.
            n_read_threads: Threads, 1 to 1024, together with the next ones; each takes what is most urgent.
            n_write_threads: More threads, 1 to 1024.
            use_o_direct: Try to bypass the page cache; what refuses that goes through it.
            io_engine: "uring" for io_uring, "psync" for plain reads, "auto" for what a probe in the directory says.
            max_inflight_read_bytes: Loads that may be in flight at once; one chunk always may.
            max_inflight_write_bytes: The same for stores; an eighth of it while loads wait or run.
            max_queued_store_bytes: Stores that may wait; what comes on top is shed with EAGAIN. None sheds nothing.
            index_mode: "owner", "shared", or "auto": the owner if nobody else uses the namespace.
            negative_ttl_s: How long a shared engine believes that a chunk is absent.
            checksum: "auto" seals chunks and verifies what is sealed, where the file system can; "require" takes no
                others; "off" does neither.
            file_mode: Permissions of new files, whatever the umask is; at least 0o600.
            dir_mode: Permissions of new directories; at least 0o700.
            capacity_bytes: What all files below ``space_root`` may take on disk; chunks are evicted before it is
                reached. At least four chunks. None is no limit.
            min_free_bytes: What is to be left free on that file system. None is no limit.
            space_root: What the limits are for, made if it is missing; None is ``base_path``.

        Raises:
            TypeError: An argument of the wrong type.
            ValueError: A bad shape, a read-only buffer, an empty path, a count or mode out of range, an unknown
                io_engine, index_mode or checksum.
            OSError: The directory cannot be made, "uring" was asked for and does not work here, the system has no
                room for that many threads, somebody else uses the namespace and "owner" was asked for (EBUSY), or
                the file system has no extended attributes and checksum is "require" (ENOTSUP).
        """

    @property
    def io_engine(self) -> str:
        """How chunks are loaded: "uring" or "psync"."""

    @property
    def io_engine_reason(self) -> str:
        """Why it is that one, in a few words."""

    def submit_store(self, job_id: int, keys: bytes, key_size_bytes: int, chunk_ids: list[int]) -> None:
        """
        Enqueue the store of the chunks in these rows under these keys. Never blocks.

        Raises:
            TypeError: ``keys`` is no bytes object, an id is no integer.
            ValueError: The packed length is no multiple of the key size, the key size is out of range, or the
                numbers of keys and ids differ. Nothing was enqueued.
            RuntimeError: The engine is closed, or belongs to the process that this one was forked from.
        """

    def submit_load(self, job_id: int, keys: bytes, key_size_bytes: int, chunk_ids: list[int]) -> None:
        """
        Enqueue the load of these keys into these rows. Never blocks.

        Raises:
            TypeError: ``keys`` is no bytes object, an id is no integer.
            ValueError: The packed length is no multiple of the key size, the key size is out of range, or the
                numbers of keys and ids differ. Nothing was enqueued.
            RuntimeError: The engine is closed, or belongs to the process that this one was forked from.
        """

    def submit_lookup(self, job_id: int, keys: bytes, key_size_bytes: int) -> None:
        """
        Enqueue the question which of these keys are on disk. Never blocks.

        Raises:
            TypeError: ``keys`` is no bytes object, an id is no integer.
            ValueError: The packed length is no multiple of the key size, the key size is out of range, or the
                numbers of keys and ids differ. Nothing was enqueued.
            RuntimeError: The engine is closed, or belongs to the process that this one was forked from.
        """

    def take_evicted(self) -> list[bytes]:
        """
        Take the keys of chunks evicted since the last call, or the last 65,536 of them. Never blocks.
        """

    def lookup(self, key: bytes) -> int:
        """
        Return what is known of a key: 0 miss, 1 hit, 2 retry, 3 expired. Never blocks.

        Raises:
            TypeError: No bytes.
            ValueError: A key of less than 5 or more than 255 bytes.
            RuntimeError: The engine belongs to the process that this one was forked from.
        """

    def ask(self, key: bytes, waiting_since_s: float = float('inf')) -> int:
        """
        Return 0 for a miss, 1 for a hit, or 2, and then the disk is asked. Never blocks.

        Args:
            key: The key.
            waiting_since_s: An absence that was found since then (time.monotonic()) counts, however old it is.

        Raises:
            TypeError: No bytes.
            ValueError: A key of less than 5 or more than 255 bytes.
            RuntimeError: The engine belongs to the process that this one was forked from.
        """

    def tier_lookup(self, miss: object, hit: object, retry: object) -> TierLookup:
        """
        Return what answers the lookups of a tier. It keeps the engine.

        Args:
            miss: Stands for a miss.
            hit: Stands for a hit.
            retry: Says that the disk is asked.
        """

    def lookup_prefix(self, keys: bytes, key_size_bytes: int) -> int:
        """
        Count the packed keys that are hits, up to the first that is none. Never blocks; errors as in submit_lookup().
        """

    def probe(self, key: bytes) -> None:
        """
        Ask the disk about a key, unless that is being done. Never blocks.

        Raises:
            TypeError: No bytes.
            ValueError: A key of less than 5 or more than 255 bytes.
            RuntimeError: The engine belongs to the process that this one was forked from.
        """

    def submit_probes(self) -> None:
        """Hand the questions that were collected to the threads. Never blocks."""

    def touch(self, keys: bytes, key_size_bytes: int) -> None:
        """
        Note that the packed keys were used now, where they are present. Never blocks; errors as in submit_lookup().
        """

    def poll(self) -> list[Completion]:
        """
        Take the jobs that ended since the last call, each exactly once. Never blocks; works after close().
        """

    def drain(self, timeout_s: float | None = None) -> bool:
        """
        Wait until no accepted job is unfinished. Blocks without the GIL.

        Args:
            timeout_s: Seconds to wait at most; None waits as long as it takes.

        Returns:
            Whether it got there in time.
        """

    def close(self, timeout_s: float | None = None) -> int:
        """
        Cancel queued ops, wait for running ones, join the threads, release the buffer.

        Blocks without the GIL until the last running operation has returned, or until the time is over. The
        completions that remain can still be polled. May be called again.

        Args:
            timeout_s: How long to wait at most; None waits as long as it takes.

        Returns:
            0, or how many jobs have not ended because the file system does not answer; then the buffer stays pinned.

        Raises:
            ValueError: A negative time.
        """

    def stats(self) -> dict[str, int]:
        """
        Count events since the start: direct_fallbacks, duplicate_stores, healed_files, removed_files, shed_stores; the peaks of what was in flight, peak_inflight_read_bytes and peak_inflight_write_bytes; inflight_jobs now; and of the index, see docs/lookup.md: index_keys, index_bytes, scanned_files, scan_complete, owner, pinned_chunks, probes, checks.
        """

class KeyIndex:
    """
    What an engine knows of its keys, without an engine and without files. Thread-safe.
    """

    def __init__(self, negative_ttl_s: float = 1.0) -> None:
        """
        Make an empty index.

        Args:
            negative_ttl_s: How long an absence is believed.

        Raises:
            TypeError: No number.
            ValueError: Negative, or not finite.
        """

    def insert(self, keys: bytes, key_size_bytes: int) -> None:
        """
        Make the packed keys present, without the GIL.

        Raises:
            TypeError: ``keys`` is no bytes object.
            ValueError: The packed length is no multiple of the key size, or that is out of range.
        """

    def lookup(self, key: bytes) -> int:
        """
        Return 1 for a key that is present, else 0.

        Raises:
            TypeError: No bytes.
            ValueError: A key of less than 5 or more than 255 bytes.
        """

    def lookup_prefix(self, keys: bytes, key_size_bytes: int) -> int:
        """
        Count the packed keys that are present, up to the first that is not; errors as in insert().
        """

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that it takes."""

    def __len__(self) -> int:
        """Number of present keys."""
