"""Several writers and readers of one directory: threads, engines, forked and killed processes."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvfs.jobs import IoBackend

if TYPE_CHECKING:
    from tests.unit.conftest import OneChunk, StartRig

# Stores `count` chunks, each filled with its number, and prints what became of them.
WRITER = """
import json, os, sys
from kvfs import backend

io = backend.load()
base, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def write():
    buffer = memoryview(bytearray(count * size)).cast("B", (count, size))
    flat = buffer.cast("B")
    for i in range(count):
        flat[i * size : (i + 1) * size] = bytes([i % 256]) * size
    engine = io.Engine(base, buffer, 2, 2, False)
    keys = b"".join(i.to_bytes(32, "big") + bytes(4) for i in range(count))
    engine.submit_store(1, keys, 36, list(range(count)))
    engine.drain(60)
    engine.close()
    (done,) = engine.poll()
    duplicates = engine.stats()["duplicate_stores"]
    return {"outcomes": done.outcomes, "moved": done.bytes_moved, "duplicates": duplicates}
"""
PRINT = "\nprint(json.dumps(write()))\n"
# The parent has used the implementation, and with it whatever it seeds, before it forks.
FORK = """
warm_up = io.Engine(base + "/warm-up", memoryview(bytearray(size)).cast("B", (1, size)), 1, 1, False)
warm_up.submit_store(1, bytes(36), 36, [0])
warm_up.drain(60)
warm_up.close()
readers = []
for _ in range(4):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, json.dumps(write()).encode())
        os._exit(0)
    os.close(writer)
    readers.append(reader)
results = [json.loads(os.read(reader, 1 << 20)) for reader in readers]
for _ in readers:
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
print(json.dumps(results))
"""


def _start(script: str, base: Path, count: int, size_bytes: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, str(base), str(count), str(size_bytes)]
    # Not in the source tree: python -c puts the working directory on the path.
    return subprocess.Popen(command, cwd=base, stdout=subprocess.PIPE, text=True)


def _result(process: subprocess.Popen[str]) -> Any:  # noqa: ANN401 - JSON
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return json.loads(output)


def _numbered_path(base: Path, number: int) -> Path:
    digits = number.to_bytes(32, "big").hex()
    return base / digits[:3] / f"{digits[3:5]}_g0" / f"{digits}.bin"


def _assert_stored_once(base: Path, results: list[dict[str, Any]], count: int, size_bytes: int) -> None:
    assert [result["outcomes"] for result in results] == [[0] * count] * len(results)
    # Each chunk was published by one writer and is a duplicate for all others.
    assert sum(result["duplicates"] for result in results) == count * (len(results) - 1)
    assert sum(result["moved"] for result in results) == count * size_bytes
    for number in range(count):
        assert _numbered_path(base, number).read_bytes() == bytes([number % 256]) * size_bytes
    assert list(base.rglob("*.tmp")) == []


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
    processes = [_start(WRITER + PRINT, storage, 100, 8192) for _ in range(2)]
    _assert_stored_once(storage, [_result(process) for process in processes], 100, 8192)


def test_four_forks_of_one_process_storing_the_same_keys_keep_one_whole_file_each(storage: Path) -> None:
    results = _result(_start(WRITER + FORK, storage, 50, 8192))
    _assert_stored_once(storage, results, 50, 8192)


def test_killed_writer_leaves_no_partial_chunk_and_others_remove_its_temporaries_alone(
    start_rig: StartRig, storage: Path
) -> None:
    count, size_bytes = 400, 65536
    process = _start(WRITER + PRINT, storage, count, size_bytes)
    deadline = time.monotonic() + 30
    while not _numbered_path(storage, 5).exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    for path in storage.rglob("*.bin"):
        assert path.read_bytes() == bytes([int(path.stem, 16) % 256]) * size_bytes
    # Beside what the dead one left, one of a writer of another kind, who may be alive.
    foreign = Path(f"{_numbered_path(storage, 0)}_0123456789abcdef.tmp")
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
