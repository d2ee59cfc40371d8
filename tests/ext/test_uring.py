"""Loads through io_uring: the same bytes and outcomes as one read at a time, and what a probe decides."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import kvfs_ext

CHUNK_SIZE_BYTES = 1 << 16
CHUNKS = 40


def _buffer(rows: int = CHUNKS) -> memoryview:
    return memoryview(bytearray(rows * CHUNK_SIZE_BYTES)).cast("B", (rows, CHUNK_SIZE_BYTES))


@pytest.mark.parametrize("io_engine", ["uring", "psync"])
@pytest.mark.parametrize("use_o_direct", [True, False], ids=["direct", "buffered"])
@pytest.mark.parametrize("threads", [1, 4])
def test_each_io_engine_reads_the_same_bytes(
    tmp_path: Path, io_engine: str, use_o_direct: bool, threads: int
) -> None:
    buffer = _buffer(2 * CHUNKS)
    flat = buffer.cast("B")
    content = os.urandom(CHUNKS * CHUNK_SIZE_BYTES)
    flat[: len(content)] = content
    keys = b"".join(os.urandom(32) + bytes(4) for _ in range(CHUNKS))
    engine = kvfs_ext.Engine(str(tmp_path / "ns"), buffer, threads, threads, use_o_direct, io_engine)
    engine.submit_store(1, keys, 36, list(range(CHUNKS)))
    assert engine.drain(60)
    engine.submit_load(2, keys, 36, list(range(CHUNKS, 2 * CHUNKS)))
    assert engine.drain(60)
    assert [sum(completion.outcomes) for completion in engine.poll()] == [0, 0]
    assert flat[len(content) :].tobytes() == content
    engine.close()


def test_load_through_ring_sorts_good_missing_and_damaged(tmp_path: Path) -> None:
    engine = kvfs_ext.Engine(str(tmp_path / "ns"), _buffer(), 1, 1, True, "uring")
    keys = [bytes([i]) * 32 + bytes(4) for i in range(20)]
    engine.submit_store(1, b"".join(keys), 36, list(range(20)))
    assert engine.drain(60)
    engine.poll()
    files = sorted((tmp_path / "ns").rglob("*.bin"))
    files[3].unlink()
    os.truncate(files[7], 100)
    os.truncate(files[11], 2 * CHUNK_SIZE_BYTES)
    engine.submit_load(2, b"".join(keys), 36, [*range(19), 10_000])
    assert engine.drain(60)
    (completion,) = engine.poll()
    wrong = {3: "ENOENT", 7: "EBADMSG", 11: "EBADMSG", 19: "EINVAL"}
    assert [errno.errorcode.get(code, "") for code in completion.outcomes] == [
        wrong.get(i, "") for i in range(20)
    ]
    assert completion.bytes_moved == 16 * CHUNK_SIZE_BYTES
    assert not files[7].exists()
    assert files[11].exists()
    engine.close()


def test_ring_works_without_room_to_pin_memory(tmp_path: Path) -> None:
    # Registered buffers count as locked memory, 8 MiB in many places; and root is exempt, so drop that.
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    program = f"""
        import os, resource, kvfs_ext
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        if os.geteuid() == 0:
            os.setgroups([]); os.setgid(65534); os.setuid(65534)
        rows, size = 64, 1 << 18
        buffer = memoryview(bytearray(2 * rows * size)).cast("B", (2 * rows, size))
        flat = buffer.cast("B")
        flat[: rows * size] = os.urandom(rows * size)
        keys = b"".join(os.urandom(32) + bytes(4) for _ in range(rows))
        engine = kvfs_ext.Engine({str(tmp_path / "ns")!r}, buffer, 2, 2, True, "auto")
        engine.submit_store(1, keys, 36, list(range(rows)))
        assert engine.drain(60)
        engine.submit_load(2, keys, 36, list(range(rows, 2 * rows)))
        assert engine.drain(60)
        assert not any(any(c.outcomes) for c in engine.poll())
        assert flat[: rows * size] == flat[rows * size :]
        print(engine.io_engine)
    """
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.geteuid() and str(parent).startswith(str(Path(tmp_path).parents[2])):
            parent.chmod(parent.stat().st_mode | 0o011)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("uring", "psync")
    assert (soft, hard) == resource.getrlimit(resource.RLIMIT_MEMLOCK)
