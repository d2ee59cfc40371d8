"""Kill processes at random instants, and look at what they leave: the crash test's rounds and report."""

from __future__ import annotations

import os
import random
import shutil
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

import crash_check
from crash_nursery import Child, Nursery
from crash_workload import (
    BROKEN,
    CLOSE,
    CLOSED,
    COMMAND,
    DUPLICATES,
    EVICTED,
    GONE,
    LOADED,
    LOOKUPS,
    PHASE,
    RECLAIMED,
    SCANNED,
    SHED,
    STORED,
    WORKING,
    WRONG,
    Spec,
)
from polling import await_that

LONG_VARIABLE: Final = "KVFS_FAULTS_LONG"
_LONG_TIMES: Final = 20
# Sizes of chunks, one namespace after the other: small ones, one without whole blocks, and one that io_uring
# moves in stores, too.
_CHUNK_SIZES_BYTES: Final = (4096, 16384, 5000, 294912)
_CAPACITY_CHUNKS: Final = 64
_KEYS: Final = 200
_KILLS_A_NAMESPACE: Final = 6
_SAMPLE_PERIOD_S: Final = 0.02
# How long a process lives, from its start or from the command to close: at most so long.
_LIVES_S: Final = {"start": 0.012, "work": 0.3, "close": 0.01}
_WORK_BEFORE_CLOSE_S: Final = 0.1


def times(kills: int) -> int:
    """Return how many kills there are to be, in the short form this many."""
    return kills * (_LONG_TIMES if os.environ.get(LONG_VARIABLE, "") == "1" else 1)


@dataclass
class Report:
    """What was done, and the worst that was seen."""

    kills: int = 0
    closed: int = 0
    stores: int = 0
    duplicates: int = 0
    sheds: int = 0
    loads: int = 0
    gone: int = 0
    lookups: int = 0
    evictions: int = 0
    reclaimed: int = 0
    wrong: int = 0
    starts: int = 0
    samples: int = 0
    worst_of_capacity: float = 0.0
    worst_of_promise: float = 0.0

    def add(self, child: Child) -> None:
        """Add what a process has done."""
        memory = child.memory
        self.stores += memory[STORED]
        self.duplicates += memory[DUPLICATES]
        self.sheds += memory[SHED]
        self.loads += memory[LOADED]
        self.gone += memory[GONE]
        self.lookups += memory[LOOKUPS]
        self.evictions += memory[EVICTED]
        self.reclaimed += memory[RECLAIMED]
        self.wrong += memory[WRONG]

    def __str__(self) -> str:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return ", ".join(
            f"{name.replace('_', ' ')} {value:.3f}" if isinstance(value, float) else f"{name} {value}"
            for name, value in values.items()
        )


