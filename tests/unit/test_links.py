"""Symbolic links inside a namespace: none is followed, in any component, nothing behind one is touched."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvfs.jobs import HIT, MISS

if TYPE_CHECKING:
    from tests.unit.conftest import Rig, StartRig

TARGETS = ["outside", "inside", "dangling", "itself"]


def _tree(*directories: Path) -> list[tuple[str, int, int, str | bytes]]:
    """Return everything below directories: names, inodes, modes, contents."""
    found = []
    for directory in directories:
        for path in sorted(directory.rglob("*")):
            status = path.lstat()
            content: str | bytes = b""
            if path.is_symlink():
                content = str(path.readlink())
            elif path.is_file():
                content = path.read_bytes()
            found.append((str(path), status.st_ino, status.st_mode, content))
    return found


def _put_link(rig: Rig, key: bytes, level: str, target: str, elsewhere: Path, chunk: bytes) -> Path:
    """Put a link on the way to a key, its chunk behind it unless that leads nowhere; return the link."""
    path = rig.path(key)
    link = {"first": path.parent.parent, "second": path.parent, "file": path}[level]
    link.parent.mkdir(parents=True, exist_ok=True)
    if target == "itself":
        link.symlink_to(link.name)
        return link
    behind = (rig.base if target == "inside" else elsewhere) / "behind"
    if target != "dangling":
        hidden = behind / path.relative_to(link)
        hidden.parent.mkdir(parents=True, exist_ok=True)
        hidden.write_bytes(chunk)
    link.symlink_to(behind)
    return link


@pytest.fixture
def namespace(storage: Path) -> Path:
    """Return a namespace's place with room beside it."""
    base = storage / "ns"
    base.mkdir()
    (storage / "elsewhere").mkdir()
    return base


