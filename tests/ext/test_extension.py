"""The native extension imported directly: what vLLM's reviewers asked for, and what it is made of."""

from __future__ import annotations

import importlib.machinery
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import kvfs_ext


def test_module_is_a_binary_for_this_interpreter() -> None:
    name = Path(kvfs_ext.__file__).name
    assert name.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))
    # One binary serves every interpreter from 3.12 on.
    assert ("abi3" in name) == (sys.version_info >= (3, 12))


@pytest.mark.uninstrumented
def test_module_links_no_torch_and_no_libpython() -> None:
    needed = subprocess.run(
        ["readelf", "-d", kvfs_ext.__file__], capture_output=True, text=True, timeout=30, check=True
    ).stdout
    libraries = [line.split("[")[1].rstrip("]") for line in needed.splitlines() if "(NEEDED)" in line]
    assert libraries
    assert {library.split(".so")[0] for library in libraries} <= {
        "libc",
        "libgcc_s",
        "libm",
        "libpthread",
        "libstdc++",
        "ld-linux-x86-64",
        "ld-linux-aarch64",
    }


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        pytest.param([], [], id="empty"),
        pytest.param([True], [True], id="one-present"),
        pytest.param([False], [False], id="one-missing"),
        pytest.param([True, False, True, True, False], [True, False, True, True, False], id="mixed"),
    ],
)
def test_batch_lookup_answers_in_order(tmp_path: Path, present: list[bool], expected: list[bool]) -> None:
    paths = [tmp_path / f"{i}.bin" for i in range(len(present))]
    for path, exists in zip(paths, present, strict=True):
        if exists:
            path.write_bytes(b"x")
    assert kvfs_ext.batch_lookup([str(path) for path in paths]) == expected


@pytest.mark.parametrize("element", [b"bytes", None, 3, Path("path")], ids=lambda value: type(value).__name__)
def test_batch_lookup_of_non_string_raises_type_error(element: object) -> None:
    with pytest.raises(TypeError, match=rf"paths\[1\] must be a str, got {type(element).__name__}"):
        kvfs_ext.batch_lookup(["good", element])  # type: ignore[list-item]


@pytest.mark.parametrize("paths", [("a",), None, iter(["a"]), "a"], ids=["tuple", "none", "iterator", "str"])
def test_batch_lookup_of_anything_but_a_list_raises_type_error(paths: object) -> None:
    with pytest.raises(TypeError, match="paths must be a list"):
        kvfs_ext.batch_lookup(paths)  # type: ignore[arg-type]


def test_every_public_function_has_a_docstring_with_its_errors() -> None:
    for name in ("batch_lookup", "batch_store", "batch_load", "copy_pages"):
        text = getattr(kvfs_ext, name).__doc__
        assert "Raises:" in text, name
        assert "Blocks" in text, name


def test_batch_releases_the_gil(tmp_path: Path) -> None:
    # A second Python thread ticks while one call stores: with the GIL held it could not tick at all.
    ticks = 0
    stop = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            time.sleep(0)

    chunk = bytes(1 << 20)
    count = 100
    destinations = [str(tmp_path / f"{i}.bin") for i in range(count)]
    thread = threading.Thread(target=tick)
    thread.start()
    try:
        before = ticks
        kvfs_ext.batch_store([f"{path}.tmp" for path in destinations], destinations, [chunk] * count)
        during = ticks - before
    finally:
        stop.set()
        thread.join()
    # Without a release the other thread gets in twice at most, at the edges of the call.
    assert during > 10


def test_engine_threads_are_native_and_named(tmp_path: Path) -> None:
    before = threading.active_count()
    buffer = memoryview(bytearray(2 * 4096)).cast("B", (2, 4096))
    engine = kvfs_ext.Engine(str(tmp_path / "ns"), buffer, 3, 2)
    names = sorted(_name_of(task).strip() for task in Path("/proc/self/task").iterdir())
    assert [name for name in names if name.startswith("kvfs-io")] == [f"kvfs-io-{i}" for i in range(5)]
    assert threading.active_count() == before
    engine.close()


def test_engine_threads_give_way_to_others_and_keep_the_nice_value(tmp_path: Path) -> None:
    buffer = memoryview(bytearray(2 * 4096)).cast("B", (2, 4096))
    engine = kvfs_ext.Engine(str(tmp_path / "ns"), buffer, 2, 1)
    deadline = time.monotonic() + 30
    policies: list[int] = []
    # The scan's thread ends when it likes.
    tasks = [task for task in Path("/proc/self/task").iterdir() if _name_of(task).startswith("kvfs-io")]
    while policies != [os.SCHED_BATCH] * 3:
        assert time.monotonic() < deadline, policies
        policies = [os.sched_getscheduler(int(task.name)) for task in tasks]
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert [os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in tasks] == [own] * 3
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    engine.close()


def _name_of(task: Path) -> str:
    try:
        return (task / "comm").read_text()
    except OSError:
        return ""


@pytest.mark.uninstrumented
def test_engine_after_fork_refuses_and_its_child_ends(tmp_path: Path) -> None:
    # A child has a copy of the engine and none of its threads: waiting for them would never end.
    program = f"""
import os, kvfs_ext
buffer = memoryview(bytearray(2 * 4096)).cast("B", (2, 4096))
engine = kvfs_ext.Engine({str(tmp_path / "ns")!r}, buffer, 2, 2)
child = os.fork()
if child == 0:
    try:
        engine.submit_lookup(1, bytes(36), 36)
    except RuntimeError as error:
        print(error, flush=True)
    engine.close()
    del engine
    raise SystemExit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
engine.submit_lookup(2, bytes(36), 36)
assert engine.drain(10.0)
print(len(engine.poll()), flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "this engine belongs to the process that was forked; make a new one in this process",
        "1",
    ]


def test_interpreter_ends_with_an_engine_left_open(tmp_path: Path) -> None:
    program = f"""
import kvfs_ext
buffer = memoryview(bytearray(64 * 4096)).cast("B", (64, 4096))
engine = kvfs_ext.Engine({str(tmp_path / "ns")!r}, buffer, 2, 2)
keys = b"".join(i.to_bytes(32, "big") + bytes(4) for i in range(64))
engine.submit_store(1, keys, 36, list(range(64)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert not list((tmp_path / "ns").rglob("*.tmp"))
