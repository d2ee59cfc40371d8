"""The way to a chunk's directory, on which no symbolic link is followed below the namespace's own."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable

from kvfs.paths import make_directories
from kvfs.permissions import ENTER_FLAGS, make_directory


def open_directory(
    base_path: str,
    first: str,
    second: str,
    make_mode: int | None,
    on_made: Callable[[], None] = lambda: None,
) -> int:
    """Return a descriptor of `<base_path>/<first>/<second>`, only good for naming files in it. Blocks.

    Links in `base_path` itself are followed: those are the operator's. Each level below is opened from the
    one above it, so that nobody can put a link there in between.

    Args:
        base_path: The namespace's directory.
        first: The directory's name in it.
        second: The name in that.
        make_mode: With which mode missing directories are made, `base_path` included; None makes none.
        on_made: Called when the last one was made.

    Raises:
        OSError: ELOOP for a link, ENOTDIR for any other thing that is no directory, or what the system said.
    """
    # With one call, since O_NOFOLLOW is about the last component alone.
    name = f"{base_path}/{first}"
    try:
        parent = _enter(name, None, make_mode)
    except FileNotFoundError:
        if make_mode is None:
            raise
        make_directories(base_path, make_mode)
        parent = _enter(name, None, make_mode)
    try:
        return _enter(second, parent, make_mode, on_made)
    finally:
        os.close(parent)


def _enter(
    name: str, parent: int | None, make_mode: int | None, on_made: Callable[[], None] = lambda: None
) -> int:
    try:
        return os.open(name, ENTER_FLAGS, dir_fd=parent)
    except FileNotFoundError:
        if make_mode is None:
            raise
    except NotADirectoryError:
        _refuse_link(name, parent)
        raise
    with contextlib.suppress(FileExistsError):
        make_directory(name, make_mode, parent, on_made)
    return _enter(name, parent, None)


def _refuse_link(name: str, parent: int | None) -> None:
    """Say ELOOP of a link: of what is no directory the kernel says ENOTDIR first."""
    try:
        is_link = stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except OSError:
        return
    if is_link:
        raise OSError(errno.ELOOP, f"{name} is a symbolic link, and none is followed in a namespace")
