"""What an injected fault must do to the key that it hit, by docs/engine.md."""

from __future__ import annotations

import errno
from enum import Enum
from typing import Final

from fault_seam import Fault, Hit

_RING: Final = frozenset({"ring_read", "ring_write"})
_CREATING: Final = frozenset({"openat_create", "openat_nameless"})
TRANSFERS: Final = frozenset({"pread", "pwrite", "read", "write", *_RING})
# Calls that take or give a name: their answer can get lost after they were carried out.
NAMING: Final = (
    "openat_create",
    "linkat",
    "linkat_proc",
    "renameat",
    "renameat2",
    "unlinkat",
    "mkdirat",
    "close",
)

_OPENING: Final = ("EIO", "EACCES", "EMFILE", "ENFILE", "ENOMEM", "EINTR", "EINVAL", "ESTALE", "ENOENT")
_SPACE: Final = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EACCES", "ENOMEM", "EINTR", "ESTALE", "ENOENT")
_LOOKING: Final = ("EIO", "EACCES", "ENOMEM", "EINTR", "ESTALE", "ENOENT")
_LOCKING: Final = ("EIO", "EINTR", "ENOLCK", "EAGAIN", "EACCES", "EINVAL")
_MOVING: Final = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "ENOMEM", "EINTR", "EINVAL", "EAGAIN", "ESTALE")
ERRORS: Final = {
    "open": _OPENING,
    "openat": (*_OPENING, "ELOOP"),
    "openat_create": (*_OPENING, "ENOSPC", "EDQUOT", "EROFS"),
    "openat_nameless": (*_OPENING, "ENOSPC", "EDQUOT", "EROFS", "EOPNOTSUPP"),
    "openat_directory": _OPENING,
    "openat_path": ("EIO", "EACCES", "EMFILE", "ENFILE", "ENOMEM", "EINTR", "ESTALE"),
    "close": ("EIO", "ENOSPC", "EDQUOT", "EINTR", "ESTALE"),
    "fstat": ("EIO", "ENOMEM", "EINTR", "ESTALE"),
    "fstatat": _LOOKING,
    "fstatfs": ("EIO", "ENOSYS", "EINTR", "ESTALE"),
    "fstatvfs": ("EIO", "ENOSYS", "EINTR", "ESTALE"),
    "fcntl_dup": ("EMFILE", "EINVAL"),
    "fcntl_flags": ("EINVAL", "EIO"),
    "fcntl_lock": _LOCKING,
    "dup3": ("EMFILE", "EINTR", "EBUSY"),
    "flock": (*_LOCKING, "EWOULDBLOCK"),
    "ftruncate": (*_SPACE, "EINVAL"),
    "fallocate": ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EINTR", "EINVAL", "ENOSYS", "EOPNOTSUPP", "ESTALE"),
    "fchmod": ("EIO", "EPERM", "EROFS", "EINTR"),
    "fchmodat": ("EIO", "EPERM", "EROFS", "EINTR"),
    "pread": _MOVING,
    "pwrite": _MOVING,
    "read": _MOVING,
    "write": _MOVING,
    "fgetxattr": ("EIO", "ENODATA", "EOPNOTSUPP", "ENOMEM", "EINTR", "EACCES"),
    "fsetxattr": ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EOPNOTSUPP", "EINTR", "EPERM"),
    "mkdirat": (*_SPACE, "EMLINK"),
    "linkat": (*_SPACE, "EEXIST", "EMLINK"),
    "linkat_proc": (*_SPACE, "EEXIST", "EMLINK"),
    "unlinkat": ("EIO", "EROFS", "EACCES", "EBUSY", "EINTR", "ESTALE"),
    "renameat": _SPACE,
    "renameat2": (*_SPACE, "EINVAL", "ENOSYS", "EEXIST"),
    "getdents64": ("EIO", "ENOMEM", "EINTR", "ESTALE", "ENOENT"),
    "mmap": ("ENOMEM", "EAGAIN"),
    "ring_setup": ("ENOMEM", "EMFILE", "ENFILE", "EINVAL", "EPERM", "ENOSYS"),
    "ring_register": ("ENOMEM", "EINVAL", "EOPNOTSUPP", "EBUSY"),
    "ring_enter": ("EAGAIN", "EBUSY", "EINTR", "ENOMEM"),
    "ring_wait": ("EINTR",),
    "ring_read": _MOVING,
    "ring_write": _MOVING,
}


