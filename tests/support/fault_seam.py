"""The switches of a build with injected faults (src/kvfs_ext/testing): what fails, and what that hit."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

import kvfs_ext

_TEXT_SIZE_BYTES: Final = 8192
FOREVER: Final = 1 << 62


class WrongBuildError(Exception):
    """The extension was built without faults."""


@dataclass(frozen=True)
class Fault:
    """What becomes of calls of one name.

    Attributes:
        call: A name that `Seam.calls` has, or "any".
        first: The first call that it hits, counted from 1.
        times: How many it hits from there on.
        effect: "fail" (not made), "late" (made, and its answer lost), "short" (moves `size_bytes` at most),
            "delay" (made later) or "spin" (made after so much computing).
        error: The errno of "fail" and "late".
        size_bytes: What a short call moves; with 0 its answer is 0.
        delay_s: How long a delayed call waits, or computes.
    """

    call: str
    first: int = 1
    times: int = 1
    effect: str = "fail"
    error: int = 0
    size_bytes: int = 0
    delay_s: float = 0.0


@dataclass(frozen=True)
class Hit:
    """One call that a fault hit: its name and the path that it was about."""

    call: str
    path: PurePosixPath


class Seam:
    """The switches of the imported extension. One a process: the rules are the process's."""

    def __init__(self) -> None:
        """Find the switches.

        Raises:
            WrongBuildError: If the extension has none.
        """
        self._library = ctypes.CDLL(kvfs_ext.__file__)
        try:
            self._add = self._library.kvfs_faults_add
        except AttributeError:
            raise WrongBuildError(
                f"{kvfs_ext.__file__} was built without faults; `nox -s faults` builds with "
                "-C cmake.define.KVFS_FAULTS=ON and runs these tests against that"
            ) from None
        numbers = (ctypes.c_uint64, ctypes.c_uint64)
        self._add.argtypes = [ctypes.c_char_p, *numbers, ctypes.c_char_p, ctypes.c_int, *numbers]
        self._library.kvfs_faults_name.restype = ctypes.c_char_p
        self._library.kvfs_faults_count.restype = ctypes.c_uint64
        self._library.kvfs_faults_hits.restype = ctypes.c_uint64
        self._library.kvfs_faults_hit.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint64]
        names: list[str] = []
        while (name := self._library.kvfs_faults_name(len(names))) is not None:
            names.append(name.decode())
        self.calls = tuple(names)

    def reset(self) -> None:
        """Forget faults, counts and hits, and stop counting."""
        self._library.kvfs_faults_pause(1)
        self._library.kvfs_faults_reset()

    def add(self, fault: Fault) -> None:
        """Add a fault; the first one that fits decides.

        Raises:
            ValueError: If the call or the effect has an unknown name.
        """
        delay_ns = round(fault.delay_s * 1e9)
        numbers = (fault.error, fault.size_bytes, delay_ns)
        if not self._add(fault.call.encode(), fault.first, fault.times, fault.effect.encode(), *numbers):
            raise ValueError(f"unknown call or effect in {fault}")

    def add_standing(self, call: str, error: int) -> None:
        """Make all calls of a name fail as on a file system that lacks them: uncounted, and no hits."""
        self.add(Fault(call, first=0, error=error))

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Count calls and let them fail inside."""
        self._library.kvfs_faults_pause(0)
        try:
            yield
        finally:
            self._library.kvfs_faults_pause(1)

    def counts(self) -> dict[str, int]:
        """Return how often each call was made while active."""
        counts = {name: self._library.kvfs_faults_count(i) for i, name in enumerate(self.calls)}
        return {name: count for name, count in counts.items() if count}

    def hits(self) -> list[Hit]:
        """Return the calls that were hit, in order."""
        text = ctypes.create_string_buffer(_TEXT_SIZE_BYTES)
        found = []
        for number in range(self._library.kvfs_faults_hits()):
            self._library.kvfs_faults_hit(number, text, _TEXT_SIZE_BYTES)
            call, _, path = text.value.decode(errors="surrogateescape").partition("\t")
            found.append(Hit(call, PurePosixPath(path)))
        return found
