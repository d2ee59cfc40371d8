"""An engine in processes of its own: forked, left open at exit, short of threads, fed with hostile lists."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SETUP = """
import errno, os, resource, sys, time, warnings
from kvfs import backend

# Python 3.12 warns of every fork with threads; that such a fork does no harm is what is tested.
warnings.simplefilter("ignore", DeprecationWarning)
io = backend.load()
base = sys.argv[1]
memory = bytearray(4 * 4096)
buffer = memoryview(memory).cast("B", (4, 4096))


def raises(error, call, *arguments):
    try:
        call(*arguments)
    except error as caught:
        return caught
    raise AssertionError(f"{call} did not raise {error}")
"""
FORKED = """
engine = io.Engine(base, buffer, 2, 2, False)
engine.submit_store(1, bytes(36), 36, [0])
child = os.fork()
if child == 0:
    for call in (engine.poll, engine.drain, engine.stats):
        assert "fork" in str(raises(RuntimeError, call))
    assert "fork" in str(raises(RuntimeError, engine.submit_lookup, 2, bytes(36), 36))
    for call in (engine.lookup, engine.probe):
        assert "fork" in str(raises(RuntimeError, call, bytes(36)))
    for call in (engine.lookup_prefix, engine.touch):
        assert "fork" in str(raises(RuntimeError, call, bytes(36), 36))
    assert "fork" in str(raises(RuntimeError, engine.submit_probes))
    engine.close()
    # One of its own works, on the memory that it shares by copy.
    own = io.Engine(base, memoryview(bytearray(4096)).cast("B", (1, 4096)), 1, 1, False)
    own.submit_store(3, b"x" * 36, 36, [0])
    assert own.drain(30)
    own.close()
    assert [done.outcomes for done in own.poll()] == [[0]]
    # The ordinary way out, with all that runs at exit.
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert engine.drain(30)
engine.submit_lookup(4, bytes(36) + b"x" * 36, 36)
assert engine.drain(30)
assert sorted((done.job_id, done.outcomes) for done in engine.poll()) == [(1, [0]), (4, [0, 0])]
engine.close()
buffer.release()
"""
LEFT_OPEN = """
engine = io.Engine(base, buffer, 2, 2, False)
engine.submit_store(1, bytes(36 * 200), 36, [0] * 200)
"""
FEW_THREADS = """
def address_space():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


# Room for the stacks of some threads, not of all.
stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
stack = 8 << 20 if stack == resource.RLIM_INFINITY else stack
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (address_space() + 20 * stack, before[1]))
assert raises(OSError, io.Engine, base, buffer, 500, 500, False).errno == errno.EAGAIN
resource.setrlimit(resource.RLIMIT_AS, before)
# The failed one holds nothing: its threads are gone, and so is its hold on the buffer.
deadline = time.monotonic() + 30
while len(os.listdir("/proc/self/task")) > 1:
    assert time.monotonic() < deadline
engine = io.Engine(base, buffer, 2, 2, False)
engine.submit_store(1, bytes(36), 36, [0])
assert engine.drain(30)
engine.close()
assert [done.outcomes for done in engine.poll()] == [[0]]
buffer.release()
memory.append(0)
"""
SHRINKING_LIST = """
class Shrinks:
    def __init__(self, values):
        self.values = values

    def __index__(self):
        self.values.clear()
        return 0


engine = io.Engine(base, buffer, 1, 1, False)
for count in (1, 2, 100, 10_000):
    ids = []
    ids.extend(Shrinks(ids) for _ in range(count))
    try:
        engine.submit_load(count, bytes(36 * count), 36, ids)
    except (TypeError, ValueError):
        pass
    offsets = []
    offsets.extend(Shrinks(offsets) for _ in range(count))
    try:
        io.copy_pages(memory, memory, offsets, [0] * count, 16)
    except (TypeError, ValueError):
        pass
assert engine.drain(30)
engine.close()
print("survived")
"""


def _run(script: str, tmp_path: Path) -> str:
    base = tmp_path / "namespace"
    result = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", SETUP + script, str(base)],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.uninstrumented
def test_engine_in_a_forked_child_raises_and_the_parents_goes_on(tmp_path: Path) -> None:
    _run(FORKED, tmp_path)


def test_engine_left_open_at_exit_ends_with_the_process(tmp_path: Path) -> None:
    _run(LEFT_OPEN, tmp_path)
    assert list(tmp_path.rglob("*.tmp")) == []


@pytest.mark.uninstrumented
def test_engine_with_too_few_threads_to_be_had_raises_oserror_and_holds_nothing(tmp_path: Path) -> None:
    _run(FEW_THREADS, tmp_path)


def test_list_that_shrinks_while_it_is_read_crashes_nothing(tmp_path: Path) -> None:
    assert _run(SHRINKING_LIST, tmp_path) == "survived\n"