class Effect(Enum):
    """What becomes of a key whose call was hit."""

    NONE = "as if nothing had been"
    FAILS = "fails with the fault's errno"
    EITHER = "one or the other"


def error_of(fault: Fault, kind: str) -> int:
    """Return the errno that a job of a kind should report where the fault makes it fail."""
    if fault.effect != "short":
        return fault.error
    # A file that ends too early is no chunk, and a device that takes nothing is broken.
    return errno.EBADMSG if kind == "load" else errno.EIO


def effect_on(kind: str, hit: Hit, fault: Fault) -> Effect:
    """Say what becomes of a key when a call about its file is hit while a job of that kind runs."""
    if fault.effect == "short":
        return Effect.NONE if fault.size_bytes else Effect.FAILS
    if fault.effect == "delay":
        return Effect.NONE
    if hit.call == "fcntl_flags":
        return Effect.EITHER
    late = fault.effect == "late"
    decided = {"store": _on_store, "load": _on_load, "lookup": _on_lookup}[kind](hit, fault.error)
    return Effect.EITHER if late and decided is Effect.FAILS else decided


def _on_transfer(call: str, error: int) -> Effect:
    if error == errno.EINTR or (error == errno.EAGAIN and call in _RING):
        return Effect.NONE
    # Where the file was opened for direct transfers, the operation goes on buffered.
    return Effect.EITHER if error == errno.EINVAL else Effect.FAILS


def _on_store(hit: Hit, error: int) -> Effect:
    call = hit.call
    if call in TRANSFERS:
        return _on_transfer(call, error)
    harmless: dict[str, frozenset[int]] = {
        "fstatat": frozenset({errno.ENOENT}),
        **dict.fromkeys(_CREATING, frozenset({errno.EINTR})),
        "fallocate": frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EINTR}),
        "fsetxattr": frozenset({errno.EOPNOTSUPP}),
        # Some file systems keep their modes.
        "fchmodat": frozenset({errno.EPERM}),
        "renameat2": frozenset({errno.EINVAL, errno.ENOSYS, errno.EEXIST}),
    }
    # Whether there is a link on the way is asked beside the rest, and nothing but a link is an answer.
    if call in {"unlinkat", "openat_path"} or error in harmless.get(call, ()):
        return Effect.NONE
    if call == "close":
        # A temporary is published after that. A file without a name is not: where there are such files,
        # closing them has nothing to report. Others were open to be looked at.
        fails = hit.path.suffix == ".tmp" and error != errno.EINTR
        return Effect.FAILS if fails else Effect.NONE
    doubtful = {
        # The first time its directories are made, and the second time that did not help.
        **dict.fromkeys(_CREATING, frozenset({errno.EINVAL, errno.ENOENT})),
        "mkdirat": frozenset({errno.ENOENT}),
        # Its directory is made again.
        "linkat": frozenset({errno.EEXIST, errno.ENOENT}),
        "linkat_proc": frozenset({errno.EEXIST, errno.ENOENT}),
    }
    return Effect.EITHER if error in doubtful.get(call, ()) else Effect.FAILS


def _on_load(hit: Hit, error: int) -> Effect:
    call = hit.call
    if call in TRANSFERS:
        return _on_transfer(call, error)
    # Those that remove what was found truncated.
    if call in {"fstatat", "unlinkat", "close", "renameat2"}:
        return Effect.NONE
    # Without a seal a chunk is served unverified.
    harmless = {"openat": {errno.EINTR}, "fgetxattr": {errno.ENODATA, errno.EOPNOTSUPP}}
    if error in harmless.get(call, ()):
        return Effect.NONE
    return Effect.EITHER if call == "openat" and error == errno.EINVAL else Effect.FAILS


def _on_lookup(hit: Hit, _error: int) -> Effect:
    return Effect.FAILS if hit.call == "fstatat" else Effect.NONE
