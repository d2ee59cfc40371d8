"""A FUSE file system that answers nothing: callers never wait for it, and its death ends every operation."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from file_systems import Mounts
from fuse_mount import FuseMount
from polling import await_that

if TYPE_CHECKING:
    from rig import Rig

    from tests.faults.disks.conftest import StartRig

pytestmark = pytest.mark.needs_root

STUCK = 32
SIZE_BYTES = 65536
# None of these calls waits for anything; a machine that is busy may still need a while.
CALL_S_MAX = 5.0
DEADLINE_S = 30.0


def _returns(call: Callable[[], object]) -> bool:
    """Make a call in a thread of its own; tell whether it came back within the bound."""
    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(CALL_S_MAX)
    return not caller.is_alive()


def _stuck_rig(start_rig: StartRig, place: Path, kind: str) -> tuple[Rig, list[bytes]]:
    """Return a rig of 32 threads with chunks on disk, as the tier runs it on FUSE: shared."""
    rig = start_rig(
        place,
        num_chunks=2 * STUCK,
        chunk_size_bytes=SIZE_BYTES,
        threads=(16, 16),
        index_mode="shared",
        max_inflight_write_bytes=64 << 20,
    )
    keys = [rig.key(number) for number in range(STUCK)]
    if kind != "store":
        assert rig.store(keys, range(STUCK)).outcomes == [0] * STUCK
    return rig, keys


def _hang(fuse: FuseMount, rig: Rig, keys: list[bytes], kind: str) -> list[int]:
    """Let the file system hang, and 32 operations with it, a job each; return the jobs."""
    fuse.rule("hold")
    jobs = [rig.submit(kind, [key], [row]) for row, key in enumerate(keys)]
    # Three threads in four store at most, so that loads go on where stores alone hang.
    assert fuse.await_held(24 if kind == "store" else STUCK)
    return jobs


@pytest.mark.parametrize("kind", ["load", "lookup", "store"])
def test_stuck_operations_block_no_caller_and_end_when_it_goes_on(
    start_rig: StartRig, fuse_place: Path, fuse: FuseMount, kind: str
) -> None:
    rig, keys = _stuck_rig(start_rig, fuse_place, kind)
    engine, packed = rig.engine, b"".join(keys)
    jobs = _hang(fuse, rig, keys, kind)
    later: list[int] = []
    calls: dict[str, Callable[[], object]] = {
        "submit_load": lambda: later.append(rig.submit("load", keys, range(STUCK))),
        "submit_store": lambda: later.append(rig.submit("store", keys, range(STUCK))),
        "submit_lookup": lambda: later.append(rig.submit("lookup", keys)),
        "poll": engine.poll,
        "lookup": lambda: [engine.lookup(key) for key in keys],
        "lookup_prefix": lambda: engine.lookup_prefix(packed, 36),
        "ask": lambda: [engine.ask(rig.key(number)) for number in range(200)],
        "submit_probes": engine.submit_probes,
        "touch": lambda: engine.touch(packed, 36),
        "stats": engine.stats,
        "drain": lambda: engine.drain(0.01),
    }
    assert [name for name, call in calls.items() if not _returns(call)] == []
    assert list(engine.poll()) == []
    assert not engine.drain(0)
    fuse.clear()
    completions = rig.finish()
    assert sorted(completions) == sorted([*jobs, *later])
    assert [completions[job].outcomes for job in jobs] == [[0]] * STUCK
    # Of keys that were being stored, what came later may have been faster.
    late = {0, errno.ENOENT} if kind == "store" else {0}
    assert {outcome for job in later for outcome in completions[job].outcomes} <= late
    assert rig.lookup(keys).outcomes == [0] * STUCK
    assert list(fuse_place.rglob("*.tmp")) == []


def test_stuck_stores_leave_threads_for_loads(start_rig: StartRig, fuse_place: Path, fuse: FuseMount) -> None:
    rig, keys = _stuck_rig(start_rig, fuse_place, "load")
    chunk = rig.tier.row(0)
    fuse.rule("hold", "write")
    fresh = [rig.key(1000 + number) for number in range(STUCK)]
    stores = rig.submit("store", fresh, range(STUCK))
    assert fuse.await_held(24, "write")
    load = rig.submit("load", keys, [STUCK] * STUCK)
    ended: list[int] = []

    def load_ended() -> bool:
        ended.extend(done.job_id for done in rig.engine.poll())
        return load in ended

    assert await_that(load_ended)
    assert len(chunk) == SIZE_BYTES
    assert fuse.held("write") >= 24
    fuse.clear()
    assert rig.finish()[stores].outcomes == [0] * STUCK


@pytest.mark.parametrize("kind", ["load", "store"])
def test_file_system_that_dies_fails_every_stuck_operation_and_close_returns(
    start_rig: StartRig, own_mounts: Mounts, kind: str
) -> None:
    disk = own_mounts.make("fuse")
    assert disk.fuse is not None
    rig, keys = _stuck_rig(start_rig, disk.fresh(), kind)
    jobs = _hang(disk.fuse, rig, keys, kind)
    queued = rig.submit("load", keys, range(STUCK))
    disk.fuse.kill()
    started = time.monotonic()
    completions = rig.finish()
    dead = {errno.ECONNABORTED, errno.ENOTCONN, errno.EIO}
    assert {outcome for job in [*jobs, queued] for outcome in completions[job].outcomes} <= dead
    # The dead mount answers everything at once, and so does the engine.
    assert set(rig.store(keys, range(STUCK)).outcomes) == {errno.ENOTCONN}
    assert set(rig.lookup(keys).outcomes) == {errno.ENOTCONN}
    rig.engine.close()
    assert time.monotonic() - started < DEADLINE_S
