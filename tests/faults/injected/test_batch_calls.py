"""Level 1, batches over paths: the n-th call fails, the batch stops there, and what came before is whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_cases import spread
from fault_oracle import ERRORS
from fault_run import open_descriptors
from fault_seam import Fault, Seam

import kvfs_ext

SIZE_BYTES = 8192
CHUNKS = [bytes([number]) * SIZE_BYTES for number in (1, 2, 3)]
STORE_CALLS = {"openat_create", "close", "fstatat", "pwrite", "mkdirat", "fchmodat", "renameat2"}
LOAD_CALLS = {"openat", "close", "fstat", "pread"}


def _store(seam: Seam, base: Path) -> OSError | None:
    paths = [base / f"{number}/chunk.bin" for number in range(3)]
    # It takes bits that directories need, so that their modes have to be mended.
    umask = os.umask(0o200)
    try:
        with seam.active():
            kvfs_ext.batch_store(
                [f"{path}_1.tmp" for path in paths], [str(path) for path in paths], list(CHUNKS)
            )
    except OSError as error:
        return error
    finally:
        os.umask(umask)
    return None


def _load(seam: Seam, base: Path) -> tuple[OSError | None, list[bytearray]]:
    buffers = [bytearray(SIZE_BYTES) for _ in CHUNKS]
    try:
        with seam.active():
            kvfs_ext.batch_load([str(base / f"{number}/chunk.bin") for number in range(3)], list(buffers))
    except OSError as error:
        return error, buffers
    return None, buffers


def _stored_wrong(base: Path, error: OSError | None, fault: Fault) -> Iterator[str]:
    """Yield what is wrong after a store."""
    done = len(CHUNKS) if error is None else int(error.__dict__["num_succeeded"])
    if error is not None and error.errno != fault.error:
        yield f"{error!r} instead of errno {fault.error}"
    for number, chunk in enumerate(CHUNKS):
        path = base / f"{number}/chunk.bin"
        if path.exists() and path.read_bytes() != chunk:
            yield f"chunk {number} is not exact"
        if number < done and not path.exists():
            yield f"chunk {number} of {done} is not there"
    if fault.call != "unlinkat":
        yield from (f"{path.name} is left" for path in base.rglob("*.tmp"))


@pytest.mark.parametrize("call", sorted(STORE_CALLS))
def test_batch_store_nth_call_fails_raises_its_errno(
    seam: Seam, memory_dir: Path, tmp_path_factory: pytest.TempPathFactory, is_long: bool, call: str
) -> None:
    base = tmp_path_factory.mktemp("batch")
    seam.reset()
    assert _store(seam, base / "counted") is None
    assert set(seam.counts()) == STORE_CALLS
    numbers = range(1, seam.counts()[call] + 1)
    faults = [Fault(call, first, error=getattr(errno, name)) for first in numbers for name in ERRORS[call]]
    descriptors = open_descriptors()
    raised = 0
    for number, fault in enumerate(spread(faults, is_long)):
        seam.reset()
        seam.add(fault)
        error = _store(seam, base / str(number))
        raised += error is not None
        assert len(seam.hits()) == 1, str(fault)
        assert list(_stored_wrong(base / str(number), error, fault)) == [], str(fault)
    seam.reset()
    assert raised
    assert open_descriptors() == descriptors


@pytest.mark.parametrize("call", sorted(LOAD_CALLS))
def test_batch_load_nth_call_fails_raises_its_errno(
    seam: Seam, tmp_path: Path, is_long: bool, call: str
) -> None:
    seam.reset()
    assert _store(seam, tmp_path) is None
    seam.reset()
    error, buffers = _load(seam, tmp_path)
    assert error is None
    assert [bytes(buffer) for buffer in buffers] == CHUNKS
    assert set(seam.counts()) == LOAD_CALLS
    numbers = range(1, seam.counts()[call] + 1)
    faults = [Fault(call, first, error=getattr(errno, name)) for first in numbers for name in ERRORS[call]]
    for fault in spread(faults, is_long):
        seam.reset()
        seam.add(fault)
        error, buffers = _load(seam, tmp_path)
        assert len(seam.hits()) == 1, str(fault)
        done = len(CHUNKS) if error is None else int(error.__dict__["num_succeeded"])
        assert error is None or error.errno == fault.error
        assert [bytes(buffer) for buffer in buffers[:done]] == CHUNKS[:done]
        # Whatever was said, no chunk that is whole is taken away.
        assert len(list(tmp_path.rglob("*.bin"))) == len(CHUNKS)
    seam.reset()
