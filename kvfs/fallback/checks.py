"""Argument checks of the Python implementation: the same rules and exceptions as the extension's."""

from __future__ import annotations

import contextlib
import errno
import operator
import os
import sys
import threading
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Final, SupportsIndex, TypeVar

from kvfs.config import CHECKSUMS, INDEX_MODES, IO_ENGINES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Buffer

GROUP_INDEX_BYTES: Final = 4
KEY_SIZE_BYTES_MIN: Final = GROUP_INDEX_BYTES + 1
KEY_SIZE_BYTES_MAX: Final = 255
THREADS_MAX: Final = 1024
MODE_MAX: Final = 0o777

_T = TypeVar("_T")


def type_error(name: str, expected: str, value: object) -> TypeError:
    """Return the exception for an argument of the wrong type."""
    return TypeError(f"{name} must be {expected}, got {type(value).__name__}")


def check_bool(name: str, value: object) -> None:
    """Raise TypeError unless `value` is a bool."""
    if not isinstance(value, bool):
        raise type_error(name, "a bool", value)


def check_int(name: str, value: SupportsIndex) -> int:
    """Return `value` as an int; NumPy's integers are welcome, floats and strings are not.

    Raises:
        TypeError: Not an integer.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise type_error(name, "an integer", value) from None


def check_list(name: str, values: list[_T]) -> list[_T]:
    """Return a copy of `values`, since another thread may change the list while we work through it.

    Raises:
        TypeError: Not a list.
    """
    if not isinstance(values, list):
        raise type_error(name, "a list", values)
    return list(values)


def check_ints(name: str, values: list[int]) -> list[int]:
    """Return the integers of a list.

    Raises:
        TypeError: Not a list, or an element that is no integer; names the index.
    """
    return [check_int(f"{name}[{index}]", value) for index, value in enumerate(check_list(name, values))]


def check_path(name: str, path: str) -> str:
    """Return `path` if the operating system can take it.

    Raises:
        TypeError: Not a str.
        ValueError: It contains NUL, or (UnicodeEncodeError) the encoding has no bytes for it.
    """
    if not isinstance(path, str):
        raise type_error(name, "a str", path)
    os.fsencode(path)
    if "\0" in path:
        raise ValueError(f"{name} has an embedded null character; no file can have that name")
    return path


def check_paths(name: str, paths: list[str]) -> list[str]:
    """Return a copy of a list of paths after checking each one.

    Raises:
        TypeError: Not a list, or an element that is no str.
        ValueError: A path that the operating system cannot take.
    """
    return [check_path(f"{name}[{index}]", path) for index, path in enumerate(check_list(name, paths))]


def check_lengths(**lists: Sequence[object]) -> None:
    """Raise ValueError unless all lists are equally long; the message has their lengths."""
    if len({len(values) for values in lists.values()}) > 1:
        lengths = " and ".join(str(len(values)) for values in lists.values())
        raise ValueError(f"{' and '.join(lists)} must be equally long, got {lengths}")


def flat_view(name: str, buffer: Buffer, *, writable: bool) -> memoryview:
    """Return the bytes of `buffer` as a flat view that the caller releases.

    The view takes its own export of the buffer, even of a memoryview, so that whoever made the
    buffer cannot release it while the view lives.

    Raises:
        TypeError: It has no buffer protocol.
        ValueError: It is not C-contiguous, or read-only although `writable` is asked for.
    """
    try:
        view = memoryview(buffer)
    except TypeError:
        expected = "an object with the buffer protocol (a memoryview, a NumPy array)"
        raise type_error(name, expected, buffer) from None
    with view:
        if not view.c_contiguous:
            raise ValueError(f"{name} must be C-contiguous; copy it into a contiguous buffer first")
        if writable and view.readonly:
            raise ValueError(f"{name} must be writable, because chunks are loaded into it")
        # raw() also flattens formats that memoryview.cast() refuses, such as ctypes' "<B".
        return PickleBuffer(buffer).raw()


@contextlib.contextmanager
def flat_views(name: str, buffers: list[Buffer], *, writable: bool) -> Iterator[list[memoryview]]:
    """Yield a flat view of each buffer of a list and release them all afterwards; see `flat_view`.

    Raises:
        TypeError: Not a list, or an element without the buffer protocol.
        ValueError: An element that cannot be used.
    """
    with contextlib.ExitStack() as stack:
        views = []
        for index, buffer in enumerate(check_list(name, buffers)):
            # Released by hand: an exception keeps frames alive, and the caller may want to close its buffers.
            view = stack.enter_context(flat_view(f"{name}[{index}]", buffer, writable=writable))
            if not len(view):
                raise ValueError(f"{name}[{index}] is empty; a chunk has at least one byte")
            views.append(view)
        yield views


def check_keys(keys: bytes, key_size_bytes: int) -> int:
    """Return how many keys are packed in `keys`.

    Raises:
        TypeError: `keys` is not bytes, or the size not an int.
        ValueError: A size outside 5..255, or a length that is no multiple of it.
    """
    if not isinstance(keys, bytes):
        raise type_error("keys", "bytes", keys)
    size = check_int("key_size_bytes", key_size_bytes)
    if not KEY_SIZE_BYTES_MIN <= size <= KEY_SIZE_BYTES_MAX:
        raise ValueError(
            f"key_size_bytes must be between {KEY_SIZE_BYTES_MIN} and {KEY_SIZE_BYTES_MAX} "
            f"(a hash and {GROUP_INDEX_BYTES} bytes of group index), got {size}"
        )
    count, rest = divmod(len(keys), size)
    if rest:
        raise ValueError(f"keys has {len(keys)} bytes, which is no multiple of key_size_bytes {size}")
    return count


def check_key(key: bytes) -> None:
    """Raise unless `key` can be a key.

    Raises:
        TypeError: Not bytes.
        ValueError: A length outside 5..255.
    """
    if not isinstance(key, bytes):
        raise type_error("key", "bytes", key)
    if not KEY_SIZE_BYTES_MIN <= len(key) <= KEY_SIZE_BYTES_MAX:
        raise ValueError(
            f"key must have between {KEY_SIZE_BYTES_MIN} and {KEY_SIZE_BYTES_MAX} bytes "
            f"(a hash and {GROUP_INDEX_BYTES} bytes of group index), got {len(key)}"
        )


def check_job_id(job_id: int) -> int:
    """Return `job_id` if it is a signed integer of 64 bits, which the extension can echo.

    Raises:
        TypeError: Not an integer.
        ValueError: Too large for 64 bits.
    """
    number = check_int("job_id", job_id)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"job_id must fit 64 bits, got {number}; number the jobs from 0")
    return number


def check_threads(name: str, count: int) -> int:
    """Return `count` if it is a sensible number of threads.

    Raises:
        TypeError: Not an integer.
        ValueError: Outside 1..1024.
    """
    number = check_int(name, count)
    if not 1 <= number <= THREADS_MAX:
        raise ValueError(f"{name} must be between 1 and {THREADS_MAX}, got {number}")
    return number


def check_byte_limit(name: str, size_bytes: int) -> int:
    """Return `size_bytes` if it limits anything.

    Raises:
        TypeError: Not an integer.
        ValueError: Less than 1.
    """
    number = check_int(name, size_bytes)
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {number}")
    return number


def check_optional_limit(name: str, size_bytes: int | None) -> int | None:
    """Return `size_bytes` if it limits anything; None for no limit.

    Raises:
        TypeError: Neither None nor an integer.
        ValueError: Less than 1.
    """
    return None if size_bytes is None else check_byte_limit(name, size_bytes)


def check_timeout(timeout_s: float | None) -> float | None:
    """Return how long to wait, no longer than the system can; None as long as it takes.

    Raises:
        TypeError: Neither None nor a number.
        ValueError: Negative or NaN.
    """
    if timeout_s is None:
        return None
    if not isinstance(timeout_s, int | float):
        raise type_error("timeout_s", "None or a number of seconds", timeout_s)
    if not timeout_s >= 0:
        raise ValueError("timeout_s must be None or a number of seconds from 0")
    return min(timeout_s, threading.TIMEOUT_MAX)


def check_index_mode(index_mode: str) -> None:
    """Raise unless there is such an index mode.

    Raises:
        TypeError: Not a str.
        ValueError: No such mode.
    """
    if not isinstance(index_mode, str):
        raise type_error("index_mode", "a str", index_mode)
    if index_mode not in INDEX_MODES:
        raise ValueError(f"index_mode must be 'auto', 'owner' or 'shared', got {index_mode!r}")


def check_checksum(checksum: str) -> None:
    """Raise unless there is such a way to treat checksums.

    Raises:
        TypeError: Not a str.
        ValueError: No such way.
    """
    if not isinstance(checksum, str):
        raise type_error("checksum", "a str", checksum)
    if checksum not in CHECKSUMS:
        raise ValueError(f"checksum must be one of 'auto', 'require' and 'off', got {checksum!r}")


def check_mode(name: str, mode: int, needed: int) -> int:
    """Return the permission bits of new files or directories if the owner can use them.

    Raises:
        TypeError: Not an integer.
        ValueError: Bits above 0777, or not all of `needed`.
    """
    number = check_int(name, mode)
    if not 0 <= number <= MODE_MAX or number & needed != needed:
        raise ValueError(
            f"{name} must be permission bits from {needed:#o} to {MODE_MAX:#o} with all of the owner's "
            f"{needed:#o}, got {number:#o}"
        )
    return number


def check_seconds(name: str, seconds: float) -> float:
    """Return `seconds` as a float if it is a time that ends.

    Raises:
        TypeError: Not a number; a bool is none.
        ValueError: Negative, infinite or NaN.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise type_error(name, "a number of seconds", seconds)
    # Integers may be larger than any float.
    if not 0 <= seconds <= sys.float_info.max:
        raise ValueError(f"{name} must be a finite number of seconds from 0, got {seconds}")
    return float(seconds)


def check_io_engine(io_engine: str, base_path: str) -> None:
    """Raise unless Python can do what `io_engine` asks for.

    Raises:
        TypeError: Not a str.
        ValueError: No such engine.
        OSError: "uring", which only the extension has.
    """
    if not isinstance(io_engine, str):
        raise type_error("io_engine", "a str", io_engine)
    if io_engine not in IO_ENGINES:
        raise ValueError(f"io_engine must be 'auto', 'uring' or 'psync', got {io_engine!r}")
    if io_engine == "uring":
        raise OSError(
            errno.ENOTSUP, "io_uring needs kvfs's native extension; use 'auto' or 'psync'", base_path
        )
