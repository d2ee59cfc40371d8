"""What runs next: budgets in bytes, loads before stores, turns between jobs, and what a full queue sheds."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from system_tools import MKFS

from kvfs.jobs import SHED, CompletionLike

if TYPE_CHECKING:
    from tests.unit.conftest import Mount, Rig, StartRig

DEADLINE_S = 30.0
CHUNK_SIZE_BYTES = 4096
MIB = 1 << 20
# ioctls of linux/fs.h; arm64 and x86-64 agree.
FIFREEZE = 0xC0045877
FITHAW = 0xC0045878


def _await(condition: Callable[[], bool]) -> bool:
    """Poll until `condition` holds; False when it does not within the bound."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def _keys(rig: Rig, count: int, first: int = 0) -> list[bytes]:
    return [rig.key(number) for number in range(first, first + count)]


@pytest.mark.parametrize(
    ("limit_bytes", "kept"),
    [
        pytest.param(1, 1, id="less-than-a-chunk"),
        pytest.param(CHUNK_SIZE_BYTES, 1, id="one-chunk"),
        pytest.param(6 * CHUNK_SIZE_BYTES - 1, 5, id="five-and-a-half"),
        pytest.param(39 * CHUNK_SIZE_BYTES, 39, id="all-but-one"),
        pytest.param(40 * CHUNK_SIZE_BYTES, 40, id="just-enough"),
        pytest.param(None, 40, id="none"),
    ],
)
def test_store_larger_than_the_queue_sheds_its_last_keys(
    start_rig: StartRig, storage: Path, limit_bytes: int | None, kept: int
) -> None:
    rig = start_rig(
        storage, num_chunks=1, chunk_size_bytes=CHUNK_SIZE_BYTES, max_queued_store_bytes=limit_bytes
    )
    chunk = rig.tier.fill(0, seed=1)
    keys = _keys(rig, 40)
    completion = rig.store(keys, [0] * 40)
    assert completion.outcomes == [0] * kept + [SHED] * (40 - kept)
    assert completion.bytes_moved == kept * CHUNK_SIZE_BYTES
    assert [rig.path(key).exists() for key in keys] == [True] * kept + [False] * (40 - kept)
    assert rig.path(keys[kept - 1]).read_bytes() == chunk
    failed = f"store failed for chunk {kept + 1} of 40 because the queue was full"
    assert completion.detail == ("" if kept == 40 else failed)
    assert rig.engine.stats()["shed_stores"] == 40 - kept
    assert (f"chunk {kept + 1} of 40" in completion.detail) == (kept < 40)


def test_queue_has_room_again_when_its_stores_have_run(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path, chunk_size_bytes=CHUNK_SIZE_BYTES, max_queued_store_bytes=4 * CHUNK_SIZE_BYTES)
    for first in range(0, 40, 4):
        assert rig.store(_keys(rig, 4, first), [0] * 4).outcomes == [0] * 4
    assert rig.engine.stats()["shed_stores"] == 0


def test_jobs_that_find_a_full_queue_keep_a_beginning_and_are_all_reported(
    start_rig: StartRig, tmp_path: Path
) -> None:
    rig = start_rig(tmp_path, chunk_size_bytes=CHUNK_SIZE_BYTES, max_queued_store_bytes=5 * CHUNK_SIZE_BYTES)
    jobs = {rig.submit("store", _keys(rig, 3, 3 * job), [0] * 3): job for job in range(300)}
    completions = rig.finish()
    assert sorted(completions) == sorted(jobs)
    shed = 0
    for job_id, job in jobs.items():
        outcomes = completions[job_id].outcomes
        kept = outcomes.count(0)
        assert outcomes == [0] * kept + [SHED] * (3 - kept)
        assert [rig.path(key).exists() for key in _keys(rig, 3, 3 * job)] == [code == 0 for code in outcomes]
        shed += 3 - kept
    assert rig.engine.stats()["shed_stores"] == shed
    assert rig.engine.stats()["inflight_jobs"] == 0


def test_loads_and_lookups_are_never_shed(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path, max_queued_store_bytes=1)
    keys = _keys(rig, 500)
    jobs = [rig.submit(kind, keys, [0] * 500) for kind in ("store", "load", "lookup")]
    completions = rig.finish()
    for job_id in jobs[1:]:
        assert set(completions[job_id].outcomes) <= {0, errno.ENOENT}
    assert rig.engine.stats()["shed_stores"] == completions[jobs[0]].outcomes.count(SHED) == 499


