"""Who owns a namespace: several engines, processes that are killed, lock files that are removed, marks."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from polling import await_that, small_buffer

from kvfs.jobs import EXPIRED, HIT, MISS, RETRY, IoBackend

if TYPE_CHECKING:
    from tests.unit.conftest import Rig, StartRig

DEADLINE_S = 30.0
CONFIRMED_S = 0.05
FOR_EVER_S = 3600.0
# Holds an engine open until it is killed.
HOLDER = """
import sys
from kvfs import backend

engine = backend.load().Engine(
    sys.argv[1], memoryview(bytearray(4096)).cast("B", (1, 4096)), 1, 1, index_mode=sys.argv[2]
)
print(engine.stats()["owner"], flush=True)
sys.stdin.read()
"""
# A forked child outlives the engine's close() and has all of its open files.
FORKED = """
import os, sys, warnings
from kvfs import backend

warnings.simplefilter("ignore", DeprecationWarning)
io = backend.load()
buffer = memoryview(bytearray(4096)).cast("B", (1, 4096))
for mode in ("owner", "shared"):
    engine = io.Engine(sys.argv[1], buffer, 1, 1, index_mode=mode)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    engine.close()
    io.Engine(sys.argv[1], buffer, 1, 1, index_mode="owner").close()
    os.close(writer)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def _is_shared_by_lock(lock: Path) -> bool:
    """Ask the kernel whether somebody holds the read lock of the first byte."""
    kind = "hhqqi4x"
    with lock.open("rb") as file:
        asked = struct.pack(kind, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        answer: tuple[int, ...] = struct.unpack(kind, fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))
    return answer[0] != fcntl.F_UNLCK


def _is_owned_by_lock(lock: Path) -> bool:
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(file, fcntl.LOCK_UN)
        return False


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Callable[[Path, str], tuple[subprocess.Popen[str], bool]]]:
    """Yield a function that opens an engine in another process; says whether that one is the owner."""
    processes: list[subprocess.Popen[str]] = []

    def start(base: Path, mode: str) -> tuple[subprocess.Popen[str], bool]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(base), mode],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline() == "1\n"

    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=30)


@pytest.fixture
def start_owner(start_rig: StartRig, storage: Path) -> Callable[..., Rig]:
    """Return a function that starts the owner of the namespace, with its scan done."""

    def start(**options: object) -> Rig:
        rig = start_rig(storage, index_mode="owner", **options)
        assert rig.await_stats(scan_complete=1, owner=1)
        return rig

    return start


@pytest.mark.parametrize("mode", ["", "Owner", "both", "auto ", "own\0er"])
def test_engine_unknown_index_mode_raises_value_error_and_leaves_nothing(
    io: IoBackend, tmp_path: Path, mode: str
) -> None:
    memory = bytearray(64)
    threads_before = threading.active_count()
    with pytest.raises(ValueError, match="index_mode must be 'auto', 'owner' or 'shared', got"):
        io.Engine(str(tmp_path / "ns"), memoryview(memory).cast("B", (8, 8)), 1, 1, index_mode=mode)
    assert threading.active_count() == threads_before
    assert not (tmp_path / "ns").exists()
    memory.extend(b"would raise BufferError")


@pytest.mark.parametrize("mode", [None, 1, True, b"owner", ["owner"]], ids=repr)
def test_engine_index_mode_of_another_type_raises_type_error(
    io: IoBackend, tmp_path: Path, mode: object
) -> None:
    with pytest.raises(TypeError):
        io.Engine(str(tmp_path / "ns"), small_buffer(), 1, 1, index_mode=mode)  # type: ignore[arg-type]
    assert not (tmp_path / "ns").exists()


