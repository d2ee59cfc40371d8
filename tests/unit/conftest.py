"""What the behaviour tests share: the implementation under test, memory for chunks, and places on disk."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from polling import await_that
from rig import Rig as Rig  # noqa: PLC0414 - the tests' types come from here
from tier_lookup import TierLookup

from kvfs import backend
from kvfs.jobs import MISS, RETRY, IoBackend

ONE_CHUNK_SIZE_BYTES = 8192


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
def start_rig(io: IoBackend, mount: Mount, request: pytest.FixtureRequest) -> Iterator[StartRig]:
    """Yield a function that starts a `Rig`; all are closed after the test, before their directories go."""
    # Whatever the order in which a test names its fixtures: an engine that still counts writes its table.
    if "storage" in request.fixturenames:
        request.getfixturevalue("storage")
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


def _unmount(directory: Path) -> None:
    """Unmount a file system; the kernel lets go of a closed ring's files some moments later."""

    def is_unmounted() -> bool:
        command = ["umount", str(directory)]
        return subprocess.run(command, check=False, capture_output=True, timeout=30).returncode == 0

    assert await_that(is_unmounted), f"{directory} stays busy"


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
            stack.callback(_unmount, directory)
            return directory

        yield mount_one


@pytest.fixture
def patient(start_rig: StartRig, storage: Path) -> TierLookup:
    """One whose absences stay true for as long as a slow machine takes."""
    rig = start_rig(storage, index_mode="shared", negative_ttl_s=3600.0)
    assert rig.await_stats(scan_complete=1)
    return TierLookup(rig)
