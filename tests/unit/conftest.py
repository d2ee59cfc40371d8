"""What the behaviour tests share: the implementation under test, memory for chunks, and places on disk."""

from __future__ import annotations

import contextlib
import mmap
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypedDict, Unpack

import pytest

from kvfs import backend
from kvfs.jobs import MISS, RETRY, CompletionLike, IoBackend

# Nothing here takes longer; what does has hung.
DRAIN_TIMEOUT_S = 60.0
ONE_CHUNK_SIZE_BYTES = 8192


def content(seed: int, size_bytes: int) -> bytes:
    """Return bytes that depend on the seed alone."""
    return random.Random(seed).randbytes(size_bytes)


class Tier:
    """A primary tier in anonymous memory: page-aligned, or off by `offset_bytes`."""

    def __init__(self, num_chunks: int, chunk_size_bytes: int, offset_bytes: int = 0) -> None:
        self.num_chunks = num_chunks
        self.chunk_size_bytes = chunk_size_bytes
        size_bytes = num_chunks * chunk_size_bytes
        self.memory = mmap.mmap(-1, size_bytes + offset_bytes)
        self._flat = memoryview(self.memory)[offset_bytes : offset_bytes + size_bytes]
        self.view = self._flat.cast("B", (num_chunks, chunk_size_bytes))

    def row(self, chunk_id: int) -> bytes:
        start = chunk_id * self.chunk_size_bytes
        return bytes(self._flat[start : start + self.chunk_size_bytes])

    def fill(self, chunk_id: int, seed: int) -> bytes:
        """Fill a row with the seed's content and return it."""
        data = content(seed, self.chunk_size_bytes)
        start = chunk_id * self.chunk_size_bytes
        self._flat[start : start + self.chunk_size_bytes] = data
        return data


class EngineOptions(TypedDict, total=False):
    """What an engine can be given beside its threads and `use_o_direct`."""

    io_engine: str
    max_inflight_read_bytes: int
    max_inflight_write_bytes: int
    max_queued_store_bytes: int | None
    index_mode: str
    negative_ttl_s: float
    checksum: str
    file_mode: int
    dir_mode: int
    capacity_bytes: int | None
    min_free_bytes: int | None
    space_root: str | None


class Rig:
    """An engine on a namespace, with its primary tier."""

    def __init__(
        self,
        io: IoBackend,
        base: Path,
        *,
        num_chunks: int = 8,
        chunk_size_bytes: int = 4096,
        threads: tuple[int, int] = (2, 2),
        use_o_direct: bool = True,
        offset_bytes: int = 0,
        **options: Unpack[EngineOptions],
    ) -> None:
        self.base = base
        self.tier = Tier(num_chunks, chunk_size_bytes, offset_bytes)
        self.engine = io.Engine(str(base), self.tier.view, threads[0], threads[1], use_o_direct, **options)
        self._next_job_id = 0

    @staticmethod
    def key(number: int, hash_size_bytes: int = 32, group: int = 0) -> bytes:
        return content(number, hash_size_bytes) + group.to_bytes(4, "big")

    def path(self, key: bytes) -> Path:
        """Return the path that docs/engine.md gives a key."""
        digits = key[:-4].hex()
        group = int.from_bytes(key[-4:], "big")
        return self.base / digits[0:3] / f"{digits[3:5]}_g{group}" / f"{digits}.bin"

    def files(self) -> list[Path]:
        """Return all files of the namespace but the engine's own three."""
        own = {self.base / name for name in ("kvfs.lock", "kvfs.index", "kvfs.space")}
        return sorted(path for path in self.base.rglob("*") if path.is_file() and path not in own)

    def submit(self, kind: str, keys: Sequence[bytes], chunk_ids: Sequence[int] = ()) -> int:
        """Submit a job of equally long keys and return its id."""
        job_id = self._next_job_id
        self._next_job_id += 1
        packed, key_size_bytes = b"".join(keys), len(keys[0]) if keys else 36
        if kind == "lookup":
            self.engine.submit_lookup(job_id, packed, key_size_bytes)
        elif kind == "load":
            self.engine.submit_load(job_id, packed, key_size_bytes, list(chunk_ids))
        else:
            self.engine.submit_store(job_id, packed, key_size_bytes, list(chunk_ids))
        return job_id

    def finish(self) -> dict[int, CompletionLike]:
        """Wait for all jobs and return their completions, which no job may have twice."""
        assert self.engine.drain(DRAIN_TIMEOUT_S)
        completions = self.engine.poll()
        by_id = {completion.job_id: completion for completion in completions}
        assert len(by_id) == len(completions)
        return by_id

    def ask(self, keys: Sequence[bytes]) -> None:
        """Ask the disk about keys and wait for the answers."""
        for key in keys:
            self.engine.probe(key)
        self.engine.submit_probes()
        assert self.engine.drain(DRAIN_TIMEOUT_S)

    def verdicts(self, keys: Sequence[bytes]) -> list[int]:
        return [self.engine.lookup(key) for key in keys]

    def await_stats(self, **expected: int) -> bool:
        """Poll until `stats()` says what is expected; False when it does not within the bound."""
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while True:
            stats = self.engine.stats()
            if all(stats[name] == value for name, value in expected.items()):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)

    def place(self, key: bytes) -> Path:
        """Put a chunk on disk without the engine's knowledge, and return its path."""
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(self.tier.chunk_size_bytes))
        return path

    def _run(self, kind: str, keys: Sequence[bytes], chunk_ids: Sequence[int]) -> CompletionLike:
        job_id = self.submit(kind, keys, chunk_ids)
        completions = self.finish()
        assert list(completions) == [job_id]
        assert completions[job_id].kind == kind
        assert len(completions[job_id].outcomes) == len(keys)
        return completions[job_id]

    def store(self, keys: Sequence[bytes], chunk_ids: Sequence[int]) -> CompletionLike:
        return self._run("store", keys, chunk_ids)

    def load(self, keys: Sequence[bytes], chunk_ids: Sequence[int]) -> CompletionLike:
        return self._run("load", keys, chunk_ids)

    def lookup(self, keys: Sequence[bytes]) -> CompletionLike:
        return self._run("lookup", keys, ())


