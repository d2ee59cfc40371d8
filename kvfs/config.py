"""The tier's options: the names that vLLM's own `fs` tier takes, checked before anything starts."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
from collections.abc import Mapping
from typing import Final

from kvfs.permissions import DIR_MODE, FILE_MODE
from kvfs.sizes import BYTES_MAX, parse_size

N_THREADS_MAX: Final = 1024
IO_ENGINES: Final = ("auto", "uring", "psync")
INDEX_MODES: Final = ("auto", "owner", "shared")
CHECKSUMS: Final = ("auto", "require", "off")
_MODE_MAX: Final = 0o777
# Zeros in front, or Python's own mark.
_OCTAL: Final = re.compile("(?:0o|0*)([0-7]{3})")


@dataclasses.dataclass(frozen=True, slots=True)
class TierConfig:
    """Options of one tier, valid once constructed.

    Attributes:
        root_dir: Directory that holds the namespaces; made if it is missing.
        n_read_threads: Threads of the engine, together with `n_write_threads`; each does what is most urgent.
        n_write_threads: More threads; three in four of all may store at once.
        enable_kv_events: Emit a stored event for each store job that succeeds, and removed events for what
            is evicted.
        locality: Where the directory lies as seen from vLLM, a name of its `Locality`, or None.
        use_o_direct: Try to bypass the page cache.
        io_engine: How chunks are loaded: "uring" (io_uring), "psync" (plain reads), or "auto", which asks a
            probe in the directory at start.
        max_inflight_read_bytes: Loads that may be in flight at once; one chunk always may.
        max_inflight_write_bytes: The same for stores; an eighth of it while loads wait or run.
        max_queued_store_bytes: Stores that may wait for the disk; what comes on top is shed and
            counted. None is half the primary tier: a store that waits keeps its chunk there from being
            replaced.
        index_mode: Whether others store in the same namespace: "shared" if so, "owner" if not (refused while
            somebody does), "auto" for what a lock says on a local disk and "shared" elsewhere. vLLM's own
            `fs` tier takes no lock: beside one it has to be "shared".
        negative_ttl_s: How long, in seconds, a shared tier believes that a chunk is absent.
        checksum: What chunks carry and loads verify: "auto" for checksums where the file system has extended
            attributes, "require" for no chunk without one, "off" for none. In a configuration also vLLM's
            proposed `checksum_blocks`: true is "auto", false is "off".
        file_mode: Mode of new files. In a configuration a string of octal digits.
        dir_mode: Mode of new directories, written in the same way.
        capacity_bytes: What all files below `root_dir` may take on disk; chunks are evicted before it is
            reached. None is no limit. In a configuration also text such as "200GiB", and `max_bytes`,
            vLLM's proposed name of it.
        min_free_bytes: What is to be left free on that file system, written in the same way; or None.

    Raises:
        TypeError: An option of the wrong type.
        ValueError: An option with a wrong value.
    """

    root_dir: str
    n_read_threads: int = 16
    n_write_threads: int = 16
    enable_kv_events: bool = False
    locality: str | None = None
    use_o_direct: bool = True
    io_engine: str = "auto"
    max_inflight_read_bytes: int = 64 << 20
    max_inflight_write_bytes: int = 16 << 20
    max_queued_store_bytes: int | None = None
    index_mode: str = "auto"
    negative_ttl_s: float = 1.0
    checksum: str = "auto"
    file_mode: int = FILE_MODE
    dir_mode: int = DIR_MODE
    capacity_bytes: int | None = None
    min_free_bytes: int | None = None

    def __post_init__(self) -> None:
        """Check each option."""
        self._check_root_dir()
        for name in ("n_read_threads", "n_write_threads"):
            self._check_number(name, "an integer", N_THREADS_MAX)
        for name in ("max_inflight_read_bytes", "max_inflight_write_bytes"):
            self._check_number(name, "a number of bytes")
        for name in ("max_queued_store_bytes", "capacity_bytes", "min_free_bytes"):
            if getattr(self, name) is not None:
                most = None if name == "max_queued_store_bytes" else BYTES_MAX
                self._check_number(name, "a number of bytes", most)
        for name in ("enable_kv_events", "use_o_direct"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(_wrong(name, "true or false", getattr(self, name)))
        if self.locality is not None and not isinstance(self.locality, str):
            raise TypeError(_wrong("locality", "a string or null", self.locality))
        choices_by_name = {"io_engine": IO_ENGINES, "index_mode": INDEX_MODES, "checksum": CHECKSUMS}
        for name, choices in choices_by_name.items():
            if getattr(self, name) not in choices:
                raise ValueError(_wrong(name, f"one of {', '.join(choices)}", getattr(self, name)))
        self._check_seconds("negative_ttl_s")
        self._check_mode("file_mode", FILE_MODE)
        self._check_mode("dir_mode", DIR_MODE)

    def _check_root_dir(self) -> None:
        if not isinstance(self.root_dir, str | os.PathLike):
            raise TypeError(_wrong("root_dir", "a path", self.root_dir))
        root_dir = os.fspath(self.root_dir)
        if not root_dir or "\0" in root_dir:
            raise ValueError(_wrong("root_dir", "the path of a directory, without null characters", root_dir))
        object.__setattr__(self, "root_dir", root_dir)

    def _check_number(self, name: str, what: str, most: int | None = None) -> None:
        number = getattr(self, name)
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(_wrong(name, what, number))
        if number < 1 or (most is not None and number > most):
            raise ValueError(_wrong(name, f"between 1 and {most}" if most else "at least 1", number))

    def _check_seconds(self, name: str) -> None:
        seconds = getattr(self, name)
        if not isinstance(seconds, int | float) or isinstance(seconds, bool):
            raise TypeError(_wrong(name, "a number of seconds", seconds))
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(_wrong(name, "a finite number of seconds from 0", seconds))

    def _check_mode(self, name: str, needed: int) -> None:
        mode = getattr(self, name)
        if not isinstance(mode, int) or isinstance(mode, bool):
            raise TypeError(_wrong(name, "permission bits", mode))
        if not 0 <= mode <= _MODE_MAX or mode & needed != needed:
            expected = f"at most 0{_MODE_MAX:o}, with all of the owner's bits 0{needed:o}"
            raise ValueError(f"kvfs option {name!r} must be {expected}, got 0{mode:o}")

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> TierConfig:
        """Build a config from the keys of a tier's configuration.

        Raises:
            TypeError: An option of the wrong type.
            ValueError: An unknown option, a missing `root_dir`, or a wrong value.
        """
        known = [*(field.name for field in dataclasses.fields(cls)), "checksum_blocks", "max_bytes"]
        for name in options:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known options: {', '.join(known)}"
                raise ValueError(f"kvfs has no option {name!r}; {hint}")
        if "root_dir" not in options:
            raise ValueError("kvfs needs the option 'root_dir': the directory that holds the chunks")
        given = dict(options)
        _resolve_checksum(given)
        for name in {"file_mode", "dir_mode"} & given.keys():
            given[name] = _mode(name, given[name])
        _resolve_limits(given)
        return cls(**given)  # type: ignore[arg-type]  # __post_init__ checks each type


def _resolve_checksum(options: dict[str, object]) -> None:
    """Put vLLM's switch for checksums into kvfs's own option."""
    if "checksum_blocks" not in options:
        return
    blocks = options.pop("checksum_blocks")
    if not isinstance(blocks, bool):
        raise TypeError(_wrong("checksum_blocks", "true or false", blocks))
    checksum = options.setdefault("checksum", "auto" if blocks else "off")
    if checksum in CHECKSUMS and blocks == (checksum == "off"):
        raise ValueError(
            f"kvfs option 'checksum_blocks' is {str(blocks).lower()} but 'checksum' is {checksum!r}; leave "
            "one of them out"
        )


def _resolve_limits(options: dict[str, object]) -> None:
    """Turn what limits the room into bytes, vLLM's name for the capacity included."""
    for name in ("capacity_bytes", "max_bytes", "min_free_bytes"):
        if options.get(name) is not None:
            options[name] = _size(name, options[name])
    if "max_bytes" not in options:
        return
    max_bytes = options.pop("max_bytes")
    capacity_bytes = options.setdefault("capacity_bytes", max_bytes)
    if capacity_bytes != max_bytes:
        raise ValueError(
            f"kvfs option 'max_bytes' is {max_bytes} but 'capacity_bytes' is {capacity_bytes}; leave one of "
            "them out"
        )


def _size(name: str, value: object) -> int:
    try:
        return parse_size(value)  # type: ignore[arg-type]  # it checks the type
    except (TypeError, ValueError) as error:
        raise type(error)(f"kvfs option {name!r} {error}") from None


def _mode(name: str, value: object) -> int:
    """Return the mode that octal digits say.

    No number: JSON has no octal ones, and 640 would be read as 01200, 444 as 0674.
    """
    if not isinstance(value, str):
        raise TypeError(_wrong(name, 'a string of octal digits such as "0640"', value))
    digits = _OCTAL.fullmatch(value)
    if digits is None:
        raise ValueError(_wrong(name, 'three octal digits such as "0640"', value))
    return int(digits[1], 8)


def _wrong(name: str, expected: str, value: object) -> str:
    return f"kvfs option {name!r} must be {expected}, got {value!r}"