@pytest.mark.parametrize(
    ("first", "second", "owners"),
    [
        ("auto", "auto", (1, 0)),
        ("owner", "auto", (1, 0)),
        ("auto", "shared", (1, 0)),
        ("shared", "auto", (0, 0)),
        ("shared", "shared", (0, 0)),
    ],
)
def test_only_an_engine_that_is_alone_owns_the_namespace(
    start_rig: StartRig, storage: Path, first: str, second: str, owners: tuple[int, int]
) -> None:
    rigs = [start_rig(storage, index_mode=mode) for mode in (first, second)]
    assert tuple(rig.engine.stats()["owner"] for rig in rigs) == owners
    rigs[0].engine.close()
    rigs[1].engine.close()
    # Both have let go.
    assert start_rig(storage, index_mode="owner").engine.stats()["owner"] == 1


def test_default_is_the_owner_where_nobody_else_is(start_rig: StartRig, storage: Path) -> None:
    assert start_rig(storage).engine.stats()["owner"] == 1
    assert start_rig(storage).engine.stats()["owner"] == 0
    # Of another namespace beside it.
    assert start_rig(storage / "other").engine.stats()["owner"] == 1


@pytest.mark.parametrize("other", ["owner", "shared"])
def test_owner_beside_another_engine_is_refused_with_ebusy_and_holds_nothing(
    io: IoBackend, start_rig: StartRig, storage: Path, other: str
) -> None:
    first = start_rig(storage, index_mode=other)
    assert first.await_stats(scan_complete=1)
    memory = bytearray(64)
    buffer = memoryview(memory).cast("B", (8, 8))
    threads_before = threading.active_count()
    with pytest.raises(OSError, match=r"(?i)namespace|busy") as caught:
        io.Engine(str(storage), buffer, 1, 1, index_mode="owner")
    assert caught.value.errno == errno.EBUSY
    assert threading.active_count() == threads_before
    buffer.release()
    memory.extend(b"would raise BufferError")
    first.engine.close()
    assert start_rig(storage, index_mode="owner").engine.stats()["owner"] == 1


def test_locks_are_the_ones_of_the_contract(start_rig: StartRig, storage: Path) -> None:
    lock = storage / "kvfs.lock"
    owner = start_rig(storage, index_mode="owner")
    assert lock.stat().st_mode & 0o7777 == 0o600
    assert (_is_owned_by_lock(lock), _is_shared_by_lock(lock)) == (True, False)
    shared = [start_rig(storage, index_mode="shared") for _ in range(2)]
    assert (_is_owned_by_lock(lock), _is_shared_by_lock(lock)) == (True, True)
    owner.engine.close()
    shared[0].engine.close()
    assert (_is_owned_by_lock(lock), _is_shared_by_lock(lock)) == (False, True)
    shared[1].engine.close()
    assert (_is_owned_by_lock(lock), _is_shared_by_lock(lock)) == (False, False)
    assert lock.exists()


def test_owner_that_finds_another_engine_shares_for_good(
    start_owner: Callable[..., Rig], start_rig: StartRig, storage: Path
) -> None:
    owner = start_owner(negative_ttl_s=FOR_EVER_S)
    present, absent, forgotten, unknown = keys = [owner.key(number) for number in range(4)]
    owner.store([present], [0])
    owner.ask([absent])
    owner.load([forgotten], [0])
    assert owner.verdicts(keys) == [HIT, MISS, MISS, MISS]
    second = start_rig(storage)
    assert await_that(lambda: owner.engine.lookup(unknown) == RETRY)
    # What it knows it goes on to believe.
    assert owner.verdicts(keys) == [HIT, MISS, RETRY, RETRY]
    assert owner.engine.stats()["owner"] == 0
    assert _is_shared_by_lock(storage / "kvfs.lock")
    assert not _is_owned_by_lock(storage / "kvfs.lock")
    second.engine.close()
    assert owner.verdicts(keys) == [HIT, MISS, RETRY, RETRY]
    assert owner.engine.stats()["owner"] == 0