@pytest.mark.parametrize("io_engine", ["auto", "psync"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("level", ["first", "second"])
@pytest.mark.parametrize("chunk_size_bytes", [4096, 262_144])
def test_linked_directory_fails_loads_and_stores_and_hides_what_is_behind(
    start_rig: StartRig, namespace: Path, level: str, target: str, io_engine: str, chunk_size_bytes: int
) -> None:
    elsewhere = namespace.parent / "elsewhere"
    rig = start_rig(namespace, io_engine=io_engine, chunk_size_bytes=chunk_size_bytes, index_mode="shared")
    chunk = rig.tier.fill(0, seed=1)
    _put_link(rig, rig.key(1), level, target, elsewhere, chunk)
    before = _tree(namespace, elsewhere)
    assert rig.load([rig.key(1)], [1]).outcomes == [errno.ELOOP]
    assert rig.lookup([rig.key(1)]).outcomes[0] in (errno.ELOOP, errno.ENOENT)
    completion = rig.store([rig.key(1)], [0])
    assert (completion.outcomes, completion.bytes_moved) == ([errno.ELOOP], 0)
    assert rig.path(rig.key(1)).name[:10] in completion.detail
    rig.ask([rig.key(1)])
    assert rig.engine.lookup(rig.key(1)) == MISS
    assert _tree(namespace, elsewhere) == before


@pytest.mark.parametrize("target", TARGETS)
def test_linked_file_is_not_followed_and_a_store_replaces_the_link(
    start_rig: StartRig, namespace: Path, target: str
) -> None:
    elsewhere = namespace.parent / "elsewhere"
    rig = start_rig(namespace, index_mode="shared")
    chunk = rig.tier.fill(0, seed=1)
    link = _put_link(rig, rig.key(1), "file", target, elsewhere, bytes(len(chunk)))
    before = _tree(namespace, elsewhere)
    assert rig.load([rig.key(1)], [1]).outcomes == [errno.ELOOP]
    assert rig.lookup([rig.key(1)]).outcomes == [errno.ELOOP]
    rig.ask([rig.key(1)])
    assert rig.engine.lookup(rig.key(1)) == MISS
    assert _tree(namespace, elsewhere) == before
    assert rig.store([rig.key(1)], [0]).outcomes == [0]
    assert rig.engine.stats()["healed_files"] == 1
    assert not link.is_symlink()
    assert link.read_bytes() == chunk
    behind = (namespace if target == "inside" else elsewhere) / "behind"
    assert behind.exists() == (target in ("outside", "inside"))
    if behind.exists():
        assert behind.read_bytes() == bytes(len(chunk))


@pytest.mark.parametrize("level", ["first", "second", "file"])
@pytest.mark.parametrize("target", ["outside", "inside"])
def test_scan_passes_links_over(start_rig: StartRig, namespace: Path, level: str, target: str) -> None:
    elsewhere = namespace.parent / "elsewhere"
    # Only to say where things lie.
    rig = start_rig(namespace)
    chunk = rig.tier.fill(0, seed=1)
    _put_link(rig, rig.key(1), level, target, elsewhere, chunk)
    rig.store([rig.key(2)], [0])
    rig.engine.close()
    scanned = start_rig(namespace)
    assert scanned.await_stats(scan_complete=1)
    assert scanned.engine.stats()["index_keys"] == 1
    assert scanned.verdicts([rig.key(1), rig.key(2)]) == [MISS, HIT]


def test_truncated_chunk_behind_a_linked_directory_is_not_removed(
    start_rig: StartRig, namespace: Path
) -> None:
    elsewhere = namespace.parent / "elsewhere"
    rig = start_rig(namespace)
    _put_link(rig, rig.key(1), "first", "outside", elsewhere, b"short")
    before = _tree(elsewhere)
    assert rig.load([rig.key(1)], [1]).outcomes == [errno.ELOOP]
    assert _tree(elsewhere) == before
    assert rig.engine.stats()["removed_files"] == 0


@pytest.mark.parametrize("io_engine", ["auto", "psync"])
@pytest.mark.parametrize("level", ["first", "second"])
def test_directory_that_becomes_a_link_is_no_longer_followed(
    start_rig: StartRig, namespace: Path, level: str, io_engine: str
) -> None:
    elsewhere = namespace.parent / "elsewhere"
    rig = start_rig(namespace, io_engine=io_engine)
    keys = [rig.key(1), rig.key(2)]
    chunk = rig.tier.fill(0, seed=1)
    # Stored and loaded before, so that whatever is kept open or known about the directory is.
    assert rig.store(keys, [0, 0]).outcomes == [0, 0]
    assert rig.load(keys, [1, 2]).outcomes == [0, 0]
    path = rig.path(keys[0])
    directory = path.parent if level == "second" else path.parent.parent
    moved = elsewhere / "moved"
    directory.rename(moved)
    directory.symlink_to(moved)
    before = _tree(elsewhere)
    assert rig.load(keys, [1, 2]).outcomes == [errno.ELOOP, 0]
    assert rig.store(keys, [0, 0]).outcomes == [errno.ELOOP, 0]
    assert _tree(elsewhere) == before
    directory.unlink()
    assert rig.store(keys, [0, 0]).outcomes == [0, 0]
    assert path.read_bytes() == chunk
    assert rig.load(keys, [1, 2]).outcomes == [0, 0]


@pytest.mark.parametrize("where", ["base", "parent"])
def test_namespace_itself_may_lie_behind_a_link(start_rig: StartRig, storage: Path, where: str) -> None:
    real = storage / "real"
    (real / "ns").mkdir(parents=True)
    link = storage / "link"
    if where == "base":
        link.symlink_to(real / "ns")
        base = link
    else:
        link.symlink_to(real)
        base = link / "ns"
    rig = start_rig(base)
    chunk = rig.tier.fill(0, seed=1)
    assert rig.store([rig.key(1)], [0]).outcomes == [0]
    assert rig.lookup([rig.key(1)]).outcomes == [0]
    assert rig.load([rig.key(1)], [1]).outcomes == [0]
    assert rig.tier.row(1) == chunk
    assert (real / "ns" / rig.path(rig.key(1)).relative_to(base)).read_bytes() == chunk
    rig.engine.close()
    again = start_rig(base)
    assert again.await_stats(scan_complete=1)
    assert again.engine.stats()["scanned_files"] == 1
    assert again.engine.lookup(rig.key(1)) == HIT
    assert link.is_symlink()
