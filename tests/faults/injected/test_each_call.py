"""The n-th call of each name fails with each errno, or moves k bytes: each key is absent or exact after it.

What must hold is in fault_run.py: one completion a job, the fault's errno for the key that it hit and for no
other, no temporary, no descriptor and no thread left, and an engine that works again when the fault is gone.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest
from fault_namespace import Setup
from fault_oracle import ERRORS, NAMING, TRANSFERS
from fault_seam import FOREVER, Fault, Seam

if TYPE_CHECKING:
    from tests.faults.injected.conftest import Execute

SETUPS = (
    Setup("psync", "link"),
    Setup("psync", "proc"),
    Setup("psync", "rename"),
    Setup("psync", "link", "shared"),
    Setup("uring", "link"),
    Setup("uring", "rename"),
)
# How often these are called depends on which of the threads is first, so that the last number may hit nothing.
VARYING = frozenset({"mmap", "ring_setup", "ring_register", "ring_enter", "ring_wait", "close", "fcntl_lock"})
# Runs of a call and kind of fault in the short form.
SHORT_FORM_RUNS = 10


CALLS = frozenset(
    """
    open openat openat_create openat_directory close fstat fstatat fstatfs fcntl_dup fcntl_lock flock pwrite read
    mkdirat unlinkat renameat renameat2 getdents64
    """.split()
)
CALLS_OF_PUBLISHING = {
    "link": {"openat_nameless", "linkat"},
    "proc": {"openat_nameless", "linkat_proc"},
    "rename": set[str](),
}
CALLS_OF_MOVING = {
    "psync": {"pread"},
    "uring": {"fallocate", "mmap", "ring_setup", "ring_register", "ring_enter", "ring_wait", "ring_read", "ring_write"},
}
# The owner writes a snapshot, the others lengthen the lock's file.
CALLS_OF_MODE = {"auto": {"write"}, "shared": {"ftruncate"}}


def calls_of(setup: Setup) -> frozenset[str]:
    """Return the names of the calls that the workload makes; a test compares them with what it counts."""
    return CALLS.union(
        CALLS_OF_PUBLISHING[setup.publish], CALLS_OF_MOVING[setup.io_engine], CALLS_OF_MODE[setup.index_mode]
    )


CASES = [pytest.param(setup, call, id=f"{setup}-{call}") for setup in SETUPS for call in sorted(calls_of(setup))]


def spread(faults: Sequence[Fault], is_long: bool) -> Sequence[Fault]:
    """Return all faults, or some from everywhere among them."""
    stride = max(1, len(faults) // SHORT_FORM_RUNS)
    # Faults of one errno come at equal distances; another step meets them all.
    kinds = len({(fault.error, fault.size_bytes) for fault in faults})
    while stride > 1 and math.gcd(stride, kinds) > 1:
        stride += 1
    return faults if is_long else faults[stride // 2 :: stride]


def run_all(execute: Execute, setup: Setup, faults: Sequence[Fault]) -> Iterator[str]:
    """Run each fault alone and yield what was wrong; each must hit at least one call, if it does not vary."""
    hits = 0
    for fault in faults:
        report = execute(setup, [fault])
        what = f"{fault.call} {fault.first} {fault.effect} {errno.errorcode.get(fault.error, '')}{fault.size_bytes}"
        hits += len(report.hits)
        if not report.hits and fault.call not in VARYING:
            yield f"{what}: hit nothing"
        yield from (f"{what}: {wrong}" for wrong in report.wrong)
    if not hits:
        yield "no fault hit anything"


def count(execute: Execute, setup: Setup, call: str) -> int:
    """Return how many calls of that name the workload makes when nothing fails."""
    return execute(setup, []).counts[call]


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_workload_without_faults_makes_the_calls_that_are_tested(
    execute: Execute, seam: Seam, setup: Setup
) -> None:
    report = execute(setup, [])
    assert report.wrong == []
    assert report.temporaries == 0
    assert set(report.counts) == calls_of(setup)
    assert calls_of(setup) <= set(ERRORS) <= set(seam.calls)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("setup", "call"), CASES)
def test_nth_call_fails_each_key_is_absent_or_exact(
    execute: Execute, is_long: bool, setup: Setup, call: str
) -> None:
    numbers = range(1, count(execute, setup, call) + 1)
    faults = [Fault(call, first, error=getattr(errno, name)) for first in numbers for name in ERRORS[call]]
    assert list(run_all(execute, setup, spread(faults, is_long))) == []


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("setup", "call"), CASES)
def test_all_calls_from_the_nth_on_fail_each_key_is_absent_or_exact(
    execute: Execute, is_long: bool, setup: Setup, call: str
) -> None:
    numbers = range(1, count(execute, setup, call) + 1)
    # The ones that a system keeps on saying; it would go on for ever with EINTR.
    errors = [name for name in ("EIO", "ENOSPC", "EMFILE", "EAGAIN") if name in ERRORS[call]]
    faults = [Fault(call, first, FOREVER, error=getattr(errno, name)) for first in numbers for name in errors]
    assert list(run_all(execute, setup, spread(faults, is_long))) == []


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("setup", "call"), [case for case in CASES if case.values[1] in NAMING])
def test_answer_of_the_nth_call_is_lost_each_key_is_absent_or_exact(
    execute: Execute, is_long: bool, setup: Setup, call: str
) -> None:
    numbers = range(1, count(execute, setup, call) + 1)
    faults = [Fault(call, first, effect="late", error=errno.EIO) for first in numbers]
    assert list(run_all(execute, setup, spread(faults, is_long))) == []


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("setup", "call"), [case for case in CASES if case.values[1] in TRANSFERS])
def test_nth_transfer_is_short_each_key_is_absent_or_exact(
    execute: Execute, is_long: bool, setup: Setup, call: str
) -> None:
    sizes_bytes = (0, 1, 512, 4096, setup.chunk_size_bytes - 1)
    faults = [
        Fault(call, first, effect="short", size_bytes=size_bytes)
        for first in range(1, count(execute, setup, call) + 1)
        for size_bytes in sizes_bytes
    ]
    assert list(run_all(execute, setup, spread(faults, is_long))) == []


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("setup", "call"), [case for case in CASES if case.values[1] in TRANSFERS])
def test_all_transfers_are_short_each_key_is_absent_or_exact(
    execute: Execute, setup: Setup, call: str
) -> None:
    faults = [Fault(call, 1, FOREVER, "short", size_bytes=size_bytes) for size_bytes in (0, 1024, 4096)]
    assert list(run_all(execute, setup, faults)) == []
