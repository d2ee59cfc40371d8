"""One run of the scripted workload while calls fail, and everything that must hold then."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import faulthandler
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import fault_namespace as space
from fault_namespace import Memory, Setup
from fault_oracle import Effect, effect_on, error_of
from fault_seam import Fault, Hit, Seam

import kvfs_ext
from kvfs.jobs import HIT, SHED

# What pauses stores, see docs/capacity.md.
_PAUSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
# Nothing here takes longer; what does has hung.
_STEP_TIMEOUT_S: Final = 20.0
KEY_SIZE_BYTES: Final = 36
_STORED: Final = ("new_1", "duplicate", "wrong", "directory", "new_2", "tall", "link", "last")
_LOADED: Final = ("good_1", "missing", "cut", "good_2", "long", "new_1", "duplicate", "wrong", "link")
_LOOKED_UP: Final = ("new_1", "new_2", "last", "good_1", "missing", "long", "directory", "link")


class HungError(Exception):
    """A step did not come to its end."""


@dataclass
class Report:
    """What a run found.

    Attributes:
        counts: Calls by name.
        hits: The calls that were hit.
        wrong: What must not be, a sentence each.
        temporaries: Files that were left because removing them failed.
        started: Whether the engine started in spite of the fault.
    """

    counts: dict[str, int] = field(default_factory=dict)
    hits: list[Hit] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    temporaries: int = 0
    started: bool = False


def bounded(what: str, step: Callable[[], object]) -> None:
    """Run a step that may hang on a thread of its own.

    Raises:
        HungError: If it is not done in time; standard error has the stacks of all threads by then.
        Exception: Whatever the step raises.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True, name=f"step-{what}")
    thread.start()
    thread.join(_STEP_TIMEOUT_S)
    if thread.is_alive():
        faulthandler.dump_traceback()
        places = [f"{name}: {_file_of_thread(task, 'wchan')}" for task, name in _threads().items()]
        raise HungError(
            f"{what} has not ended within {_STEP_TIMEOUT_S} s; threads wait in: {', '.join(places)}"
        )
    if raised:
        raise raised[0]


@contextlib.contextmanager
def kept_if_hung(engine: kvfs_ext.Engine) -> Iterator[None]:
    """Let nobody drop an engine that has hung inside: that would close it, and wait for ever."""
    try:
        yield
    except HungError:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))
        raise


def _file_of_thread(task: str, name: str) -> str:
    try:
        return Path("/proc/self/task", task, name).read_text().strip()
    except OSError:
        return ""


def _threads() -> dict[str, str]:
    """Return the names of this process's threads."""
    return {task.name: _file_of_thread(task.name, "comm") for task in Path("/proc/self/task").iterdir()}


def _engine_threads(prefix: str = "kvfs-") -> int:
    return sum(name.startswith(prefix) for name in _threads().values())


def _await_no(prefix: str) -> bool:
    """Wait until the last thread of that name has ended."""
    deadline = time.monotonic() + _STEP_TIMEOUT_S
    while _engine_threads(prefix):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0002)
    return True


