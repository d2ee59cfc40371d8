"""Faults that fall together: one after the other on the same chunk, at random, and on a real disk."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from fault_cases import SETUPS, calls_of, random_faults, spread
from fault_namespace import Setup
from fault_oracle import ERRORS, TRANSFERS
from fault_seam import Fault

if TYPE_CHECKING:
    from tests.faults.injected.conftest import Execute

PSYNC = Setup("psync", "link")
BULK = {"psync": ("pread", "pwrite"), "uring": ("ring_read", "ring_write")}
BULK_CASES = [
    pytest.param(setup, call, id=f"{setup}-{call}")
    for setup in SETUPS
    for call in BULK[setup.io_engine]
    if not setup.is_limited
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_random_faults_each_key_is_absent_or_exact(execute: Execute, is_long: bool, setup: Setup) -> None:
    counts = execute(setup, []).counts
    for seed in range(500 if is_long else 25):
        faults = random_faults(seed, setup, counts)
        report = execute(setup, faults, is_judged=False)
        assert report.wrong == [], f"seed {seed}: {faults}"


@pytest.mark.parametrize("call", BULK["psync"])
def test_direct_transfer_is_short_and_its_rest_refused_goes_on_buffered(execute: Execute, call: str) -> None:
    # After a short transfer the rest lies at an odd place, which a device refuses to move past its cache.
    for first in range(1, execute(PSYNC, []).counts[call] + 1):
        short = Fault(call, first, effect="short", size_bytes=512)
        report = execute(PSYNC, [short, Fault(call, first + 1, error=errno.EINVAL)])
        assert report.wrong == []
        assert len(report.hits) == 2


@pytest.mark.parametrize(("setup", "call"), BULK_CASES)
def test_leaving_direct_transfers_fails_is_the_keys_failure(
    execute: Execute, setup: Setup, call: str
) -> None:
    # The first one is not a chunk's: a snapshot's mark, or the probe of the ring.
    for first in range(2, execute(setup, []).counts[call] + 1):
        refused = Fault(call, first, error=errno.EINVAL)
        for number in (1, 2):
            report = execute(setup, [refused, Fault("fcntl_flags", number, error=errno.EIO)])
            assert report.wrong == []
            assert [hit.call for hit in report.hits] == [call, "fcntl_flags"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_faults_on_a_disk_each_key_is_absent_or_exact(
    execute_on_disk: Execute, is_long: bool, setup: Setup
) -> None:
    counts = execute_on_disk(setup, []).counts
    faults = [
        Fault(call, (counts[call] + 1) // 2, error=getattr(errno, name))
        for call in sorted(calls_of(setup))
        for name in ERRORS[call]
    ]
    sizes_bytes = (0, 1, 512, 4096, 5000)
    shorts = [
        Fault(call, first, effect="short", size_bytes=size_bytes)
        for call in sorted(TRANSFERS & calls_of(setup))
        for first in range(1, counts[call] + 1)
        for size_bytes in sizes_bytes
    ]
    for fault in [*spread(faults, is_long), *spread(shorts, is_long)]:
        assert execute_on_disk(setup, [fault]).wrong == [], str(fault)
