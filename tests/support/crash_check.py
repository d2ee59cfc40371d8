"""What must hold on disk while processes are killed there: whole chunks, within the promise, no orphans."""

from __future__ import annotations

import errno
import functools
import mmap
import os
import re
import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crash_workload import KEY_SIZE_BYTES, ROWS, Spec, content_of, key_of, path_of
from polling import await_that
from seal_parts import CHECKSUM, KEY

from kvfs.fallback.crc32c import checksum as crc32c
from kvfs.jobs import HIT, MISS, EngineLike

# docs/capacity.md: <path>_kvfs<16 digits of the writer's number><pid><count>.tmp
_TEMPORARY: Final = re.compile(r"_kvfs[0-9a-f]{16}([0-9a-f]{8})[0-9a-f]{8}\.tmp$")
_FIRST_LEVEL: Final = re.compile(r"[0-9a-f]{3}$")
_LEAF: Final = re.compile(r"[0-9a-f]{0,2}_g[0-9]+$")
_OWN_FILES: Final = frozenset({"config.json", "kvfs.json", "kvfs.lock", "kvfs.space"})
_SPACE_MAGIC: Final = b"KVFSSPC1"
_SPACE_SLOTS: Final = 1024
_BLOCK_BYTES: Final = 4096


@dataclass(frozen=True)
class Physical:
    """What lies below a root, in bytes of blocks.

    Attributes:
        total_bytes: All of it.
        slack_bytes: The part that docs/capacity.md lets come on top: directories of the first level. And
            snapshots, which whoever closes writes past the promise; the next count has them.
        temporary_bytes: The part in temporaries.
        promised_bytes: What the promise has on top: a chunk counts as whole blocks of 4 KiB at least, and a
            directory of chunks as one.
        own_bytes: The engines' own small files, which may have come after the count.
    """

    total_bytes: int
    slack_bytes: int
    temporary_bytes: int
    promised_bytes: int
    own_bytes: int

    @property
    def bound_bytes(self) -> int:
        """What the capacity bounds."""
        return self.total_bytes - self.slack_bytes


def _entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    # An engine that starts may remove directories meanwhile.
    try:
        found = list(os.scandir(directory))
    except FileNotFoundError:
        return
    for entry in found:
        yield entry
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(Path(entry.path))


