"""Directories of runs: made fresh, emptied after the run, and removed at the end, whatever happens.

ext4 without a journal does not give a deleted inode to a new file or directory for one minute, for six where
the deletion is not written yet; until then each creation looks at all of them again, and is seen to take 30
times its usual CPU time. A benchmark that removes what it stored would measure that. So there files are
emptied after a run, and their names stay until the session ends.
"""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from harness import storage

_JOURNALS: Final = Path("/proc/fs/jbd2")
# With fewer inodes left than this, names are removed after all.
_FREE_INODES_MIN: Final = 100_000
_TRIED_DIRECTORIES: Final = 64
_REMOVING_THREADS: Final = 16
# Below a session's directory: a run's, its namespace, and the first digits of hashes.
_PARTS: Final = "*/*/*"


@contextlib.contextmanager
def own_directory(parent: Path, prefix: str = "kvfs-micro") -> Iterator[Path]:
    """Make a directory in `parent`, which is made if it is missing, and remove it with all that is in it.

    When the end is a SIGKILL, the next one of that prefix there removes it.

    Raises:
        OSError: It cannot be made or removed.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for leftover in parent.glob(f"{prefix}-*-*"):
        owner = leftover.name.removeprefix(f"{prefix}-").partition("-")[0]
        if owner.isdecimal() and not Path("/proc", owner).exists():
            shutil.rmtree(leftover, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix=f"{prefix}-{os.getpid()}-", dir=parent))
    try:
        yield directory
    finally:
        _remove(directory)


@contextlib.contextmanager
def run_directory(parent: Path) -> Iterator[Path]:
    """Make a run's directory in `parent`; after it, nothing but names is left of it.

    Raises:
        OSError: It cannot be made or emptied.
    """
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
    try:
        yield directory
    finally:
        retire(directory)


def retire(directory: Path) -> None:
    """Free the data in a directory; the directory goes, too, where that does no harm.

    Raises:
        OSError: It cannot be emptied.
    """
    if keeps_names(directory):
        empty(path for path in directory.rglob("*") if path.is_file())
    else:
        _remove(directory)


def _remove(directory: Path) -> None:
    """Remove a tree, several parts at once: a disk is told of each piece that it need not keep."""
    with ThreadPoolExecutor(_REMOVING_THREADS) as pool:
        # Taking the results raises what a thread raised.
        list(pool.map(shutil.rmtree, (path for path in directory.glob(_PARTS) if path.is_dir())))
    shutil.rmtree(directory)


def empty(files: Iterable[Path]) -> None:
    """Cut files to nothing, several at once."""
    with ThreadPoolExecutor(_REMOVING_THREADS) as pool:
        list(pool.map(_empty, files))


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def keeps_names(directory: Path) -> bool:
    """Say whether names that are removed from this file system make the next creations slow."""
    if storage.mount_of(directory).filesystem != "ext4":
        return False
    number = directory.stat().st_dev
    device = Path("/sys/dev/block", f"{os.major(number)}:{os.minor(number)}").resolve().name
    has_journal = any(_JOURNALS.glob(f"{device}-*"))
    return not has_journal and os.statvfs(directory).f_favail > _FREE_INODES_MIN


def mkdir_cpu_us(parent: Path, name: str) -> float:
    """Return the CPU time that making a directory takes now: what a creation's cost can be compared with.

    Args:
        parent: Where to try it.
        name: A name that is not taken there.
    """
    root = parent / name
    root.mkdir()
    paths = [root / str(number) for number in range(_TRIED_DIRECTORIES)]
    started = time.thread_time()
    for path in paths:
        path.mkdir()
    used_s = time.thread_time() - started
    retire(root)
    return used_s / len(paths) * 1e6
