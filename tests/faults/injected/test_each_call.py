"""The n-th call of each name fails with each errno, or moves k bytes: each key is absent or exact after it.

What must hold is in fault_run.py: one completion a job, the fault's errno for the key that it hit and for no
other, no temporary, no descriptor and no thread left, and an engine that works again when the fault is gone.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest
from fault_cases import SETUPS, VARYING, calls_by_chance, calls_of, spread
from fault_namespace import Setup
from fault_oracle import ERRORS, NAMING, TRANSFERS
from fault_seam import FOREVER, Fault, Seam

if TYPE_CHECKING:
    from tests.faults.injected.conftest import Execute

CASES = [
    pytest.param(setup, call, id=f"{setup}-{call}") for setup in SETUPS for call in sorted(calls_of(setup))
]


def run_all(execute: Execute, setup: Setup, faults: Sequence[Fault]) -> Iterator[str]:
    """Run each fault alone and yield what was wrong; each must hit at least one call, if it does not vary."""
    hits = 0
    for fault in faults:
        report = execute(setup, [fault])
        error = errno.errorcode.get(fault.error, str(fault.size_bytes))
        what = f"{fault.call} {fault.first} {fault.effect} {error}"
        hits += len(report.hits)
        # Files are counted while stores make some.
        varies = fault.call in VARYING or setup.is_limited
        if not report.hits and not varies:
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
    assert set(report.counts) - calls_by_chance(setup) == calls_of(setup)
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
@pytest.mark.parametrize(("setup", "call"), [case for case in CASES if case.values[1] != "ring_wait"])
def test_all_calls_from_the_nth_on_fail_each_key_is_absent_or_exact(
    execute: Execute, is_long: bool, setup: Setup, call: str
) -> None:
    numbers = range(1, count(execute, setup, call) + 1)
    # The ones that a system may keep on saying. EINTR is none, and waiting for a ring has no other.
    lasting = ["EIO", "ENOSPC", "EMFILE", "EAGAIN"]
    errors = [name for name in lasting if name in ERRORS[call]] or ["ENOMEM"]
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