def open_descriptors() -> dict[str, str]:
    """Return this process's descriptors and what they are."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            found[link.name] = str(link.readlink())
        except OSError:
            continue  # it was the listing's own
    return found


def run_job(engine: kvfs_ext.Engine, memory: Memory, kind: str, names: Sequence[str]) -> dict[str, int]:
    """Run a job and return its outcomes.

    Raises:
        HungError: If it is not reported in time, exactly once.
    """
    submit(engine, memory, kind, names)
    bounded(kind, lambda: engine.drain(_STEP_TIMEOUT_S / 2))
    completions = engine.poll()
    if [(each.kind, len(each.outcomes)) for each in completions] != [(kind, len(names))]:
        raise HungError(f"the {kind} was reported {len(completions)} times instead of once")
    return dict(zip(names, completions[0].outcomes, strict=True))


def submit(engine: kvfs_ext.Engine, memory: Memory, kind: str, names: Sequence[str], job_id: int = 0) -> None:
    """Submit a job."""
    packed = b"".join(space.key_of(name) for name in names)
    if kind == "lookup":
        engine.submit_lookup(job_id, packed, KEY_SIZE_BYTES)
    elif kind == "store":
        engine.submit_store(job_id, packed, KEY_SIZE_BYTES, [memory.store_row(name) for name in names])
    else:
        memory.poison()
        engine.submit_load(job_id, packed, KEY_SIZE_BYTES, [memory.load_row(name) for name in names])


class Run:
    """One run: a copy of the template, an engine, the workload, the checks."""

    def __init__(
        self,
        seam: Seam,
        setup: Setup,
        memory: Memory,
        places: tuple[Path, Path],
        faults: Sequence[Fault],
        *,
        is_judged: bool = True,
    ) -> None:
        """Prepare everything; nothing fails yet.

        Args:
            seam: The switches.
            setup: How the engine works.
            memory: The primary tier.
            places: A namespace, and where a copy of it is used.
            faults: What fails.
            is_judged: Whether each outcome must be the one that its faults lead to. Not where several faults
                fall together; everything else holds then, too.
        """
        self._is_judged = is_judged
        self._seam = seam
        self._setup = setup
        template, self._base = places
        self._faults = faults
        self._memory = memory
        self._stored: dict[str, int] = {}
        # A capacity whose file cannot be written makes room for it, at the cost of some chunks.
        self._evicted: set[str] = set()
        self.report = Report()
        space.copy_template(template, self._base)
        seam.reset()
        for call, error in setup.lacking.items():
            seam.add_standing(call, error)
        for fault in faults:
            seam.add(fault)

    def execute(self) -> Report:
        """Run and check everything."""
        descriptors = open_descriptors()
        try:
            self._run()
        finally:
            self.report.counts = self._seam.counts()
            self.report.hits = self._seam.hits()
        self._seam.reset()
        self._check_files()
        self._check_fresh_engine()
        self._expect(_await_no("kvfs-"), "a thread is left")
        left = {
            number: name for number, name in open_descriptors().items() if descriptors.get(number) != name
        }
        self._expect(not left, f"descriptors are left open: {left}")
        return self.report

    def _run(self) -> None:
        engines: list[kvfs_ext.Engine] = []
        try:
            with self._seam.active():
                bounded("start", lambda: engines.append(space.start(self._setup, self._base, self._memory)))
                self._expect(_await_no("kvfs-scan"), "the scan does not end")
        except OSError as error:
            self._check_refusal(error)
            return
        self.report.started = True
        (engine,) = engines
        with kept_if_hung(engine):
            self._work(engine)
            self._expect(_engine_threads("kvfs-io-") == 2, "a thread of the engine has died")
            self._check_recovery(engine)
            with self._seam.active():
                bounded("close", engine.close)

    def _check_refusal(self, error: OSError) -> None:
        """A fault at the start may refuse the engine, and then says why."""
        errors = {fault.error for fault in self._faults}
        if any(fault.effect == "short" for fault in self._faults):
            # A device refuses a direct transfer of an odd length.
            errors |= {errno.EIO, errno.EINVAL}
        if self._setup.is_limited and {hit.call for hit in self._seam.hits()} <= {"fcntl_lock", "flock"}:
            # What cannot be locked is busy, or has no locks.
            errors |= {errno.EBUSY, errno.ENOLCK}
        self._expect(error.errno in errors or not self._is_judged, f"the start failed with {error!r}")
        self._expect(bool(self._seam.hits()), f"the start failed without a fault: {error!r}")

    def _work(self, engine: kvfs_ext.Engine) -> None:
        """Store, load, look up and probe while calls fail."""
        expected = dict.fromkeys(_STORED, 0) | {"directory": errno.EISDIR}
        self._stored = self._job(engine, "store", _STORED, expected)
        lies_there = self._on_disk(_STORED)
        self._note_evicted(engine)
        for name, outcome in lies_there.items():
            is_excused = bool(self._stored[name]) or name in self._evicted
            self._expect(is_excused or outcome == 0, f"{name} was stored and is not there")
        loaded = self._job(engine, "load", _LOADED, self._on_disk(_LOADED))
        for name, outcome in loaded.items():
            key = space.key_of(name)
            self._expect(not outcome or engine.lookup(key) != HIT, f"{name} is a hit after its load failed")
            self._expect(bool(outcome) or self._memory.is_loaded(name), f"{name} was loaded and is not exact")
        self._job(engine, "lookup", _LOOKED_UP, self._on_disk(_LOOKED_UP))
        with self._seam.active():
            for name in space.NAMES:
                engine.probe(space.key_of(name))
            engine.submit_probes()
            bounded("probes", lambda: self._expect(engine.drain(_STEP_TIMEOUT_S / 2), "probes do not end"))
        self._expect(engine.poll() == [], "a probe was reported as a job")
        for name in (*space.NEW, *space.NOWHERE):
            is_there = self._on_disk([name])[name] == 0
            is_hit = engine.lookup(space.key_of(name)) == HIT
            self._expect(is_there or not is_hit, f"{name} is a hit and not there")

    def _on_disk(self, names: Sequence[str]) -> dict[str, int]:
        """What loads and lookups should say, by what lies there."""
        size_bytes = self._setup.chunk_size_bytes
        return {name: space.outcome_of(self._base, name, size_bytes) for name in names}

    def _job(
        self, engine: kvfs_ext.Engine, kind: str, names: Sequence[str], expected: dict[str, int]
    ) -> dict[str, int]:
        """Run a job while calls fail, and judge each key's outcome by the calls about it that were hit."""
        before = len(self._seam.hits())
        with self._seam.active():
            outcomes = self._plain_job(engine, kind, names)
        hits: dict[str, list[Hit]] = {}
        for hit in self._seam.hits()[before:]:
            name = space.name_at(self._base, Path(hit.path))
            if name is not None:
                hits.setdefault(name, []).append(hit)
        for name, outcome in outcomes.items() if self._is_judged else ():
            allowed = self._allowed(kind, hits.get(name, []), expected[name])
            self._expect(
                outcome in allowed,
                f"{kind} of {name}: {_errno_name(outcome)} instead of "
                f"{' or '.join(_errno_name(each) for each in sorted(allowed))}, hit: {hits.get(name, [])}",
            )
        return outcomes

    def _allowed(self, kind: str, hits: Sequence[Hit], expected: int) -> set[int]:
        """Return the outcomes that a key may have; a first hit that must fail decides."""
        # What cannot be counted finds no room.
        may_be_shed = kind == "store" and self._setup.is_limited and bool(self._seam.hits())
        allowed = {expected}
        for hit in hits:
            fault = next(each for each in self._faults if each.call in {hit.call, "any"})
            effect = effect_on(kind, hit, fault)
            error = error_of(fault, kind)
            # Beside a capacity, the one that was hit may be the thread that counts files.
            if effect is Effect.FAILS and len(allowed) == 1 and not self._setup.is_limited:
                return {error}
            if effect is not Effect.NONE:
                allowed.add(error)
        return allowed | {SHED} if may_be_shed else allowed

    def _plain_job(self, engine: kvfs_ext.Engine, kind: str, names: Sequence[str]) -> dict[str, int]:
        return run_job(engine, self._memory, kind, names)

    def _check_recovery(self, engine: kvfs_ext.Engine) -> None:
        """With the fault gone the same engine stores what failed, and loads it."""
        failed = [name for name, outcome in self._stored.items() if outcome and name != "directory"]
        names = ("extra", *failed)
        stored = self._plain_job(engine, "store", names)
        # A full disk is tried again after a second; that has a test of its own.
        is_paused = set(stored.values()) == {SHED} and any(fault.error in _PAUSING for fault in self._faults)
        # So is a capacity that could not be leased; within a second, and beside other outcomes.
        deadline = time.monotonic() + _STEP_TIMEOUT_S
        while (
            self._setup.is_limited
            and not is_paused
            and SHED in stored.values()
            and time.monotonic() < deadline
        ):
            time.sleep(0.01)
            stored = self._plain_job(engine, "store", names)
        self._expect(is_paused or not any(stored.values()), f"stores fail without a fault: {stored}")
        loaded = self._plain_job(engine, "load", ("good_1", *(() if is_paused else names)))
        self._note_evicted(engine)
        kept = {name: outcome for name, outcome in loaded.items() if name not in self._evicted}
        self._expect(not any(kept.values()), f"loads fail without a fault: {loaded}")
        self._expect(all(map(self._memory.is_loaded, kept)), "what was loaded is not exact")

    def _note_evicted(self, engine: kvfs_ext.Engine) -> None:
        """Note what was evicted, which may be only for want of room."""
        names = {space.key_of(name): name for name in space.NAMES}
        evicted = {names[key] for key in engine.take_evicted()}
        is_full = any(fault.error in {errno.ENOSPC, errno.EDQUOT} for fault in self._faults)
        self._expect(not evicted or (self._setup.is_limited and is_full), f"evicted without need: {evicted}")
        self._evicted |= evicted

    def _check_files(self) -> None:
        self.report.wrong += space.wrong_files(self._setup, self._base)
        stored = (name for name, outcome in self._stored.items() if not outcome)
        kept = {*space.WHOLE, *stored} - self._evicted
        lost = [name for name, lies_there in self._on_disk(sorted(kept)).items() if lies_there]
        self._expect(not lost, f"chunks are lost that were whole: {lost}")
        left = space.temporaries(self._base)
        # A temporary that could not be removed, or whose making or linking got lost, stays.
        excused = any(
            hit.call == "unlinkat" or fault.effect == "late"
            for hit in self.report.hits
            for fault in self._faults
        )
        self._expect(excused or not left, f"temporaries are left: {left}")
        self.report.temporaries = len(left)

    def _check_fresh_engine(self) -> None:
        """The next engine finds exactly the whole chunks, and no temporary among them."""
        engine = space.start(self._setup, self._base, self._memory)
        self._expect(_await_no("kvfs-scan"), "the scan of the next engine does not end")
        expected = self._on_disk(space.NAMES)
        whole = sum(outcome == 0 for outcome in expected.values())
        stats = engine.stats()
        found = (stats["scan_complete"], stats["index_keys"], stats["scanned_files"])
        self._expect(found[:2] == (1, whole), f"the next engine knows {found}, there are {whole} chunks")
        with kept_if_hung(engine):
            loaded = self._plain_job(engine, "load", space.NAMES)
            self._expect(loaded == expected, f"the next engine loads {loaded} where {expected} lies")
            for name, outcome in loaded.items():
                self._expect(bool(outcome) or self._memory.is_loaded(name), f"{name} is not exact at last")
            bounded("close", engine.close)

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.report.wrong.append(otherwise)


def _errno_name(code: int) -> str:
    return errno.errorcode.get(code, str(code)) if code else "success"
