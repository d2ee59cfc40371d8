"""Processes that store numbered chunks, forked or alone, and what must be on disk after them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def start(script: str, base: Path, count: int, size_bytes: int) -> subprocess.Popen[str]:
    """Start a writer; `WRITER + PRINT` is one, `WRITER + FORK` forks four."""
    command = [sys.executable, "-c", script, str(base), str(count), str(size_bytes)]
    # Not in the source tree: python -c puts the working directory on the path.
    return subprocess.Popen(command, cwd=base, stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> Any:
    """Wait for a writer and return what it printed."""
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return json.loads(output)


def numbered_path(base: Path, number: int) -> Path:
    """Return the path of a writer's chunk."""
    digits = number.to_bytes(32, "big").hex()
    return base / digits[:3] / f"{digits[3:5]}_g0" / f"{digits}.bin"


def assert_stored_once(base: Path, results: list[dict[str, Any]], count: int, size_bytes: int) -> None:
    """Check that all succeeded, that each chunk was written once and is whole, and that no more is left."""
    assert [result["outcomes"] for result in results] == [[0] * count] * len(results)
    # Each chunk was published by one writer and is a duplicate for all others.
    assert sum(result["duplicates"] for result in results) == count * (len(results) - 1)
    assert sum(result["moved"] for result in results) == count * size_bytes
    for number in range(count):
        assert numbered_path(base, number).read_bytes() == bytes([number % 256]) * size_bytes
    assert list(base.rglob("*.tmp")) == []
