"""Several writers and readers of one directory: threads, engines, forked and killed processes."""

from __future__ import annotations

import errno
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from writer_process import FORK, PRINT, WRITER, assert_stored_once, numbered_path, result, start

from kvfs.jobs import IoBackend

if TYPE_CHECKING:
    from tests.unit.conftest import OneChunk, StartRig


def test_two_engines_storing_the_same_keys_keep_one_whole_file_each(
    start_rig: StartRig, storage: Path
) -> None:
    count = 60
    rigs = [start_rig(storage, num_chunks=count, chunk_size_bytes=16384) for _ in range(2)]
    chunks = [rigs[0].tier.fill(number, seed=number) for number in range(count)]
    assert [rigs[1].tier.fill(number, seed=number) for number in range(count)] == chunks
    keys = [rigs[0].key(number) for number in range(count)]
    jobs = [rig.submit("store", keys, range(count)) for rig in rigs]
    done = [rig.finish()[job] for rig, job in zip(rigs, jobs, strict=True)]
    assert [completion.outcomes for completion in done] == [[0] * count] * 2
    assert sum(rig.engine.stats()["duplicate_stores"] for rig in rigs) == count
    assert sum(completion.bytes_moved for completion in done) == count * 16384
    assert [rigs[0].path(key).read_bytes() for key in keys] == chunks
    assert list(storage.rglob("*.tmp")) == []


def test_two_processes_storing_the_same_keys_keep_one_whole_file_each(storage: Path) -> None:
    processes = [start(WRITER + PRINT, storage, 100, 8192) for _ in range(2)]
    assert_stored_once(storage, [result(process) for process in processes], 100, 8192)


def test_four_forks_of_one_process_storing_the_same_keys_keep_one_whole_file_each(storage: Path) -> None:
    results = result(start(WRITER + FORK, storage, 50, 8192))
    assert_stored_once(storage, results, 50, 8192)


def test_killed_writer_leaves_no_partial_chunk_and_others_remove_its_temporaries_alone(
    start_rig: StartRig, storage: Path
) -> None:
    count, size_bytes = 400, 65536
    process = start(WRITER + PRINT, storage, count, size_bytes)
    deadline = time.monotonic() + 30
    while not numbered_path(storage, 5).exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    for path in storage.rglob("*.bin"):
        assert path.read_bytes() == bytes([int(path.stem, 16) % 256]) * size_bytes
    # Beside what the dead one left, one of a writer of another kind, who may be alive.
    foreign = Path(f"{numbered_path(storage, 0)}_0123456789abcdef.tmp")
    foreign.write_bytes(b"in flight")
    rig = start_rig(storage, num_chunks=1, chunk_size_bytes=size_bytes)
    keys = [number.to_bytes(32, "big") + bytes(4) for number in range(count)]
    assert rig.store(keys, [0] * count).outcomes == [0] * count
    assert rig.lookup(keys).outcomes == [0] * count
    assert rig.await_stats(scan_complete=1)
    assert list(storage.rglob("*.tmp")) == [foreign]


def test_load_during_stores_sees_nothing_or_the_whole_chunk(one_chunk: OneChunk, io: IoBackend) -> None:
    chunk = bytes(range(256)) * 32
    stop = threading.Event()
    seen: list[int] = []

    def read() -> None:
        buffer = bytearray(len(chunk))
        while not stop.is_set():
            try:
                io.batch_load([str(one_chunk.path)], [buffer])
            except FileNotFoundError:
                seen.append(errno.ENOENT)
                continue
            except OSError as error:
                seen.append(error.errno or -1)
                continue
            seen.append(0 if buffer == chunk else -1)
            buffer[:] = bytes(len(chunk))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    rounds = 0
    deadline = time.monotonic() + 30
    try:
        while (rounds < 100 or 0 not in seen) and time.monotonic() < deadline:
            assert one_chunk.store(chunk) == 0
            one_chunk.path.unlink()
            rounds += 1
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert set(seen) <= {0, errno.ENOENT}
    assert 0 in seen


@pytest.mark.parametrize("size_bytes", [0, 100, 20_000], ids=["empty", "short", "long"])
def test_load_during_heals_never_returns_other_bytes(
    one_chunk: OneChunk, io: IoBackend, size_bytes: int
) -> None:
    chunk = bytes(range(256)) * 32
    one_chunk.path.parent.mkdir(parents=True)
    buffer = bytearray(len(chunk))
    for _ in range(30):
        one_chunk.path.write_bytes(bytes(size_bytes))
        healed: list[int] = []
        healer = threading.Thread(target=lambda results=healed: results.append(one_chunk.store(chunk)))
        healer.start()
        while healer.is_alive():
            try:
                io.batch_load([str(one_chunk.path)], [buffer])
            except OSError as error:
                assert error.errno in (errno.EBADMSG, errno.ENOENT)  # noqa: PT017 - most rounds raise none
            else:
                assert buffer == chunk
        healer.join()
        assert healed == [0]