class OneChunk(Protocol):
    """One chunk's place on disk, used through either level; outcomes are errnos."""

    path: Path

    def store(self, data: bytes) -> int: ...
    def load(self) -> tuple[int, bytes]: ...
    def present(self) -> bool: ...


class BatchChunk:
    """One chunk through level 1."""

    def __init__(self, io: IoBackend, base: Path) -> None:
        self._io = io
        self.path = base / "a" / "b" / "chunk.bin"
        self._stores = 0

    def store(self, data: bytes) -> int:
        self._stores += 1
        try:
            self._io.batch_store([f"{self.path}_{self._stores}.tmp"], [str(self.path)], [data], True)
        except OSError as error:
            return error.errno or -1
        return 0

    def load(self) -> tuple[int, bytes]:
        buffer = bytearray(ONE_CHUNK_SIZE_BYTES)
        try:
            self._io.batch_load([str(self.path)], [buffer], True)
        except OSError as error:
            return error.errno or -1, b""
        return 0, bytes(buffer)

    def present(self) -> bool:
        return self._io.batch_lookup([str(self.path)]) == [True]


class EngineChunk:
    """One chunk through level 2."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._key = rig.key(1)
        self.path = rig.path(self._key)

    def store(self, data: bytes) -> int:
        self._rig.tier.memory[:ONE_CHUNK_SIZE_BYTES] = data
        return self._rig.store([self._key], [0]).outcomes[0]

    def load(self) -> tuple[int, bytes]:
        outcome = self._rig.load([self._key], [1]).outcomes[0]
        return outcome, b"" if outcome else self._rig.tier.row(1)

    def present(self) -> bool:
        return self._rig.lookup([self._key]).outcomes == [0]


StartRig = Callable[..., Rig]
Mount = Callable[..., Path]


@pytest.fixture
def io() -> IoBackend:
    """Return the implementation under test."""
    return backend.load()


@pytest.fixture(params=["disk", "tmpfs"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield an empty directory on a disk and on a tmpfs."""
    if request.param == "disk":
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp(prefix="kvfs-tests-", dir="/dev/shm"))
    yield directory
    # A test may have left a directory that its owner cannot write.
    for path in [directory, *directory.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(directory)


@pytest.fixture
def start_rig(io: IoBackend, mount: Mount) -> Iterator[StartRig]:
    """Yield a function that starts a `Rig`; all are closed after the test, before anything is unmounted."""
    with contextlib.ExitStack() as stack:

        def start(base: Path, **options: object) -> Rig:
            rig = Rig(io, base, **options)  # type: ignore[arg-type] # the options are Rig's
            stack.callback(rig.engine.close)
            return rig

        yield start


@pytest.fixture(params=["owner", "shared"])
def index_mode(request: pytest.FixtureRequest) -> str:
    """Return each place that an engine can have in its namespace."""
    mode: str = request.param
    return mode


@pytest.fixture
def unknown(index_mode: str) -> int:
    """Return the verdict on a key of which nothing is known, after the scan."""
    return MISS if index_mode == "owner" else RETRY


@pytest.fixture
def start_scanned(start_rig: StartRig, storage: Path, index_mode: str) -> StartRig:
    """Return a function that starts a `Rig` in each place, believing for ever, and waits for its scan."""

    def start(base: Path = storage, **options: object) -> Rig:
        rig = start_rig(base, index_mode=index_mode, **{"negative_ttl_s": 3600.0, **options})
        assert rig.await_stats(scan_complete=1, owner=int(index_mode == "owner"))
        return rig

    return start


@pytest.fixture(params=["batch", "engine"])
def one_chunk(request: pytest.FixtureRequest, storage: Path, io: IoBackend, start_rig: StartRig) -> OneChunk:
    """Return a chunk's place on each kind of storage, used through each level."""
    if request.param == "batch":
        return BatchChunk(io, storage)
    return EngineChunk(start_rig(storage, num_chunks=2, chunk_size_bytes=ONE_CHUNK_SIZE_BYTES))


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Yield a function that mounts a file system and returns its directory; unmounts after the test."""
    with contextlib.ExitStack() as stack:

        def mount_one(kind: str, *, source: str = "none", options: str = "") -> Path:
            directory = Path(tempfile.mkdtemp(prefix="mount-", dir=tmp_path))
            command = ["mount", "-t", kind, *(["-o", options] if options else []), source, str(directory)]
            result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
            if result.returncode != 0:
                pytest.skip(f"this system does not let us mount {kind}: {result.stderr.strip()}")
            stack.callback(subprocess.run, ["umount", str(directory)], check=True, timeout=30)
            return directory

        yield mount_one
