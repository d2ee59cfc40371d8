"""A namespace that somebody removes or replaces while the engine runs, as people and cleaners do."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.conftest import StartRig

ROWS = 32

pytestmark = pytest.mark.parametrize("io_engine", ["auto", "psync"])


@pytest.mark.parametrize("removed", ["ns", "parent"])
def test_base_path_removed_is_made_again_by_the_next_store(
    start_rig: StartRig, storage: Path, io_engine: str, removed: str
) -> None:
    base = storage / "parent" / "ns"
    rig = start_rig(base, num_chunks=4, io_engine=io_engine)
    keys = [rig.key(number) for number in range(3)]
    assert rig.store(keys[:2], [0, 1]).outcomes == [0, 0]
    # More than once, since what was made again may be removed again.
    for seed in range(3):
        shutil.rmtree(base if removed == "ns" else base.parent)
        assert rig.lookup(keys).outcomes == [errno.ENOENT] * 3
        assert rig.load(keys, [0, 1, 2]).outcomes == [errno.ENOENT] * 3
        chunk = rig.tier.fill(0, seed=seed)
        assert rig.store(keys[1:], [0, 0]).outcomes == [0, 0]
        assert base.stat().st_mode & 0o777 == 0o700
        assert rig.path(keys[1]).read_bytes() == chunk
        assert rig.lookup(keys).outcomes == [errno.ENOENT, 0, 0]
        assert rig.load(keys[1:], [2, 3]).outcomes == [0, 0]
        assert rig.tier.row(2) == rig.tier.row(3) == chunk


@pytest.mark.parametrize("first", ["store", "load", "lookup"])
def test_base_path_made_again_by_somebody_else_is_found(
    start_rig: StartRig, storage: Path, io_engine: str, first: str
) -> None:
    base = storage / "ns"
    rig = start_rig(base, io_engine=io_engine)
    keys = [rig.key(1), rig.key(2)]
    assert rig.store(keys, [0, 1]).outcomes == [0, 0]
    shutil.rmtree(base)
    chunk = rig.tier.fill(0, seed=7)
    rig.path(keys[0]).parent.mkdir(parents=True)
    rig.path(keys[0]).write_bytes(chunk)
    # Whatever comes first finds it.
    if first == "store":
        completion = rig.store(keys, [0, 0])
        assert completion.outcomes == [0, 0]
        assert completion.bytes_moved == len(chunk)
    elif first == "load":
        assert rig.load(keys, [2, 3]).outcomes == [0, errno.ENOENT]
    assert rig.lookup(keys).outcomes == [0, 0 if first == "store" else errno.ENOENT]
    assert rig.load(keys[:1], [3]).outcomes == [0]
    assert rig.tier.row(3) == chunk


@pytest.mark.parametrize("what", ["load", "store"])
def test_base_path_made_again_by_somebody_else_is_found_by_all_threads(
    start_rig: StartRig, storage: Path, io_engine: str, what: str
) -> None:
    # One thread opened the new one while another had just looked into the old, and that one gave up.
    base = storage / "ns"
    rig = start_rig(base, num_chunks=ROWS, threads=(8, 8), io_engine=io_engine)
    keys = [rig.key(number) for number in range(ROWS)]
    for _ in range(40):
        shutil.rmtree(base)
        for key in keys if what == "load" else keys[:1]:
            rig.path(key).parent.mkdir(parents=True, exist_ok=True)
            rig.path(key).write_bytes(bytes(rig.tier.chunk_size_bytes))
        run = rig.load if what == "load" else rig.store
        assert run(keys, list(range(ROWS))).outcomes == [0] * ROWS
