"""What a process does until it is killed: it stores, loads and evicts chunks whose content their keys fix.

Runs in children of `crash_nursery`. What it has done it writes to shared memory as it goes, so that a SIGKILL
loses nothing of it.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import mmap
import random
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, cast

from kvfs.jobs import HIT, CompletionLike, EngineLike

KEY_SIZE_BYTES: Final = 36
ROWS: Final = 32
_JOBS_MAX: Final = 4
_ROWS_A_JOB: Final = ROWS // _JOBS_MAX
_GROUP: Final = bytes(4)
# First-level directories, and those below each: few, so that chunks share them and prunings meet stores.
_FIRSTS: Final = 8
_LEAVES: Final = 8
_DRAIN_S: Final = 0.002
_SHED_PAUSE_S: Final = 0.001

# Places in the shared memory, in numbers of 64 bits.
COMMAND: Final = 0
PHASE: Final = 1
STORED: Final = 2
LOADED: Final = 3
LOOKUPS: Final = 4
SHED: Final = 5
WRONG: Final = 6
GONE: Final = 7
EVICTED: Final = 8
RECLAIMED: Final = 9
SCANNED: Final = 10
DUPLICATES: Final = 11
# From here one count for each kind of job and errno that no such job should have.
_UNEXPECTED: Final = 16
_ERRNOS: Final = 160
_KINDS: Final = ("store", "load", "lookup")
_TEXT_BYTE: Final = 8192
MEMORY_BYTES: Final = 16384

# Phases, and the one command.
STARTING: Final = 1
WORKING: Final = 2
CLOSING: Final = 3
CLOSED: Final = 4
BROKEN: Final = 5
CLOSE: Final = 1


@dataclass(frozen=True)
class Spec:
    """What one process is to do.

    Attributes:
        module: "kvfs_ext" or "kvfs.fallback".
        base: The namespace's directory.
        root: What the capacity is for.
        chunk_size_bytes: Size of a chunk.
        capacity_bytes: The capacity; None is none.
        keys: How many different keys it uses.
        io_engine: As the engine has it.
        index_mode: As the engine has it.
        seed: Of what it does.
    """

    module: str
    base: str
    root: str
    chunk_size_bytes: int
    capacity_bytes: int | None
    keys: int
    io_engine: str
    index_mode: str
    seed: int

    def engine(self, buffer: memoryview) -> EngineLike:
        """Start the engine."""
        start = cast("Callable[..., EngineLike]", importlib.import_module(self.module).Engine)
        limits = {"capacity_bytes": self.capacity_bytes, "space_root": self.root}
        return start(
            self.base,
            buffer,
            2,
            2,
            True,
            io_engine="auto" if self.module == "kvfs.fallback" else self.io_engine,
            index_mode=self.index_mode,
            negative_ttl_s=0.01,
            **(limits if self.capacity_bytes is not None else {}),
        )


def key_of(number: int) -> bytes:
    """Return a key; those of neighbouring numbers lie in different directories."""
    digits = f"{number % _FIRSTS:03x}{number // _FIRSTS % _LEAVES:02x}"
    return bytes.fromhex(digits + hashlib.sha256(number.to_bytes(8, "big")).hexdigest()[5:]) + _GROUP


def path_of(key: bytes) -> str:
    """Return where docs/engine.md has a key's file, below the namespace."""
    digits = key[:-4].hex()
    return f"{digits[:3]}/{digits[3:5]}_g{int.from_bytes(key[-4:], 'big')}/{digits}.bin"


def content_of(key: bytes, size_bytes: int) -> bytes:
    """Return the content of a key's chunk: no two keys' pages are alike."""
    return hashlib.shake_128(key).digest(size_bytes)


