"""The seam itself: it counts what the engine calls and nothing else, and refuses what it does not know."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fault_cases import SETUPS
from fault_namespace import NEW, Memory, Setup, content_of, path_of, start
from fault_run import run_job, submit
from fault_seam import FOREVER, Fault, Seam
from polling import await_that

import kvfs_ext

PAUSE_S = 0.5


@pytest.fixture(autouse=True)
def quiet(seam: Seam) -> None:
    """Start without the faults of an earlier test."""
    seam.reset()


def test_calls_of_python_are_not_counted(seam: Seam, tmp_path: Path) -> None:
    seam.add(Fault("any", 1, FOREVER, error=errno.EIO))
    with seam.active():
        (tmp_path / "file").write_bytes(b"content")
        os.truncate(tmp_path / "file", 3)
        assert (tmp_path / "file").read_bytes() == b"con"
        (tmp_path / "file").rename(tmp_path / "other")
        assert os.listdir(tmp_path) == ["other"]  # noqa: PTH208 - the system's own call
        (tmp_path / "other").unlink()
        subprocess.run([sys.executable, "-c", ""], check=True, timeout=30)
    assert seam.counts() == {}
    with seam.active():
        assert kvfs_ext.batch_lookup([str(tmp_path)]) == [False]
    assert seam.counts() == {"fstatat": 1}
    assert [(hit.call, str(hit.path)) for hit in seam.hits()] == [("fstatat", str(tmp_path))]


def test_nothing_is_counted_or_fails_while_inactive(seam: Seam, tmp_path: Path) -> None:
    seam.add(Fault("any", 1, FOREVER, error=errno.EIO))
    file = tmp_path / "file"
    file.write_bytes(b"content")
    assert kvfs_ext.batch_lookup([str(file)]) == [True]
    assert seam.counts() == {}
    assert seam.hits() == []


@pytest.mark.parametrize(("call", "effect"), [("nothing", "fail"), ("pread", "vanish")])
def test_unknown_names_are_refused(seam: Seam, call: str, effect: str) -> None:
    with pytest.raises(ValueError, match="unknown call or effect"):
        seam.add(Fault(call, effect=effect))


def test_spin_takes_wall_and_cpu_time_and_is_no_hit(seam: Seam, tmp_path: Path) -> None:
    seam.add(Fault("fstatat", first=0, effect="spin", delay_s=1e-4))
    calls = 2000
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    with seam.active():
        assert kvfs_ext.batch_lookup([str(tmp_path)] * calls) == [False] * calls
    assert time.perf_counter() - wall_s >= calls * 1e-4
    # Few of so short delays are interrupted by other processes.
    assert time.process_time() - cpu_s > calls * 0.5e-4
    assert seam.hits() == []


@pytest.mark.parametrize("setup", [SETUPS[0], SETUPS[4]], ids=str)
def test_slow_stores_let_loads_pass_and_close_cancels_the_rest(
    seam: Seam, tmp_path: Path, setup: Setup
) -> None:
    memory = Memory(setup.chunk_size_bytes)
    base = tmp_path / "namespace"
    engine = kvfs_ext.Engine(str(base), memory.view, 2, 2, io_engine=setup.io_engine)
    assert run_job(engine, memory, "store", ["good_1"]) == {"good_1": 0}
    call = "ring_write" if setup.io_engine == "uring" else "pwrite"
    seam.add(Fault(call, 1, FOREVER, effect="delay", delay_s=PAUSE_S))
    names = (*NEW, "good_2", "duplicate", "cut", "long")
    with seam.active():
        before = time.monotonic()
        submit(engine, memory, "store", names, job_id=1)
        assert await_that(lambda: len(seam.hits()) > 0)
        submit(engine, memory, "load", ["good_1"], job_id=2)
        engine.lookup(bytes(36))
        assert engine.poll() == [] or time.monotonic() - before < PAUSE_S
        completions: list[kvfs_ext.Completion] = []

        def take() -> bool:
            completions.extend(engine.poll())
            return bool(completions)

        assert await_that(take)
        assert [(each.job_id, each.outcomes) for each in completions] == [(2, [0])]
        assert memory.is_loaded("good_1")
        engine.close()
    (stored,) = engine.poll()
    assert set(stored.outcomes) == {0, errno.ECANCELED}
    for name, outcome in zip(names, stored.outcomes, strict=True):
        path = path_of(base, name)
        assert path.exists() == (outcome == 0)
        assert outcome or path.read_bytes() == content_of(name, setup.chunk_size_bytes)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS], ids=errno.errorcode.get)
@pytest.mark.parametrize("setup", [SETUPS[0], SETUPS[4]], ids=str)
def test_stores_on_a_disk_that_takes_none_pause_and_go_on_when_it_does(
    seam: Seam, tmp_path: Path, setup: Setup, error: int
) -> None:
    memory = Memory(setup.chunk_size_bytes)
    engine = start(setup, tmp_path / "namespace", memory)
    assert run_job(engine, memory, "store", ["good_1"]) == {"good_1": 0}
    call = "ring_write" if setup.io_engine == "uring" else "pwrite"
    seam.add(Fault(call, 1, FOREVER, error=error))
    with seam.active():
        assert run_job(engine, memory, "store", ["new_1", "new_2"]) == {"new_1": error, "new_2": error}
        assert run_job(engine, memory, "store", ["new_1"]) == {"new_1": errno.EAGAIN}
        assert run_job(engine, memory, "load", ["good_1"]) == {"good_1": 0}
    assert engine.stats()["paused_stores"] == 1
    assert await_that(
        lambda: run_job(engine, memory, "store", ["new_1", "new_2"]) == {"new_1": 0, "new_2": 0}
    )
    assert run_job(engine, memory, "load", ["new_1", "new_2"]) == {"new_1": 0, "new_2": 0}
    assert memory.is_loaded("new_2")
    engine.close()


@pytest.mark.parametrize("call", ["fstat", "mkdirat", "open", "dup3"])
def test_base_path_removed_and_making_it_again_fails_until_the_fault_is_gone(
    seam: Seam, tmp_path: Path, call: str
) -> None:
    setup = SETUPS[0]
    memory = Memory(setup.chunk_size_bytes)
    base = tmp_path / "namespace"
    engine = start(setup, base, memory)
    assert run_job(engine, memory, "store", ["new_1"]) == {"new_1": 0}
    subprocess.run(["rm", "-r", str(base)], check=True, timeout=30)
    seam.add(Fault(call, 1, FOREVER, error=errno.EIO))
    with seam.active():
        outcomes = run_job(engine, memory, "store", ["new_1", "new_2"])
        assert set(outcomes.values()) <= {errno.EIO, errno.ENOENT}
        assert set(run_job(engine, memory, "load", ["new_1"]).values()) <= {errno.EIO, errno.ENOENT}
    assert {hit.call for hit in seam.hits()} == {call}
    assert run_job(engine, memory, "store", ["new_1", "new_2"]) == {"new_1": 0, "new_2": 0}
    assert run_job(engine, memory, "load", ["new_1", "new_2"]) == {"new_1": 0, "new_2": 0}
    assert memory.is_loaded("new_1")
    engine.close()