def test_owner_that_never_misses_stays_what_it_is(
    start_owner: Callable[..., Rig], start_rig: StartRig, storage: Path
) -> None:
    owner = start_owner()
    keys = [owner.key(number) for number in range(4)]
    owner.store(keys, [0] * 4)
    start_rig(storage)
    until = time.monotonic() + 2 * CONFIRMED_S
    while time.monotonic() < until:
        # A hit needs nobody to be alone.
        assert owner.verdicts(keys) == [HIT] * 4
    assert owner.engine.stats()["owner"] == 1


@pytest.mark.parametrize("asked_before", [False, True], ids=["unknown", "absent"])
@pytest.mark.parametrize("closes", [False, True], ids=["stays", "has-gone"])
@pytest.mark.parametrize("ttl_s", [0.0, 0.01, 0.2])
def test_store_of_another_engine_is_missed_for_a_bounded_time(
    start_owner: Callable[..., Rig],
    start_rig: StartRig,
    storage: Path,
    ttl_s: float,
    closes: bool,
    asked_before: bool,
) -> None:
    first = start_owner(negative_ttl_s=ttl_s)
    key = first.key(1)
    if asked_before:
        first.ask([key])
    assert first.engine.lookup(first.key(2)) == MISS
    second = start_rig(storage)
    assert second.store([key], [0]).outcomes == [0]
    stored_at = time.monotonic()
    if closes:
        second.engine.close()
    deadline = stored_at + DEADLINE_S
    while True:
        looked_at = time.monotonic()
        verdict = first.engine.lookup(key)
        if verdict == HIT:
            break
        assert looked_at < deadline
        if looked_at - stored_at > max(CONFIRMED_S, ttl_s):
            assert verdict != MISS
        # As the tier does.
        first.ask([key] if verdict in (RETRY, EXPIRED) else [])
    assert first.engine.stats()["owner"] == 0


def test_store_of_an_engine_that_has_come_and_gone_is_no_miss_later(
    start_owner: Callable[..., Rig], start_rig: StartRig, storage: Path
) -> None:
    first = start_owner(negative_ttl_s=0.0)
    second = start_rig(storage)
    keys = [first.key(number) for number in range(3)]
    second.store(keys, [0] * 3)
    second.engine.close()
    until = time.monotonic() + 2 * CONFIRMED_S
    # The first one asks nobody while the other is there.
    while time.monotonic() < until:
        assert first.engine.lookup_prefix(b"".join(keys), 36) == 0
    assert first.verdicts(keys) == [RETRY] * 3
    first.ask(keys)
    assert first.verdicts(keys) == [HIT] * 3


@pytest.mark.parametrize("mode", ["auto", "shared"])
def test_place_of_a_killed_process_is_free(
    start_rig: StartRig,
    storage: Path,
    start_process: Callable[[Path, str], tuple[subprocess.Popen[str], bool]],
    mode: str,
) -> None:
    process, is_owner = start_process(storage, mode)
    assert is_owner == (mode == "auto")
    beside = start_rig(storage)
    assert beside.engine.stats()["owner"] == 0
    beside.engine.close()
    with pytest.raises(OSError, match=r"(?i)namespace|busy") as caught:
        start_rig(storage, index_mode="owner")
    assert caught.value.errno == errno.EBUSY
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    assert start_rig(storage, index_mode="owner").engine.stats()["owner"] == 1


def test_owner_notices_an_engine_of_another_process(
    start_owner: Callable[..., Rig],
    storage: Path,
    start_process: Callable[[Path, str], tuple[subprocess.Popen[str], bool]],
) -> None:
    owner = start_owner()
    assert owner.engine.lookup(owner.key(1)) == MISS
    process, is_owner = start_process(storage, "auto")
    assert not is_owner
    assert await_that(lambda: owner.engine.lookup(owner.key(1)) == RETRY)
    process.kill()
    process.wait(30)
    assert owner.engine.lookup(owner.key(1)) == RETRY


@pytest.mark.uninstrumented
def test_closed_engine_holds_no_place_through_a_forked_child(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path / "namespace")],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