class Memory:
    """The numbers that a process shares with whoever watches it."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, MEMORY_BYTES)
        self._numbers = memoryview(self._map)[:_TEXT_BYTE].cast("Q")

    def __getitem__(self, place: int) -> int:
        return int(self._numbers[place])

    def __setitem__(self, place: int, value: int) -> None:
        self._numbers[place] = value

    def count_unexpected(self, kind: str, code: int) -> None:
        """Count an outcome that no such job should have."""
        self[_UNEXPECTED + _KINDS.index(kind) * _ERRNOS + min(code, _ERRNOS - 1)] += 1

    def unexpected(self) -> dict[str, int]:
        """Return those outcomes, and how often there was each."""
        places = ((kind, code) for kind in range(len(_KINDS)) for code in range(_ERRNOS))
        found = {place: self[_UNEXPECTED + place[0] * _ERRNOS + place[1]] for place in places}
        return {
            f"{_KINDS[kind]} {errno.errorcode.get(code, code)}": n for (kind, code), n in found.items() if n
        }

    def write_text(self, text: str) -> None:
        """Leave a text of what went wrong."""
        data = text.encode()[-(MEMORY_BYTES - _TEXT_BYTE - 1) :]
        self._map[_TEXT_BYTE : _TEXT_BYTE + len(data)] = data

    def text(self) -> str:
        """Return that text."""
        return self._map[_TEXT_BYTE:].rstrip(b"\0").decode(errors="replace")


def run(spec: Spec, memory: Memory) -> None:
    """Work until the command to close comes; in a process of its own."""
    try:
        memory[PHASE] = STARTING
        work = _Work(spec, memory)
        memory[PHASE] = WORKING
        while memory[COMMAND] != CLOSE:
            work.step()
        memory[PHASE] = CLOSING
        work.engine.close()
        memory[PHASE] = CLOSED
    except BaseException:  # noqa: BLE001 - whatever it is, the watcher wants to know
        memory.write_text(traceback.format_exc())
        memory[PHASE] = BROKEN


class _Work:
    def __init__(self, spec: Spec, memory: Memory) -> None:
        self._spec = spec
        self._memory = memory
        self._random = random.Random(spec.seed)
        self._flat = memoryview(mmap.mmap(-1, ROWS * spec.chunk_size_bytes))
        self.engine = spec.engine(self._flat.cast("B", (ROWS, spec.chunk_size_bytes)))
        self._keys = [key_of(number) for number in range(spec.keys)]
        # What each job is about: its keys, and the first of its rows.
        self._jobs: dict[int, tuple[list[bytes], int]] = {}
        self._free = list(range(0, ROWS, _ROWS_A_JOB))
        self._next_id = 0

    def step(self) -> None:
        """Submit a job, or take what has ended."""
        if self._free:
            self._submit()
        else:
            self.engine.drain(_DRAIN_S)
        for done in self.engine.poll():
            self._take(done)
        stats = self.engine.stats()
        self._memory[EVICTED] = stats.get("evicted_chunks", 0)
        self._memory[RECLAIMED] = stats.get("reclaimed_temporaries", 0)
        self._memory[SCANNED] = stats["scan_complete"]
        self._memory[DUPLICATES] = stats["duplicate_stores"]

    def _submit(self) -> None:
        count = self._random.randint(1, _ROWS_A_JOB)
        first = self._random.randrange(len(self._keys))
        keys = [self._keys[(first + i) % len(self._keys)] for i in range(count)]
        packed = b"".join(keys)
        present = [key for key in keys if self.engine.lookup(key) == HIT]
        self._memory[LOOKUPS] += count
        if self._random.random() < 0.1:
            self.engine.touch(packed, KEY_SIZE_BYTES)
            for key in keys:
                self.engine.ask(key, time.monotonic())
            self.engine.submit_probes()
        if self._random.random() < 0.05:
            self._begin("lookup", keys)
        elif present and self._random.random() < 0.6:
            self._begin("load", present)
        else:
            self._begin("store", keys)

    def _begin(self, kind: str, keys: list[bytes]) -> None:
        row = self._free.pop()
        rows = list(range(row, row + len(keys)))
        self._jobs[self._next_id] = (keys, row)
        packed = b"".join(keys)
        if kind == "lookup":
            self.engine.submit_lookup(self._next_id, packed, KEY_SIZE_BYTES)
        elif kind == "load":
            for each in self._rows(keys, row):
                each[:] = bytes(len(each))
            self.engine.submit_load(self._next_id, packed, KEY_SIZE_BYTES, rows)
        else:
            for key, each in zip(keys, self._rows(keys, row), strict=True):
                each[:] = content_of(key, len(each))
            self.engine.submit_store(self._next_id, packed, KEY_SIZE_BYTES, rows)
        self._next_id += 1

    def _rows(self, keys: list[bytes], row: int) -> Iterator[memoryview]:
        size = self._spec.chunk_size_bytes
        for i in range(len(keys)):
            yield self._flat[(row + i) * size : (row + i + 1) * size]

    def _take(self, done: CompletionLike) -> None:
        keys, row = self._jobs.pop(done.job_id)
        for key, each, outcome in zip(keys, self._rows(keys, row), done.outcomes, strict=True):
            if outcome == 0:
                self._succeeded(done.kind, key, each)
            elif done.kind == "store" and outcome == errno.EAGAIN:
                self._memory[SHED] += 1
            elif done.kind != "store" and outcome == errno.ENOENT:
                # Evicted by somebody else since it was a hit.
                self._memory[GONE] += 1 if done.kind == "load" else 0
            else:
                self._memory.count_unexpected(done.kind, outcome)
                self._memory.write_text(done.detail)
        self._free.append(row)
        if errno.EAGAIN in done.outcomes:
            # There is no room, which asking for more does not change.
            time.sleep(_SHED_PAUSE_S)

    def _succeeded(self, kind: str, key: bytes, row: memoryview) -> None:
        if kind == "store":
            self._memory[STORED] += 1
        elif kind == "load":
            self._memory[LOADED] += 1
            if row != content_of(key, len(row)):
                self._memory[WRONG] += 1
                self._memory.write_text(f"wrong bytes of {key.hex()}")