@pytest.mark.parametrize("io_engine", ["auto", "psync"])
@pytest.mark.parametrize(
    ("budget_bytes", "chunks"),
    [
        pytest.param(1, 1, id="less-than-a-chunk"),
        pytest.param((3 << 18) + 5, 3, id="three-chunks"),
        pytest.param(64 << 18, 64, id="64-chunks"),
    ],
)
def test_loads_in_flight_stay_within_their_budget(
    start_rig: StartRig, storage: Path, io_engine: str, budget_bytes: int, chunks: int
) -> None:
    size = 1 << 18
    rig = start_rig(
        storage,
        num_chunks=80,
        chunk_size_bytes=size,
        threads=(8, 8),
        io_engine=io_engine,
        max_inflight_read_bytes=budget_bytes,
    )
    keys = _keys(rig, 8)
    rig.store(keys, list(range(8)))
    assert rig.engine.stats()["peak_inflight_read_bytes"] == 0
    peak = 0
    # One round is nearly always enough to see two loads at once.
    for _ in range(20 if chunks > 1 else 1):
        assert rig.load(keys * 10, list(range(80))).outcomes == [0] * 80
        peak = rig.engine.stats()["peak_inflight_read_bytes"]
        assert peak <= chunks * size
        if peak > size:
            break
    assert (peak > size) == (chunks > 1)
    assert peak >= size


@pytest.mark.parametrize(
    ("budget_bytes", "chunks"),
    [
        pytest.param(1, 1, id="less-than-a-chunk"),
        pytest.param((3 << 18) + 5, 3, id="three-chunks"),
        pytest.param(64 << 18, 64, id="64-chunks"),
    ],
)
def test_stores_in_flight_stay_within_their_budget(
    start_rig: StartRig, storage: Path, budget_bytes: int, chunks: int
) -> None:
    size = 1 << 18
    rig = start_rig(
        storage,
        num_chunks=1,
        chunk_size_bytes=size,
        threads=(4, 4),
        max_inflight_write_bytes=budget_bytes,
    )
    peak = 0
    for first in range(0, 1000 if chunks > 1 else 50, 50):
        assert rig.store(_keys(rig, 50, first), [0] * 50).outcomes == [0] * 50
        peak = rig.engine.stats()["peak_inflight_write_bytes"]
        assert peak <= chunks * size
        if peak > size:
            break
    assert (peak > size) == (chunks > 1)
    assert peak >= size
    assert rig.engine.stats()["peak_inflight_read_bytes"] == 0


def test_no_more_than_256_files_are_open_for_either_kind(start_rig: StartRig, storage: Path) -> None:
    rig = start_rig(storage, num_chunks=600, chunk_size_bytes=CHUNK_SIZE_BYTES, threads=(16, 16))
    keys = _keys(rig, 600)
    rig.store(keys, list(range(600)))
    rig.load(keys, list(range(600)))
    stats = rig.engine.stats()
    assert CHUNK_SIZE_BYTES <= stats["peak_inflight_read_bytes"] <= 256 * CHUNK_SIZE_BYTES
    assert CHUNK_SIZE_BYTES <= stats["peak_inflight_write_bytes"] <= 256 * CHUNK_SIZE_BYTES


