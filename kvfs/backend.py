"""The choice between the native extension and the pure-Python engine, made once a process."""

from __future__ import annotations

import functools
import logging
import os
from typing import Final

from kvfs.jobs import IoBackend

DISABLE_VARIABLE: Final = "KVFS_DISABLE_EXT"

_logger = logging.getLogger("kvfs")


def load() -> IoBackend:
    """Return the module that does the I/O: `kvfs_ext`, or `kvfs.fallback` without it.

    The first call chooses and logs the choice; later ones return the same module.
    """
    return _choose()[0]


def describe() -> tuple[str, str]:
    """Return which implementation is active, "extension" or "fallback", and a sentence that says why."""
    _, name, reason = _choose()
    return name, reason


@functools.cache
def _choose() -> tuple[IoBackend, str, str]:
    value = os.environ.get(DISABLE_VARIABLE, "")
    if value not in ("", "0"):
        return _fall_back(f"{DISABLE_VARIABLE}={value} is set: unset it to use the native extension")
    try:
        import kvfs_ext  # noqa: PLC0415 - its absence is one of the two answers
    except ImportError as error:
        return _fall_back(
            f"the native extension cannot be imported ({error}): reinstall kvfs from a wheel that contains it"
        )
    reason = f"kvfs runs on its native extension, imported from {kvfs_ext.__file__}"
    _logger.info(reason)
    return kvfs_ext, "extension", reason


def _fall_back(cause: str) -> tuple[IoBackend, str, str]:
    from kvfs import fallback  # noqa: PLC0415 - most processes never need it

    reason = f"kvfs runs on its pure-Python engine, which is slower, because {cause}"
    _logger.warning(reason)
    return fallback, "fallback", reason
