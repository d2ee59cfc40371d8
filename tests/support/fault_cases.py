"""Which runs of the workload the tests of injected faults make."""

from __future__ import annotations

import errno
import math
import random
from collections.abc import Mapping, Sequence
from typing import Final

from fault_namespace import Setup
from fault_oracle import ERRORS, NAMING, TRANSFERS
from fault_seam import Fault

SETUPS: Final = (
    Setup("psync", "link"),
    Setup("psync", "proc"),
    Setup("psync", "rename"),
    Setup("psync", "link", "shared"),
    Setup("uring", "link"),
    Setup("uring", "rename"),
    Setup("psync", "link", is_limited=True),
)
# How often these are called depends on which thread is first, so that the last number may hit nothing.
VARYING: Final = frozenset(
    {"mmap", "ring_setup", "ring_register", "ring_enter", "ring_wait", "close", "fcntl_lock"}
)
# Runs of a call and kind of fault in the short form.
SHORT_FORM_RUNS: Final = 8


_CALLS: Final = frozenset(
    {
        "open",
        "openat",
        "openat_create",
        "openat_directory",
        "openat_path",
        "close",
        "fstat",
        "fstatat",
        "fstatfs",
        "fcntl_dup",
        "fchmodat",
        "fgetxattr",
        "fsetxattr",
        "fcntl_lock",
        "flock",
        "pwrite",
        "read",
        "mkdirat",
        "unlinkat",
        "renameat",
        "renameat2",
        "getdents64",
    }
)
_CALLS_OF_PUBLISHING: Final = {
    "link": {"openat_nameless", "linkat"},
    "proc": {"openat_nameless", "linkat_proc"},
    "rename": set[str](),
}
_CALLS_OF_MOVING: Final = {
    "psync": {"pread"},
    "uring": {
        "fallocate",
        "mmap",
        "ring_setup",
        "ring_register",
        "ring_enter",
        "ring_wait",
        "ring_read",
        "ring_write",
    },
}
# The owner writes a snapshot, the others lengthen the lock's file.
_CALLS_OF_MODE: Final = {"auto": {"write"}, "shared": {"ftruncate"}}


def calls_of(setup: Setup) -> frozenset[str]:
    """Return the names of the calls that the workload makes; a test compares them with what it counts."""
    return _CALLS.union(
        _CALLS_OF_PUBLISHING[setup.publish],
        _CALLS_OF_MOVING[setup.io_engine],
        _CALLS_OF_MODE[setup.index_mode],
        {"fstatvfs"} if setup.is_limited else (),
    )


def calls_by_chance(setup: Setup) -> frozenset[str]:
    """Return the names of the calls that it makes now and then."""
    # Where room is counted, a scan has directories removed that it finds empty: a store may have made one
    # just now, and not filled it yet.
    return frozenset({"rmdir"} if setup.is_limited else ())


def spread(faults: Sequence[Fault], is_long: bool) -> Sequence[Fault]:
    """Return all faults, or some from everywhere among them."""
    stride = max(1, len(faults) // SHORT_FORM_RUNS)
    # Faults of one errno come at equal distances; another step meets them all.
    kinds = len({(fault.error, fault.size_bytes) for fault in faults})
    while stride > 1 and math.gcd(stride, kinds) > 1:
        stride += 1
    return faults if is_long else faults[stride // 2 :: stride]


def random_faults(seed: int, setup: Setup, counts: Mapping[str, int]) -> list[Fault]:
    """Return some faults at once, of every kind that the calls of a setup know; the seed alone decides."""
    generator = random.Random(seed)
    calls = sorted(calls_of(setup))
    faults = []
    for _ in range(generator.randint(2, 6)):
        call = generator.choice(calls)
        effects = ["fail", *(["late"] if call in NAMING else []), *(["short"] if call in TRANSFERS else [])]
        faults.append(
            Fault(
                call,
                generator.randint(1, counts.get(call, 1)),
                generator.randint(1, 3),
                generator.choice(effects),
                getattr(errno, generator.choice(ERRORS[call])),
                generator.choice((0, 1, 512, 4096)),
            )
        )
    return faults
