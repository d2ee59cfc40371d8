"""The namespace on which calls fail: what lies there before, and what may lie there after."""

from __future__ import annotations

import errno
import mmap
import os
import random
import shutil
import stat
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from polling import await_that

import kvfs_ext

OWN_FILES: Final = ("kvfs.lock", "kvfs.index", "kvfs.space")
# What a namespace of an earlier run has, partly damaged since; what is new; what is nowhere.
WHOLE: Final = ("good_1", "good_2", "duplicate")
DAMAGED: Final = ("cut", "long", "wrong", "tall")
STRANGE: Final = ("directory", "link")
NEW: Final = ("new_1", "new_2", "last", "extra")
NOWHERE: Final = ("missing", "missing_2")
NAMES: Final = (*WHOLE, *DAMAGED, *STRANGE, *NEW, *NOWHERE)
POISON: Final = 0xA5
_CAPACITY_BYTES: Final = 1 << 40
_DRAIN_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True)
class Setup:
    """How the engine moves bytes and publishes files, and with what place in the namespace.

    Attributes:
        io_engine: "psync" or "uring".
        publish: "link" (by descriptor), "proc" (the same through /proc) or "rename" (a temporary).
        is_limited: Whether the engine has a capacity, far above what it stores: space is counted and leased.
        index_mode: "auto", where it is the owner unless a fault hinders it, or "shared".
    """

    io_engine: str
    publish: str
    index_mode: str = "auto"
    is_limited: bool = False

    def __str__(self) -> str:
        """Return the id of a test."""
        return f"{self.io_engine}-{self.publish}-{self.index_mode}{'-limited' if self.is_limited else ''}"

    @property
    def chunk_size_bytes(self) -> int:
        """Large enough that the ring moves stores, too; otherwise small."""
        return 256 << 10 if self.io_engine == "uring" else 8 << 10

    @property
    def lacking(self) -> dict[str, int]:
        """What the file system lacks, so that files are published in that way."""
        return {
            "link": {},
            "proc": {"linkat": errno.ENOENT},
            "rename": {"openat_nameless": errno.EOPNOTSUPP},
        }[self.publish]


def key_of(name: str) -> bytes:
    """Return a key whose first-level directory no other name has."""
    return bytes([NAMES.index(name) + 1]) + random.Random(name).randbytes(31) + bytes(4)


@cache
def content_of(name: str, size_bytes: int) -> bytes:
    """Return the one content that the key's chunk may have."""
    return random.Random(f"content of {name}").randbytes(size_bytes)


def path_of(base: Path, name: str) -> Path:
    """Return where the key's chunk lies."""
    digits = key_of(name)[:-4].hex()
    return base / digits[:3] / f"{digits[3:5]}_g0" / f"{digits}.bin"


def name_at(base: Path, path: Path) -> str | None:
    """Return the name whose directories the path is in or is one of."""
    if not path.is_relative_to(base) or path == base:
        return None
    first = path.relative_to(base).parts[0]
    return next((name for name in NAMES if key_of(name).hex()[:3] == first), None)


def outcome_of(base: Path, name: str, size_bytes: int) -> int:
    """Return the errno that a load or a lookup of the key should have, by what lies there."""
    try:
        status = path_of(base, name).lstat()
    except FileNotFoundError:
        return errno.ENOENT
    if stat.S_ISDIR(status.st_mode):
        return errno.EISDIR
    if stat.S_ISLNK(status.st_mode):
        return errno.ELOOP
    return 0 if status.st_size == size_bytes else errno.EBADMSG


class Memory:
    """A primary tier with a row for each name to store from, and another one to load into."""

    def __init__(self, size_bytes: int) -> None:
        """Fill the rows to store from."""
        self.size_bytes = size_bytes
        count = 2 * len(NAMES)
        self._memory = mmap.mmap(-1, count * size_bytes)
        self.view = memoryview(self._memory).cast("B", (count, size_bytes))
        for name in NAMES:
            start = self.store_row(name) * size_bytes
            self._memory[start : start + size_bytes] = content_of(name, size_bytes)

    @staticmethod
    def store_row(name: str) -> int:
        """Return the row that is stored under the key."""
        return NAMES.index(name)

    @staticmethod
    def load_row(name: str) -> int:
        """Return the row that the key is loaded into."""
        return len(NAMES) + NAMES.index(name)

    def poison(self) -> None:
        """Make the rows to load into no chunk's content."""
        half = len(NAMES) * self.size_bytes
        self._memory[half:] = bytes([POISON]) * half

    def is_loaded(self, name: str) -> bool:
        """Say whether the row holds the key's chunk, exactly."""
        start = self.load_row(name) * self.size_bytes
        return self._memory[start : start + self.size_bytes] == content_of(name, self.size_bytes)


def start(setup: Setup, base: Path, memory: Memory) -> kvfs_ext.Engine:
    """Start an engine with a thread of each kind."""
    return kvfs_ext.Engine(
        str(base),
        memory.view,
        1,
        1,
        io_engine=setup.io_engine,
        index_mode=setup.index_mode,
        negative_ttl_s=0.0,
        dir_mode=0o770,
        capacity_bytes=_CAPACITY_BYTES if setup.is_limited else None,
    )


def make_template(setup: Setup, base: Path, memory: Memory) -> None:
    """Make a namespace with a snapshot, and damage it behind the engine's back."""
    engine = start(Setup(setup.io_engine, setup.publish), base, memory)
    names = (*WHOLE, *DAMAGED)
    engine.submit_store(
        0, b"".join(key_of(name) for name in names), 36, [memory.store_row(name) for name in names]
    )
    assert engine.drain(_DRAIN_TIMEOUT_S)
    # Without a scan that came to its end there is no snapshot.
    assert await_that(lambda: engine.stats()["scan_complete"] == 1)
    assert [completion.outcomes for completion in engine.poll()] == [[0] * len(names)]
    engine.close()
    assert (base / "kvfs.index").is_file()
    for name, size_bytes in {"cut": 100, "wrong": 10}.items():
        os.truncate(path_of(base, name), size_bytes)
    for name in ("long", "tall"):
        os.truncate(path_of(base, name), setup.chunk_size_bytes + 512)
    path_of(base, "directory").mkdir(parents=True)
    path_of(base, "link").parent.mkdir(parents=True)
    path_of(base, "link").symlink_to("nowhere")


def copy_template(template: Path, base: Path) -> None:
    """Copy a namespace, times included: the snapshot is valid for them."""
    shutil.copytree(template, base, symlinks=True)


def wrong_files(setup: Setup, base: Path) -> list[str]:
    """Return what must never lie in the namespace: chunks that are not exact, files that nobody made."""
    wrong = []
    known = {path_of(base, name): name for name in NAMES}
    for path in base.rglob("*"):
        if path.is_dir() or path.is_symlink() or path.name in OWN_FILES or path.suffix == ".tmp":
            continue
        name = known.get(path)
        if name is None:
            wrong.append(f"{path.name} is no chunk's file")
        elif path.stat().st_size == setup.chunk_size_bytes:
            if path.read_bytes() != content_of(name, setup.chunk_size_bytes):
                wrong.append(f"{name} has the right size and wrong bytes")
        elif name not in DAMAGED:
            wrong.append(f"{name} has {path.stat().st_size} bytes")
    return wrong


def temporaries(base: Path) -> list[Path]:
    """Return the temporaries that were left behind."""
    return [path for path in base.rglob("*") if path.suffix == ".tmp"]