@dataclass
class Crashes:
    """Rounds of kills on one place.

    Attributes:
        nursery: Makes the processes.
        place: A directory for them, on the file system under test.
        shown: The same directory where it is looked at.
        modules: The implementations that take part.
        io_engine: The extension's.
        seed: Of all that is drawn.
        slowness: How many times as long as elsewhere processes live there.
    """

    nursery: Nursery
    place: Path
    shown: Path
    modules: tuple[str, ...]
    io_engine: str
    seed: int
    report: Report = field(default_factory=Report)
    slowness: float = 1.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._worlds = 0
        self._live: list[Child] = []

    def run(self, kills: int, children: int) -> None:
        """Kill so many processes, `children` of which work at once."""
        try:
            while self.report.kills < kills:
                self._run_world(min(_KILLS_A_NAMESPACE, kills - self.report.kills), children)
        finally:
            for child in self._live:
                child.kill()

    def _run_world(self, kills: int, children: int) -> None:
        """Kill some processes on one root: of one namespace, sometimes with one more in another."""
        world = f"world-{self._worlds}"
        size = _CHUNK_SIZES_BYTES[self._worlds % len(_CHUNK_SIZES_BYTES)]
        self._worlds += 1
        (self.place / world).mkdir()
        end = self.report.kills + kills
        while self.report.kills < end:
            while len(self._live) < min(children, end - self.report.kills):
                other = len(self._live) == 2 and self._random.random() < 0.5
                self._start(self._spec(world, "other" if other else "space", size))
            self._kill_one(world)
            # Otherwise somebody else starts there, who is killed, too.
            done = self.report.kills >= end
            if not self._live and (done or self._random.random() < 0.5):
                spec = self._spec(world, "space", size)
                self.report.reclaimed += crash_check.check_lone_start(spec, self.shown / world)
                self.report.starts += 1
        shutil.rmtree(self.place / world)

    def _spec(self, world: str, namespace: str, size: int) -> Spec:
        module = self._random.choice(self.modules)
        cost = -(-size // 4096) * 4096 + 4096
        return Spec(
            module=module,
            base=str(self.place / world / namespace),
            root=str(self.place / world),
            chunk_size_bytes=size,
            capacity_bytes=_CAPACITY_CHUNKS * cost,
            keys=_KEYS,
            io_engine=self.io_engine,
            index_mode=self._random.choice(("auto", "auto", "shared")),
            seed=self._random.getrandbits(32),
        )

    def _start(self, spec: Spec) -> None:
        """Start a process beside those that live; sometimes look what its scan has left of the dead."""
        self._live.append(self.nursery.fork(spec))
        child = self._live[-1]
        if len(self._live) == 1 or self._random.random() < 0.5:
            return
        assert await_that(lambda: child.memory[SCANNED] == 1 or child.memory[PHASE] == BROKEN), self._story(
            child
        )
        self._check_alive(child)
        if spec.capacity_bytes is not None:
            self._stand_still()
            writers = crash_check.temporaries(self._shown(spec.base)).values()
            assert set(writers) <= {each.pid for each in self._live}, (
                "the scan has left a dead one's temporary"
            )
            self._go_on()

    def _kill_one(self, world: str) -> None:
        """Let all work, kill one of them at an instant that is drawn, and check what lies there then."""
        victim = self._random.choice(self._live)
        when = self._random.choice(("start", "work", "work", "work", "close"))
        if when != "start":
            assert await_that(lambda: victim.memory[PHASE] >= WORKING), self._story(victim)
        if when == "close":
            self._watch(world, self._random.uniform(0, _WORK_BEFORE_CLOSE_S))
            victim.memory[COMMAND] = CLOSE
        self._watch(world, self._random.uniform(0, _LIVES_S[when] * self.slowness))
        self._check_alive(victim)
        ended = victim.memory[PHASE] == CLOSED and victim.await_end(0)
        victim.kill()
        self._live.remove(victim)
        self.report.kills += 0 if ended else 1
        self.report.closed += 1 if ended else 0
        self.report.add(victim)
        self._stand_still()
        for each in (victim, *self._live):
            base = self._shown(each.spec.base)
            if base.exists():
                assert crash_check.wrong_files(base, each.spec) == [], self._story(victim)
        self._look(world)
        self._go_on()

    def _watch(self, world: str, duration_s: float) -> None:
        """Sample what lies on disk for so long."""
        end = time.monotonic() + duration_s
        while (left := end - time.monotonic()) > _SAMPLE_PERIOD_S:
            time.sleep(min(left, _SAMPLE_PERIOD_S * self._random.random()))
            self._stand_still()
            self._look(world)
            self._go_on()
        time.sleep(max(0.0, end - time.monotonic()))

    def _look(self, world: str) -> None:
        """Compare what lies on disk with the capacity and the promise, while nobody moves."""
        spec = next((each.spec for each in self._live), None)
        root = self.shown / world
        if spec is None or spec.capacity_bytes is None:
            return
        device = root.stat().st_dev
        found = crash_check.physical(root, sum(each.nameless_bytes(device) for each in self._live))
        self.report.samples += 1
        ratio = found.bound_bytes / spec.capacity_bytes
        self.report.worst_of_capacity = max(self.report.worst_of_capacity, ratio)
        assert ratio <= 1, f"{found} for a capacity of {spec.capacity_bytes}, {self}"
        if (said := crash_check.promise(root)) is not None and said.total_bytes > 0:
            promised = (found.bound_bytes - found.own_bytes) / said.total_bytes
            self.report.worst_of_promise = max(self.report.worst_of_promise, promised)
            assert promised <= 1, f"{found} where {said.total_bytes} bytes are promised, {self}"

    def _check_alive(self, child: Child) -> None:
        memory = child.memory
        assert memory[PHASE] != BROKEN, self._story(child)
        assert memory[WRONG] == 0, self._story(child)
        assert memory.unexpected() == {}, self._story(child)

    def _story(self, child: Child) -> str:
        return f"{child.memory.unexpected()} {child.memory.text()}\n{child.spec}\n{self}"

    def _shown(self, base: str) -> Path:
        return self.shown / os.path.relpath(base, self.place)

    def _stand_still(self) -> None:
        for child in self._live:
            child.stop()

    def _go_on(self) -> None:
        for child in self._live:
            child.go_on()