def test_load_behind_a_backlog_of_stores_runs_before_most_of_it(start_rig: StartRig, tmp_path: Path) -> None:
    rig = start_rig(tmp_path, num_chunks=2, chunk_size_bytes=MIB // 2)
    chunk = rig.tier.fill(0, seed=1)
    rig.store([rig.key(9999)], [0])
    backlog = [rig.submit("store", _keys(rig, 10, 10 * job), [0] * 10) for job in range(12)]
    ended = [done.job_id for done in rig.engine.poll()]
    load = rig.submit("load", [rig.key(9999)], [1])
    order = list(rig.finish())
    assert sorted([*ended, *order]) == [*backlog, load]
    assert len(order) > 6, "the stores were done before the load was there"
    assert order.index(load) <= len(order) // 3
    assert rig.tier.row(1) == chunk


def test_stores_go_on_within_their_share_while_loads_wait(start_rig: StartRig, tmp_path: Path) -> None:
    size = 1 << 16
    # Through the page cache, where both take about as long as a copy.
    rig = start_rig(
        tmp_path,
        num_chunks=16,
        chunk_size_bytes=size,
        threads=(8, 8),
        use_o_direct=False,
        max_inflight_read_bytes=4 * size,
        max_inflight_write_bytes=24 * size,
    )
    kept = _keys(rig, 16, 5000)
    for row, key in enumerate(kept):
        rig.store([key], [row])
    assert rig.engine.stats()["peak_inflight_write_bytes"] == size
    loads = [rig.submit("load", kept * 10, list(range(16)) * 10) for _ in range(40)]
    stores = [rig.submit("store", [rig.key(number)], [0]) for number in range(20)]
    completions = rig.finish()
    order = list(completions)
    assert all(set(done.outcomes) == {0} for done in completions.values())
    # The last load ended after the last store, so loads waited or ran all the time.
    assert max(order.index(job_id) for job_id in stores) < order.index(loads[-1])
    assert rig.engine.stats()["peak_inflight_write_bytes"] <= 3 * size


def _prepare_turns(start_rig: StartRig, tmp_path: Path, kind: str) -> tuple[Rig, bytes]:
    """Return a rig with turns of 16 ops, one op at a time, and a key for which an op moves nothing."""
    rig = start_rig(
        tmp_path,
        num_chunks=1,
        chunk_size_bytes=2 * MIB,
        threads=(1, 1),
        max_inflight_read_bytes=1,
        max_inflight_write_bytes=1,
    )
    if kind == "store":
        rig.store([rig.key(1)], [0])
    return rig, rig.key(1)


@pytest.mark.parametrize("kind", ["store", "load", "lookup"])
def test_small_job_behind_one_of_many_turns_ends_first(
    start_rig: StartRig, tmp_path: Path, kind: str
) -> None:
    rig, key = _prepare_turns(start_rig, tmp_path, kind)
    large = rig.submit(kind, [key] * 30_000, [0] * 30_000)
    small = rig.submit(kind, [key] * 16, [0] * 16)
    assert list(rig.finish()) == [small, large]


@pytest.mark.parametrize("kind", ["store", "load"])
def test_jobs_within_a_turn_end_in_the_order_of_submission(
    start_rig: StartRig, tmp_path: Path, kind: str
) -> None:
    rig, key = _prepare_turns(start_rig, tmp_path, kind)
    jobs = [rig.submit(kind, [key] * count, [0] * count) for count in (16, 1, 16, 5, 16, 2) * 20]
    assert list(rig.finish()) == jobs


@pytest.mark.parametrize("kind", ["store", "load"])
def test_turns_go_round_among_large_jobs(start_rig: StartRig, tmp_path: Path, kind: str) -> None:
    rig, key = _prepare_turns(start_rig, tmp_path, kind)
    # So far apart that it does not matter how long a busy machine takes to submit the next one.
    counts = (30_000, 16 * 600, 16 * 300, 16 * 3)
    jobs = [rig.submit(kind, [key] * count, [0] * count) for count in counts]
    assert list(rig.finish()) == list(reversed(jobs))


@contextlib.contextmanager
def _frozen(directory: Path) -> Iterator[None]:
    """Let every write to the file system hang until the block ends."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, FIFREEZE, 0)
        try:
            yield
        finally:
            fcntl.ioctl(fd, FITHAW, 0)
    finally:
        os.close(fd)


@pytest.mark.needs_root
@pytest.mark.parametrize("io_engine", ["auto", "psync"])
def test_stores_that_hang_needs_root_stop_no_load_and_fill_the_queue(
    mount: Mount, start_rig: StartRig, tmp_path: Path, io_engine: str
) -> None:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(16 * MIB)
    subprocess.run([MKFS, "-q", "-F", str(image)], check=True, timeout=30)
    directory = mount("ext4", source=str(image), options="loop")
    rig = start_rig(
        directory / "namespace",
        num_chunks=2,
        chunk_size_bytes=CHUNK_SIZE_BYTES,
        io_engine=io_engine,
        max_queued_store_bytes=10 * CHUNK_SIZE_BYTES,
    )
    chunk = rig.tier.fill(0, seed=1)
    rig.store([rig.key(9999)], [0])
    with _frozen(directory):
        hanging = rig.submit("store", _keys(rig, 8), [0] * 8)
        # Three of four threads hang.
        assert _await(lambda: rig.engine.stats()["peak_inflight_write_bytes"] == 3 * CHUNK_SIZE_BYTES)
        shed = rig.submit("store", _keys(rig, 10, 100), [0] * 10)
        all_shed = rig.submit("store", _keys(rig, 3, 200), [0] * 3)
        load = rig.submit("load", [rig.key(9999)] * 100, [1] * 100)
        lookup = rig.submit("lookup", [rig.key(9999), rig.key(100)])
        ended: list[CompletionLike] = []

        def all_ended() -> bool:
            ended.extend(rig.engine.poll())
            return len(ended) == 3

        assert _await(all_ended)
    outcomes = {done.job_id: done.outcomes for done in ended}
    assert outcomes == {all_shed: [SHED] * 3, load: [0] * 100, lookup: [0, errno.ENOENT]}
    assert rig.tier.row(1) == chunk
    completions = rig.finish()
    assert completions[hanging].outcomes == [0] * 8
    # Five of the first job waited, so that there was room for five more.
    assert completions[shed].outcomes == [0] * 5 + [SHED] * 5
    assert rig.engine.stats()["shed_stores"] == 8
