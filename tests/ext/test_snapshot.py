"""The index's file: a restart knows at once what is there, and whatever stands in it costs a miss at most."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kvfs_ext
from kvfs.jobs import HIT, MISS, RETRY

CHUNK_BYTES = 512
KEY_BYTES = 36
WAIT_S = 30.0
WHOLE_OFFSET = 8

StartEngine = Callable[..., kvfs_ext.Engine]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "namespace"


@pytest.fixture
def start(base: Path) -> Iterator[StartEngine]:
    """Start engines on one namespace, closed at the end."""
    started: list[kvfs_ext.Engine] = []

    def make(
        index_mode: str = "auto", *, chunk_bytes: int = CHUNK_BYTES, scanned: bool = True
    ) -> kvfs_ext.Engine:
        view = memoryview(bytearray(4 * chunk_bytes)).cast("B", (4, chunk_bytes))
        engine = kvfs_ext.Engine(str(base), view, 1, 1, index_mode=index_mode)
        started.append(engine)
        if scanned:
            wait_for_scan(engine)
        return engine

    yield make
    for engine in started:
        engine.close()


def wait_for_scan(engine: kvfs_ext.Engine) -> None:
    deadline = time.monotonic() + WAIT_S
    while not engine.stats()["scan_complete"]:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def keys_of(count: int) -> list[bytes]:
    draw = random.Random(count)
    return [draw.randbytes(KEY_BYTES - 4) + bytes(4) for _ in range(count)]


def store(engine: kvfs_ext.Engine, keys: list[bytes]) -> None:
    engine.submit_store(0, b"".join(keys), len(keys[0]), [0] * len(keys))
    assert engine.drain(WAIT_S)
    assert [completion.outcomes for completion in engine.poll()] == [[0] * len(keys)]


def path_of(base: Path, key: bytes) -> Path:
    digits = key[:-4].hex()
    return base / digits[:3] / f"{digits[3:5]}_g{int.from_bytes(key[-4:], 'big')}" / f"{digits}.bin"


def verdicts(engine: kvfs_ext.Engine, keys: list[bytes]) -> list[int]:
    return [engine.lookup(key) for key in keys]


def test_owner_leaves_a_private_snapshot_and_nothing_else(base: Path, start: StartEngine) -> None:
    engine = start()
    store(engine, keys_of(5))
    assert not (base / "kvfs.index").exists()
    engine.close()
    status = (base / "kvfs.index").stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert (base / "kvfs.index").read_bytes()[WHOLE_OFFSET] == 1
    assert sorted(path.name for path in base.glob("kvfs*")) == ["kvfs.index", "kvfs.lock"]


def test_snapshot_is_not_whole_while_an_engine_runs(base: Path, start: StartEngine) -> None:
    first = start()
    store(first, keys_of(3))
    first.close()
    shared = start("shared")
    assert (base / "kvfs.index").read_bytes()[WHOLE_OFFSET] == 0
    # It cannot know what others have stored meanwhile.
    shared.close()
    assert (base / "kvfs.index").read_bytes()[WHOLE_OFFSET] == 0


def test_owner_that_has_not_noticed_a_neighbour_yet_leaves_no_whole_snapshot(
    base: Path, start: StartEngine
) -> None:
    first = start()
    store(first, keys_of(3))
    # Believes for a moment that it is alone, which this miss has just told it.
    assert first.lookup(keys_of(1)[0]) == MISS
    neighbour = start()
    store(neighbour, keys_of(4))
    neighbour.close()
    first.close()
    assert not (base / "kvfs.index").exists()


def test_whole_snapshot_is_known_before_the_scan_ends(base: Path, start: StartEngine) -> None:
    keys = keys_of(1500)
    first = start()
    store(first, keys)
    first.close()
    packed = b"".join(keys)
    seen = False
    for _ in range(20):
        if seen:
            break
        engine = start(scanned=False)
        known = missed = False
        while not engine.stats()["scan_complete"]:
            # First what is known, then whether the scan still ran.
            hits, verdict = engine.lookup_prefix(packed, KEY_BYTES), engine.lookup(bytes(KEY_BYTES))
            scanning = engine.stats()["scanned_files"] < len(keys) // 2
            known = known or (hits == len(keys) and scanning)
            missed = missed or (verdict == MISS and scanning)
        engine.close()
        seen = known and missed
    assert seen, "in none of 20 restarts was the snapshot there before the scan"


def test_chunks_that_have_gone_since_are_missed_after_the_scan(base: Path, start: StartEngine) -> None:
    keys = keys_of(40)
    first = start()
    store(first, keys)
    first.close()
    for key in keys[:20]:
        path_of(base, key).unlink()
    engine = start()
    assert verdicts(engine, keys) == [MISS] * 20 + [HIT] * 20


def test_chunks_that_have_come_since_are_known_after_the_scan(base: Path, start: StartEngine) -> None:
    keys = keys_of(40)
    first = start()
    store(first, keys[:20])
    first.close()
    for key in keys[20:]:
        path_of(base, key).parent.mkdir(parents=True, exist_ok=True)
        path_of(base, key).write_bytes(bytes(CHUNK_BYTES))
    # A directory is new to the first level, so the snapshot knows that it is not whole.
    engine = start(scanned=False)
    while not engine.stats()["scan_complete"]:
        assert MISS not in verdicts(engine, keys)
    assert verdicts(engine, keys) == [HIT] * 40


def test_snapshot_of_another_chunk_size_is_not_used(base: Path, start: StartEngine) -> None:
    keys = keys_of(5)
    first = start()
    store(first, keys)
    first.close()
    other = start(chunk_bytes=2 * CHUNK_BYTES)
    assert verdicts(other, keys) == [MISS] * 5


def _damaged(whole: bytes) -> Iterator[bytes]:
    draw = random.Random(7)
    for length in {*range(80), *(draw.randrange(len(whole)) for _ in range(40))}:
        yield whole[:length]
    for _ in range(120):
        place = draw.choice([draw.randrange(64), draw.randrange(len(whole))])
        yield whole[:place] + bytes([whole[place] ^ 1 << draw.randrange(8)]) + whole[place + 1 :]
    # Lengths and counts that no file can hold, under a magic that is right.
    for place in (16, 24, 32, 40, 48):
        for number in (0, 1, 2**31, 2**63, 2**64 - 1):
            yield whole[:place] + number.to_bytes(8, sys.byteorder) + whole[place + 8 :]
    yield whole * 2
    yield draw.randbytes(10_000)
    yield whole[:16] + draw.randbytes(10_000)


@pytest.mark.slow
def test_damaged_snapshot_costs_nothing_but_time(base: Path, start: StartEngine) -> None:
    keys = keys_of(30)
    first = start()
    store(first, keys)
    first.close()
    absent = keys_of(31)
    for damaged in _damaged((base / "kvfs.index").read_bytes()):
        (base / "kvfs.index").write_bytes(damaged)
        engine = start()
        assert verdicts(engine, keys) == [HIT] * 30
        assert verdicts(engine, absent) == [MISS] * 31
        engine.close()


@pytest.mark.parametrize("kind", ["link", "dangling", "directory", "fifo"])
def test_what_is_no_file_of_our_own_is_neither_read_nor_changed(
    base: Path, start: StartEngine, kind: str
) -> None:
    keys = keys_of(3)
    first = start()
    store(first, keys)
    first.close()
    index, elsewhere = base / "kvfs.index", base.parent / "elsewhere"
    shutil.move(index, elsewhere)
    before = elsewhere.read_bytes()
    if kind == "link":
        index.symlink_to(elsewhere)
    elif kind == "dangling":
        index.symlink_to(base.parent / "nowhere")
    elif kind == "directory":
        index.mkdir()
    else:
        os.mkfifo(index)
    engine = start()
    assert verdicts(engine, keys) == [HIT] * 3
    engine.close()
    assert elsewhere.read_bytes() == before
    assert not (base.parent / "nowhere").exists()
    # The next one has its snapshot again, unless a directory is in the way.
    assert index.is_dir() == (kind == "directory")
    assert not list(base.glob("*.tmp"))


def test_killed_owner_leaves_no_snapshot_that_claims_to_be_whole(base: Path, start: StartEngine) -> None:
    old, new = keys_of(6)[:3], keys_of(6)[3:]
    first = start()
    store(first, old)
    first.close()
    # The same leaves: the first level's directories do not show what was stored.
    program = f"""
import sys, kvfs_ext
view = memoryview(bytearray({CHUNK_BYTES})).cast("B", (1, {CHUNK_BYTES}))
engine = kvfs_ext.Engine({str(base)!r}, view, 1, 1)
engine.submit_store(0, bytes.fromhex({b"".join(new).hex()!r}), {KEY_BYTES}, [0, 0, 0])
assert engine.drain(30)
print("stored", flush=True)
sys.stdin.read()
"""
    for key in new:
        path_of(base, key).parent.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"stored\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait(30) == -signal.SIGKILL
    engine = start(scanned=False)
    assert engine.stats()["owner"] == 1
    while not engine.stats()["scan_complete"]:
        assert set(verdicts(engine, new)) <= {HIT, RETRY}
    assert verdicts(engine, old + new) == [HIT] * 6
