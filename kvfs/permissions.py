"""Who may read and write what kvfs makes: exact modes whatever the umask is, and what others can replace."""

# Descriptors, flags and modes: the system's own calls.
# ruff: noqa: PTH101, PTH116, PTH120

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import Final

# KV bytes are users' prompts: nobody but the owner reads them, unless the owner says so.
FILE_MODE: Final = 0o600
DIR_MODE: Final = 0o700

# Opens a directory to enter it, not to list it, and never a link to one.
ENTER_FLAGS: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
# What file systems without modes, and servers that keep theirs, say to a change.
_NO_MODES: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS})


def make_directory(
    name: str, mode: int, parent: int | None = None, on_made: Callable[[], None] = lambda: None
) -> None:
    """Make one directory that has exactly the mode, whatever the umask is. Blocks.

    Args:
        name: Its path, or its name in `parent`.
        mode: The permission bits.
        parent: An open directory, or None.
        on_made: Called as soon as it is there, whatever comes of its mode.

    Raises:
        OSError: It cannot be made; FileExistsError if something lies there.
    """
    os.mkdir(name, mode, dir_fd=parent)
    on_made()
    fd = os.open(name, ENTER_FLAGS, dir_fd=parent)
    try:
        found = stat.S_IMODE(os.fstat(fd).st_mode)
        if found & 0o777 != mode:
            # Not by name, where a link may lie by now; and a descriptor like this one takes no fchmod().
            with _keeping_what_has_no_modes():
                os.chmod(f"/proc/self/fd/{fd}", mode | found & ~0o777)
    finally:
        os.close(fd)


def set_file_mode(fd: int, mode: int) -> None:
    """Give a file that was just made exactly the mode, whatever the umask was. Blocks.

    Raises:
        OSError: The mode cannot be changed, on a file system that has modes.
    """
    if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
        with _keeping_what_has_no_modes():
            os.fchmod(fd, mode)


@contextlib.contextmanager
def _keeping_what_has_no_modes() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_MODES:
            raise


def writable_by_others(root_dir: str, base_path: str) -> str | None:
    """Return the first directory from `root_dir` down to `base_path` in which others may replace things.

    Others are the group and everybody; a sticky directory keeps them from each other's files. Blocks. What
    cannot be looked at is passed over.
    """
    root = os.path.normpath(root_dir)
    paths = [os.path.normpath(base_path)]
    while paths[-1] != root and os.path.dirname(paths[-1]) not in ("", paths[-1]):
        paths.append(os.path.dirname(paths[-1]))
    for path in reversed(paths):
        with contextlib.suppress(OSError):
            mode = os.stat(path).st_mode
            if mode & _WRITABLE_BY_OTHERS and not mode & stat.S_ISVTX:
                return path
    return None
