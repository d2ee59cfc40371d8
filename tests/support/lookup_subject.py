"""What processes do to a namespace in the tests of lookups: an engine's calls, others' changes of files."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kvfs import backend
from kvfs.jobs import EXPIRED, HIT, MISS, RETRY, SUCCESS, EngineLike

NUM_KEYS: Final = 8
NUM_ROWS: Final = NUM_KEYS
CHUNK_SIZE_BYTES: Final = 4096
# Nothing here takes longer; what does has hung.
WAIT_S: Final = 30.0

_counter = itertools.count()


def key_bytes(key: int) -> bytes:
    """Return a key's bytes; some keys share directories of one level, or of both."""
    start = bytes([key % 2, 16 * (key // 2 % 2)])
    return start + random.Random(key).randbytes(30) + (key // 4 % 2).to_bytes(4, "big")


def content(key: int) -> bytes:
    """Return the one chunk that is ever stored under a key."""
    return random.Random(1000 + key).randbytes(CHUNK_SIZE_BYTES)


def path_of(base: str, key: int) -> Path:
    """Return the path that docs/engine.md gives a key."""
    digits, group = key_bytes(key)[:-4].hex(), int.from_bytes(key_bytes(key)[-4:], "big")
    return Path(base, digits[:3], f"{digits[3:5]}_g{group}", f"{digits}.bin")


def write_chunk(base: str, key: int) -> None:
    """Publish a whole file as a vLLM without kvfs does: a temporary beside it, and a rename."""
    path = path_of(base, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}_{os.getpid()}_{next(_counter)}.tmp")
    temporary.write_bytes(content(key))
    temporary.replace(path)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What an engine said about a key.

    Attributes:
        key: Its number.
        verdict: MISS, HIT, RETRY or EXPIRED.
        before_s: The clock when it was asked.
        after_s: The clock when it had answered.
    """

    key: int
    verdict: int
    before_s: float
    after_s: float


@dataclasses.dataclass(frozen=True)
class Status:
    """What an engine says of itself: whether it is the owner, and whether it has read the directories."""

    is_owner: bool
    is_scanned: bool


@dataclasses.dataclass(frozen=True)
class Look:
    """Answers, what the engine was before it gave them, and after."""

    before: Status
    answers: list[Answer]
    after: Status


class Subject:
    """The commands that the test's process gives; what they return goes back there."""

    def __init__(self) -> None:
        self._engine: EngineLike | None = None
        self._memory = bytearray()
        self._job_ids = itertools.count()

    def open(self, base: str, index_mode: str, negative_ttl_s: float) -> Status:
        """Start an engine on the namespace `base`."""
        self._memory = bytearray(NUM_ROWS * CHUNK_SIZE_BYTES)
        rows = memoryview(self._memory).cast("B", (NUM_ROWS, CHUNK_SIZE_BYTES))
        make = backend.load().Engine
        self._engine = make(base, rows, 2, 2, index_mode=index_mode, negative_ttl_s=negative_ttl_s)
        return self.status()

    def close(self) -> None:
        """Close the engine, if there is one."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def status(self) -> Status:
        """Say what the engine is."""
        stats = self._open().stats()
        return Status(bool(stats["owner"]), bool(stats["scan_complete"]))

    def wait_for_scan(self) -> Status:
        """Wait until the engine has read the directories."""
        deadline = time.monotonic() + WAIT_S
        while not (status := self.status()).is_scanned:
            assert time.monotonic() < deadline, "the scan does not end"
            time.sleep(0.0005)
        return status

    def look(self, keys: Sequence[int]) -> Look:
        """Ask for the verdicts on keys."""
        return self._look(keys, self._open().lookup)

    def ask(self, keys: Sequence[int], waiting_since_s: float) -> Look:
        """Ask for the verdicts on keys, and the disk where there is none."""
        return self._look(keys, lambda key: self._open().ask(key, waiting_since_s))

    def prefix(self, keys: Sequence[int]) -> int:
        """Count the hits before the first key that is none."""
        return self._open().lookup_prefix(*_packed(keys))

    def probe(self, keys: Sequence[int]) -> None:
        """Collect questions."""
        for key in keys:
            self._open().probe(key_bytes(key))

    def submit_probes(self) -> Status:
        """Hand the questions over, wait for the answers, and say what the engine is then."""
        self._open().submit_probes()
        self._drain()
        return self.status()

    def touch(self, keys: Sequence[int]) -> None:
        """Note that keys were used."""
        self._open().touch(*_packed(keys))

    def store(self, keys: Sequence[int]) -> list[int]:
        """Store keys and return their outcomes."""
        return self._finish(self.begin_store(keys))

    def begin_store(self, keys: Sequence[int]) -> int:
        """Submit a store and leave it under way."""
        for row, key in enumerate(keys):
            self._set_row(row, content(key))
        return self._submit_store(keys, range(len(keys)))

    def store_and_look(self, keys: Sequence[int]) -> tuple[Look, list[int]]:
        """Submit a store, ask for the verdicts at once, then wait; return them and the outcomes."""
        job_id = self.begin_store(keys)
        look = self.look(keys)
        return look, self._finish(job_id)

    def store_from_nowhere(self, keys: Sequence[int]) -> list[int]:
        """Store rows that do not exist; return the outcomes."""
        return self._finish(self._submit_store(keys, [NUM_ROWS] * len(keys)))

    def load(self, keys: Sequence[int]) -> list[tuple[int, bool]]:
        """Load keys; return each one's outcome and whether its row has exactly its bytes."""
        for row in range(len(keys)):
            self._set_row(row, bytes(CHUNK_SIZE_BYTES))
        outcomes = self._finish(self._submit_load(keys, range(len(keys))))
        return [(outcome, self._row(row) == content(keys[row])) for row, outcome in enumerate(outcomes)]

    def load_to_nowhere(self, keys: Sequence[int]) -> list[int]:
        """Load into rows that do not exist; return the outcomes."""
        return self._finish(self._submit_load(keys, [NUM_ROWS] * len(keys)))

    def schedule(
        self, keys: Sequence[int], seconds: float, seed: int, negative_ttl_s: float
    ) -> tuple[list[str], Status]:
        """Look up, probe and load keys without waiting, as a scheduler does.

        Returns:
            What went wrong, and what the engine is at the end, when all questions have been answered.
        """
        problems = _Scheduler(self._open(), self._memory, negative_ttl_s).run(keys, seconds, seed)
        return problems, self.status()

    def disturb(self, base: str, keys: Sequence[int], seconds: float, seed: int) -> None:
        """Store and delete keys at random, with the engine if there is one."""
        random_ = random.Random(seed)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            key = random_.choice(keys)
            if random_.random() < 0.5:
                path_of(base, key).unlink(missing_ok=True)
            elif self._engine is not None:
                self.store([key])
            else:
                write_chunk(base, key)

    def _open(self) -> EngineLike:
        assert self._engine is not None
        return self._engine

    def _look(self, keys: Sequence[int], ask: Callable[[bytes], int]) -> Look:
        before = self.status()
        answers = []
        for key in keys:
            packed = key_bytes(key)
            before_s = time.monotonic()
            verdict = ask(packed)
            answers.append(Answer(key, verdict, before_s, time.monotonic()))
        return Look(before, answers, self.status())

    def _submit_store(self, keys: Sequence[int], rows: Sequence[int]) -> int:
        job_id = next(self._job_ids)
        self._open().submit_store(job_id, *_packed(keys), list(rows))
        return job_id

    def _submit_load(self, keys: Sequence[int], rows: Sequence[int]) -> int:
        job_id = next(self._job_ids)
        self._open().submit_load(job_id, *_packed(keys), list(rows))
        return job_id

    def _drain(self) -> None:
        assert self._open().drain(WAIT_S), "the engine does not come to an end"

    def _finish(self, job_id: int) -> list[int]:
        self._drain()
        (completion,) = self._open().poll()
        assert completion.job_id == job_id
        return list(completion.outcomes)

    def _row(self, row: int) -> bytes:
        return bytes(self._memory[row * CHUNK_SIZE_BYTES : (row + 1) * CHUNK_SIZE_BYTES])

    def _set_row(self, row: int, data: bytes) -> None:
        self._memory[row * CHUNK_SIZE_BYTES : (row + 1) * CHUNK_SIZE_BYTES] = data


class _Scheduler:
    """Uses an engine so that loads, probes and verdicts overlap, and checks what holds all the same."""

    def __init__(self, engine: EngineLike, memory: bytearray, negative_ttl_s: float) -> None:
        self._engine = engine
        self._memory = memory
        self._negative_ttl_s = negative_ttl_s
        self._job_ids = itertools.count(1 << 32)
        # Row, key, and whether the disk was asked about it since, of the loads under way.
        self._loads: dict[int, tuple[int, int]] = {}
        self._asked_since: set[int] = set()
        # A question about them may wait to be put to the disk, which may be after a load has failed.
        self._questioned: set[int] = set()
        # The load failed, and nobody has asked the disk since it was submitted.
        self._failed: set[int] = set()
        # When the last answer about a key was known to be there.
        self._answered_s: dict[int, float] = {}
        self._problems: list[str] = []

    def run(self, keys: Sequence[int], seconds: float, seed: int) -> list[str]:
        random_ = random.Random(seed)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            key = random_.choice(keys)
            verdict = self._ask(key, at_once=random_.random() < 0.5)
            # Some loads are not preceded by a hit, so that probes are under way when they fail.
            if verdict == HIT or random_.random() < 0.1:
                self._load(key)
            elif verdict in (RETRY, EXPIRED):
                self._engine.probe(key_bytes(key))
                self._note_probe(key)
            if random_.random() < 0.3:
                self._engine.submit_probes()
            if random_.random() < 0.02:
                self._engine.submit_probes()
                if self._engine.drain(WAIT_S):
                    self._questioned.clear()
            self._take_completions()
        self._engine.submit_probes()
        if not self._engine.drain(WAIT_S):
            self._problems.append("the engine does not come to an end")
        self._take_completions()
        return self._problems

    def _ask(self, key: int, *, at_once: bool) -> int:
        """Look a key up, or ask the disk at once."""
        is_owner = self._engine.stats()["owner"]
        before_s = time.monotonic()
        verdict = (self._engine.ask if at_once else self._engine.lookup)(key_bytes(key))
        if verdict == HIT and key in self._failed:
            self._problems.append(f"key {key} is a HIT after its load failed, and nobody has looked since")
        if verdict == RETRY and at_once:
            self._note_probe(key)
        if verdict != RETRY:
            self._answered_s.setdefault(key, time.monotonic())
        # The owner believes an absence for as long as it is the owner.
        if verdict == MISS and not is_owner and before_s - self._answered_s[key] > self._negative_ttl_s:
            self._problems.append(f"key {key} is a MISS when its time to live is over")
        return verdict

    def _note_probe(self, key: int) -> None:
        self._failed.discard(key)
        self._questioned.add(key)
        self._asked_since.add(key)
        self._answered_s.pop(key, None)

    def _load(self, key: int) -> None:
        free = set(range(NUM_ROWS)) - {row for row, _ in self._loads.values()}
        if not free or any(key == loading for _, loading in self._loads.values()):
            return
        row, job_id = min(free), next(self._job_ids)
        self._memory[row * CHUNK_SIZE_BYTES : (row + 1) * CHUNK_SIZE_BYTES] = bytes(CHUNK_SIZE_BYTES)
        self._loads[job_id] = row, key
        if key not in self._questioned:
            self._asked_since.discard(key)
        self._engine.submit_load(job_id, *_packed([key]), [row])

    def _take_completions(self) -> None:
        for completion in self._engine.poll():
            row, key = self._loads.pop(completion.job_id)
            loaded = self._memory[row * CHUNK_SIZE_BYTES : (row + 1) * CHUNK_SIZE_BYTES]
            if completion.outcomes != [SUCCESS]:
                self._answered_s.pop(key, None)
                if key not in self._asked_since:
                    self._failed.add(key)
            elif loaded != content(key):
                self._problems.append(f"a load of key {key} gave other bytes")


def damage(path: Path, kind: str, seed: int) -> None:
    """Change the bytes of a file, if there is one, in one of `DAMAGES`."""
    random_ = random.Random(seed)
    with contextlib.suppress(FileNotFoundError):
        data = bytearray(path.read_bytes())
        place = random_.randrange(max(1, len(data)))
        if kind == "remove":
            path.unlink()
            return
        if kind == "flip" and data:
            data[place] ^= 1 << random_.randrange(8)
        elif kind == "cut":
            del data[place:]
        elif kind == "noise":
            data[place:] = random_.randbytes(len(data) - place)
        elif kind == "append":
            data += random_.randbytes(100)
        path.write_bytes(data)


DAMAGES: Final = ("remove", "flip", "cut", "noise", "append")


def _packed(keys: Sequence[int]) -> tuple[bytes, int]:
    return b"".join(map(key_bytes, keys)), len(key_bytes(0))