def physical(root: Path, more_bytes: int = 0) -> Physical:
    """Add up the blocks of a tree in which nothing moves, with its root, and `more_bytes` without a name."""
    total = root.stat().st_blocks * 512 + more_bytes
    slack = temporaries = promised = own = 0
    linked: set[int] = set()
    for entry in _entries(root):
        status = entry.stat(follow_symlinks=False)
        size = status.st_blocks * 512
        is_file = stat.S_ISREG(status.st_mode)
        if is_file and status.st_nlink > 1:
            # A temporary and its final name, between the link and the end of the first: one file.
            if status.st_ino in linked:
                continue
            linked.add(status.st_ino)
        total += size
        is_directory = entry.is_dir(follow_symlinks=False)
        if (is_directory and _FIRST_LEVEL.match(entry.name)) or entry.name.startswith("kvfs.index"):
            slack += size
        elif entry.name.endswith(".tmp"):
            temporaries += size
        elif entry.name in _OWN_FILES:
            own += size
        elif entry.name.endswith(".bin"):
            promised += max(0, -(-status.st_size // _BLOCK_BYTES) * _BLOCK_BYTES - size)
        elif is_directory and _LEAF.match(entry.name):
            promised += max(0, _BLOCK_BYTES - size)
    return Physical(total, slack, temporaries, promised, own)


@dataclass(frozen=True)
class Promise:
    """What `kvfs.space` says: bytes of nobody, and of each process that has a slot."""

    unowned_bytes: int
    slots: Sequence[int]

    @property
    def total_bytes(self) -> int:
        """All that is promised away."""
        return self.unowned_bytes + sum(self.slots)


def promise(root: Path) -> Promise | None:
    """Return what is promised below a root; None while it is being counted."""
    try:
        data = (root / "kvfs.space").read_bytes()
    except FileNotFoundError:
        return None
    if len(data) != 24 + 8 * _SPACE_SLOTS:
        return None
    magic, counted, unowned, *slots = struct.unpack(f"<8sQq{_SPACE_SLOTS}q", data)
    return Promise(unowned, slots) if magic == _SPACE_MAGIC and counted in (1, 2) else None


def temporaries(base: Path) -> dict[Path, int]:
    """Return each kvfs's temporary of a namespace, and the process that its name has."""
    found: dict[Path, int] = {}
    # Whoever was to make it was killed before.
    for entry in _entries(base) if base.exists() else ():
        if match := _TEMPORARY.search(entry.name):
            found[Path(entry.path)] = int(match[1], 16)
    return found


@functools.lru_cache(maxsize=4096)
def _expected(key: bytes, size_bytes: int) -> tuple[bytes, bytes]:
    content = content_of(key, size_bytes)
    return content, crc32c(memoryview(content)).to_bytes(4, "big")


def wrong_files(base: Path, spec: Spec) -> list[str]:
    """Return a sentence on every published file that is not exactly its key's chunk, with its seal."""
    by_path = {path_of(key): key for key in map(key_of, range(spec.keys))}
    problems = []
    for entry in _entries(base):
        if not entry.name.endswith(".bin"):
            continue
        key = by_path.get(os.path.relpath(entry.path, base))
        if key is None:
            problems.append(f"{entry.path} is no key's")
            continue
        content, checksum = _expected(key, spec.chunk_size_bytes)
        data = Path(entry.path).read_bytes()
        if data != content:
            problems.append(f"{entry.path}: {len(data)} bytes, not those of {key.hex()}")
        seal = {name: os.getxattr(entry.path, name) for name in os.listxattr(entry.path)}
        if seal.get(CHECKSUM) != checksum or seal.get(KEY) != key[-28:]:
            problems.append(f"{entry.path}: its seal is {seal}")
    return problems


def check_lone_start(spec: Spec, shown: Path) -> int:
    """Start an engine where all others are dead, and check what the contracts say of it.

    Args:
        spec: The namespace.
        shown: Where the root is looked at.

    Returns:
        How many temporaries it has reclaimed.
    """
    base = shown / os.path.relpath(spec.base, spec.root)
    before = physical(shown)
    left = temporaries(base)
    flat = memoryview(mmap.mmap(-1, ROWS * spec.chunk_size_bytes))
    engine = spec.engine(flat.cast("B", (ROWS, spec.chunk_size_bytes)))
    try:
        assert engine.stats()["owner"] == (spec.index_mode != "shared"), "the dead still hold the namespace"
        assert await_that(lambda: engine.stats()["scan_complete"] == 1), engine.stats()
        if spec.capacity_bytes is not None:
            reclaimed = engine.stats()["reclaimed_temporaries"]
            assert temporaries(base) == {}, "temporaries are left after the next start"
            assert reclaimed == len(left), (reclaimed, left)
            _check_room(engine, spec, shown, before)
        _check_hits(engine, spec, base, flat)
    finally:
        engine.close()
    return len(left) if spec.capacity_bytes is not None else 0


def _check_room(engine: EngineLike, spec: Spec, shown: Path, before: Physical) -> None:
    capacity = spec.capacity_bytes or 0
    # Evicting makes room, of which it keeps so much.
    leases = 2 * max((-(-spec.chunk_size_bytes // _BLOCK_BYTES) + 1) * _BLOCK_BYTES, capacity // 256)

    def settled() -> bool:
        """Tell whether all is counted, and evicting has brought it below 95 %."""
        stats = engine.stats()
        return stats["space_counted"] == 1 and stats["used_bytes"] <= capacity - capacity // 20

    assert await_that(settled), engine.stats()

    def agrees() -> bool:
        """Tell whether what is promised is what lies there, or a little more."""
        try:
            now = physical(shown)
        except FileNotFoundError:
            # It is still evicting.
            return False
        more = engine.stats()["used_bytes"] - now.total_bytes - now.promised_bytes
        return 0 <= more <= before.temporary_bytes + leases

    assert await_that(agrees), (engine.stats(), physical(shown), before)
    assert await_that(lambda: promise(shown) is not None)
    said = promise(shown)
    assert said is not None
    assert sum(1 for slot in said.slots if slot != 0) <= 1, "slots of the dead are still theirs"


def _check_hits(engine: EngineLike, spec: Spec, base: Path, flat: memoryview) -> None:
    """Check that each key is a hit if its file is there, with exactly its bytes, and a miss if not."""
    keys = [key_of(number) for number in range(spec.keys)]
    present = [key for key in keys if (base / path_of(key)).exists()]
    verdicts = {key: engine.lookup(key) for key in keys}
    assert [key for key in keys if verdicts[key] == HIT] == present
    if engine.stats()["owner"] == 1:
        assert {verdicts[key] for key in keys} <= {HIT, MISS}
    size = spec.chunk_size_bytes
    for first in range(0, len(present), ROWS):
        wanted = present[first : first + ROWS]
        flat[:] = bytes(len(flat))
        engine.submit_load(first, b"".join(wanted), KEY_SIZE_BYTES, list(range(len(wanted))))
        assert engine.drain(60.0)
        (done,) = engine.poll()
        assert list(done.outcomes) == [0] * len(wanted), [errno.errorcode.get(c, c) for c in done.outcomes]
        for row, key in enumerate(wanted):
            assert flat[row * size : (row + 1) * size] == content_of(key, size), f"wrong bytes of {key.hex()}"
