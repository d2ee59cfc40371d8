"""Run every case with every arm, interleaved, a process per run, and leave the disk as it was."""

import contextlib
import dataclasses
import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from harness import environment, storage
from harness.errors import HarnessError, UsageError
from harness.micro import arms, syscalls
from harness.micro.arms import FIO, Arm
from harness.micro.cases import LOAD, MIXED, STORE, Case, Limits, size_text
from harness.micro.collect import Collector
from harness.micro.directories import own_directory, retire, run_directory
from harness.micro.fio import Fio, FioRun
from harness.micro.requests import MEASURE, PREPARE, PROBE, REQUIRE, Answer, Request
from harness.micro.worker_process import WorkerProcess
from harness.records import RecordLog

_TIMEOUT_S: Final = 120.0
# The slowest disk that is waited for.
_BYTES_PER_S_MIN: Final = 10_000_000
_CHUNKS_PER_S_MIN: Final = 50
# What makes and keeps a directory in some 30 us is slow now: it has just had to remove very many.
_MKDIR_US_MAX: Final = 200.0
_FIO_FILE_BYTES: Final = 256 << 20
_FIO_RUNTIME_S: Final = 1.0
# What may be on disk at once is at most this part of what is free.
_FREE_PART_MAX: Final = 0.9


@dataclass(frozen=True)
class Plan:
    """What a session does.

    Attributes:
        cases: In order, all of one chunk size together.
        arms: In the order of a round; the next round goes backwards.
        runs: How many rounds each case has.
        limits: Bounds of a run's data.
        existing_leaves: Make the directories of stored chunks before the clock runs.
        count_syscalls: Trace one run of each case and arm.
    """

    cases: Sequence[Case]
    arms: Sequence[Arm]
    runs: int
    limits: Limits
    existing_leaves: bool = False
    count_syscalls: bool = True


@dataclass
class Outcome:
    """What a session could not do.

    Attributes:
        missing: Optional arms and metrics that this machine cannot measure, and why.
        failures: Arms that should have run and did not, runs that went wrong, and how.
        unproven: Cases whose bytes may not have come from the device.
        slow_directories: Stores that met a file system which was slow to make directories.
    """

    missing: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    slow_directories: list[str] = field(default_factory=list)

    def add(self, other: "Outcome") -> None:
        """Take over what another session could not do."""
        for each in dataclasses.fields(self):
            getattr(self, each.name).extend(getattr(other, each.name))


@dataclass(frozen=True)
class Step:
    """One thing that is about to be done.

    Attributes:
        text: What it is.
        weight: About how many seconds it takes.
    """

    text: str
    weight: float = 0.0


def backlog_room_bytes(directory: Path, max_bytes: int) -> int:
    """Return how large a backlog of stores may be in `directory`, which need not exist yet; 0 for none."""
    existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    return max(0, int(free * _FREE_PART_MAX) - max_bytes - _FIO_FILE_BYTES)


def weight_of(case: Case) -> float:
    """Return about how many seconds a run of a case takes."""
    if case.victim:
        return 3.0  # it ends by the clock
    moved = case.chunks + case.backlog_jobs * case.chunks_per_job
    return 0.3 + moved * case.chunk_bytes / 1e9 + case.file_chunks * 0.002


class Session:
    """Workers, directories and records of one invocation.

    Args:
        plan: What to do.
        directory: Gets the chunks, in a directory of its own that is removed.
        out: Gets the workers' logs.
        log: Gets the records.
        report: Called before each step.
    """

    def __init__(
        self, plan: Plan, directory: Path, out: Path, log: RecordLog, report: Callable[[Step], None]
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._logs = out / "logs"
        self._report = report
        self._workers: dict[str, WorkerProcess] = {}
        self._fio: Fio | None = None
        self._loaded_chunk_bytes = 0
        self._loaded_files = 0
        self._load_root = directory
        self._serial = 0
        self._can_trace = plan.count_syscalls
        self._arms = list(plan.arms)
        self.log = log
        self.outcome = Outcome()

    @property
    def cases(self) -> Sequence[Case]:
        """What is measured, in order."""
        return self._plan.cases

    @property
    def weight(self) -> float:
        """What all steps weigh together; less, once it is known which arms are missing here."""
        total = 0.0
        for case in self._plan.cases:
            traced = sum(arm.traced for arm in self._arms) if self._is_traced(case) else 0
            rounds = self._plan.runs * sum(arm != FIO for arm in self._arms)
            total += weight_of(case) * (rounds + traced)
            total += self._plan.runs * _FIO_RUNTIME_S * (FIO in self._arms and self._has_limit(case))
        return total

    def run(self, on_case: Callable[[Case], None]) -> Outcome:
        """Measure everything; `on_case` is called when a case's records are written.

        Raises:
            HarnessError: Nothing can be measured here.
            OSError: The directory cannot be used.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            self._root = stack.enter_context(own_directory(self._directory))
            stack.callback(self._report, Step("removing what was stored"))
            self._require_space()
            self._arms = self._start(stack)
            leaves = "existing" if self._plan.existing_leaves else "new"
            env = environment.machine(self._root) | {"leaves": leaves}
            self._collector = Collector(self.log, storage.mount_of(self._root).filesystem, env)
            for case in self._plan.cases:
                self._prepare_files(case)
                self._measure(case)
                on_case(case)
        return self.outcome

    def _require_space(self) -> None:
        """Refuse to start what does not fit.

        Raises:
            UsageError: Says how much is needed and what to change.
        """
        stored = max(case.file_chunks * case.chunk_bytes for case in self._plan.cases)
        needed = stored + self._plan.limits.max_bytes + _FIO_FILE_BYTES
        free = shutil.disk_usage(self._root).free
        if needed > free * _FREE_PART_MAX:
            raise UsageError(
                f"{self._directory} has {size_text(free >> 20 << 20)} free, but up to "
                f"{size_text(needed >> 20 << 20)} are needed at once: use another --dir, or a smaller "
                "--max-bytes or --backlog"
            )

    def _start(self, stack: contextlib.ExitStack) -> list[Arm]:
        """Start the workers, all at once, and return the arms that can be measured here.

        Raises:
            HarnessError: No arm can.
        """
        for arm in self._plan.arms:
            if arm != FIO and arm.worker not in self._workers:
                process = WorkerProcess(arm.worker, arm.io, arm.environment, self._logs)
                self._workers[arm.worker] = stack.enter_context(process)
        present = [arm for arm in self._plan.arms if self._is_present(arm)]
        if not any(arm != FIO for arm in present):
            reasons = [*self.outcome.failures, *self.outcome.missing]
            raise HarnessError("\n".join(["no arm can be measured here:", *reasons]))
        if self._can_trace and (why := syscalls.unavailable()):
            self.outcome.missing.append(f"syscalls_per_chunk: {why}")
            self._can_trace = False
        return present

    def _is_present(self, arm: Arm) -> bool:
        self._report(Step(f"trying {arm.label}"))
        try:
            if arm == FIO:
                self._fio = self._make_fio()
            else:
                with run_directory(self._root) as root:
                    case = Case(STORE, self._plan.cases[0].chunk_bytes, 1, 1, 1)
                    self._workers[arm.worker].ask(
                        Request(PROBE, arm.io, str(root), case, arm.checksum), _TIMEOUT_S
                    )
        except HarnessError as error:
            where = self.outcome.missing if arm.optional else self.outcome.failures
            where.append(f"{arm.label}: {error}")
            return False
        return True

    def _make_fio(self) -> Fio:
        smoke = self._plan.limits.smoke
        file_bytes = min(_FIO_FILE_BYTES, self._plan.limits.max_bytes)
        return Fio(self._root, self._logs, file_bytes, 0 if smoke else _FIO_RUNTIME_S)

    def _prepare_files(self, case: Case) -> None:
        """Have the files there that all arms load, once for a chunk size."""
        if not case.loads or self._loaded_chunk_bytes == case.chunk_bytes:
            return
        if self._loaded_chunk_bytes:
            retire(self._load_root)
        self._load_root = self._root / f"loaded-{case.chunk_bytes}"
        self._load_root.mkdir()
        same = [each for each in self._plan.cases if each.loads and each.chunk_bytes == case.chunk_bytes]
        self._loaded_files = max(each.chunks for each in same)
        self._loaded_chunk_bytes = case.chunk_bytes
        self._report(Step(f"writing {self._loaded_files} files of {size_text(case.chunk_bytes)}"))
        arm = next(arm for arm in self._arms if arm != FIO)
        checksum = REQUIRE if arms.wants_seals(self._arms) else arm.checksum
        request = Request(PREPARE, arm.io, str(self._load_root), case, checksum, files=self._loaded_files)
        self._workers[arm.worker].ask(request, _timeout_s(self._loaded_files, case.chunk_bytes))

    def _measure(self, case: Case) -> None:
        """Run all rounds of a case, the arms forwards and backwards in turn, and write its records."""
        taking_part = [arm for arm in self._arms if arm != FIO or self._has_limit(case)]
        answers: dict[Arm, list[Answer]] = {arm: [] for arm in taking_part if arm != FIO}
        limit: list[FioRun] = []
        companions = self._companions(case)
        by_themselves = [arm for arm in taking_part if arm not in companions.values()]
        for number in range(self._plan.runs):
            for arm in by_themselves[:: 1 if number % 2 == 0 else -1]:
                try:
                    if arm == FIO:
                        limit.append(self._measure_limit(case))
                    else:
                        measured = self._measure_arm(case, arm, number, companions.get(arm))
                        for each, answer in measured.items():
                            answers[each].append(answer)
                except HarnessError as error:
                    # The others go on, and what is left of this arm would be no whole set of rounds.
                    self.outcome.failures.append(f"{arm.label}, {case}: {error}")
                    by_themselves.remove(arm)
                    for each in {arm, companions.get(arm, arm)}:
                        answers.pop(each, None)
        for arm, runs in answers.items():
            self._write(case, arm, runs)
            if arm.traced and self._is_traced(case):
                self._count_syscalls(case, arm, runs[-1])
        if FIO in by_themselves and self._fio is not None:
            self._collector.write_limit(case, limit, self._fio)

    def _companions(self, case: Case) -> dict[Arm, Arm]:
        """Return which arms take turns with which in one process, where a case loads chunks."""
        if case.op != LOAD or case.victim:
            return {}
        found = {arm: arms.beside(arm, self._arms) for arm in self._arms}
        return {arm: other for arm, other in found.items() if other is not None}

    def _is_traced(self, case: Case) -> bool:
        if not self._can_trace or case.victim or case.op == MIXED:
            return False
        smoke = self._plan.limits.smoke
        return not smoke or case == next(each for each in self._plan.cases if each.op == case.op)

    def _has_limit(self, case: Case) -> bool:
        """Say whether fio runs beside this case: the first of its operation and chunk size."""
        if case.op == MIXED:
            return False
        same = (each for each in self._plan.cases if each.op == case.op)
        return case == next(each for each in same if each.chunk_bytes == case.chunk_bytes)

    def _measure_limit(self, case: Case) -> FioRun:
        assert self._fio is not None
        self._report(Step(f"{case.op} {size_text(case.chunk_bytes)}: fio", _FIO_RUNTIME_S))
        return self._fio.measure(case.op, case.chunk_bytes)

    def _measure_arm(self, case: Case, arm: Arm, number: int, beside: Arm | None) -> dict[Arm, Answer]:
        self._report(Step(f"{case}: {arm.label}, run {number + 1}", weight_of(case)))
        with self._directory_for(case) as root:
            request = self._request(case, arm, root)
            if beside is None:
                return {arm: self._workers[arm.worker].ask(request, _timeout_of(case))}
            request = dataclasses.replace(request, beside=beside.checksum)
            answer = self._workers[arm.worker].ask(request, _timeout_of(case))
            assert answer.beside is not None, "a worker answers for both"
            return {arm: answer, beside: answer.beside}

    @contextlib.contextmanager
    def _directory_for(self, case: Case) -> Iterator[Path]:
        """Give a run a fresh directory to store into, or the prepared one to load from."""
        if case.loads:
            yield self._load_root
        else:
            with run_directory(self._root) as root:
                yield root

    def _request(self, case: Case, arm: Arm, root: Path, *, traced: bool = False) -> Request:
        self._serial += 1
        return Request(
            MEASURE,
            arm.io,
            str(root),
            case,
            arm.checksum,
            files=self._loaded_files if case.loads else 0,
            existing_leaves=self._plan.existing_leaves,
            traced=traced,
            quiet_disk=not self._plan.limits.smoke,
            victim_s=self._plan.limits.victim_s,
            serial=self._serial,
        )

    def _write(self, case: Case, arm: Arm, runs: Sequence[Answer]) -> None:
        cache = self._collector.write(case, arm, runs)
        if not cache.proven:
            self.outcome.unproven.append(
                f"{arm.label}, {case}: {cache.device_bytes_ratio_min:.0%} of the bytes were seen at the "
                f"device, {cache.resident_before_bytes} bytes were in the page cache before"
            )

        mkdir_us = statistics.median(run.mkdir_cpu_us for run in runs)
        if mkdir_us > _MKDIR_US_MAX:
            self.outcome.slow_directories.append(f"{arm.label}, {case}: {mkdir_us:.0f} us of CPU for each")

    def _count_syscalls(self, case: Case, arm: Arm, run: Answer) -> None:
        """Trace one wave of a case and write how many calls a chunk took."""
        self._report(Step(f"{case}: {arm.label}, system calls", weight_of(case)))
        wave = case.one_wave()
        blocks: list[syscalls.StraceBlock] = []

        def attach(pid: int) -> syscalls.StraceBlock:
            blocks.append(syscalls.StraceBlock(pid, self._logs))
            return blocks[-1]

        try:
            with self._directory_for(wave) as root:
                request = self._request(wave, arm, root, traced=True)
                answer = self._workers[arm.worker].ask_traced(request, 4 * _timeout_of(wave), attach)
        except syscalls.TraceError as error:
            self.outcome.missing.append(f"syscalls_per_chunk: {error}")
            self._can_trace = False
        except HarnessError as error:
            self.outcome.failures.append(f"system calls of {arm.label}, {case}: {error}")
        else:
            self._collector.write_syscalls(case, arm, run, blocks[-1].calls, answer.chunks)


def _timeout_of(case: Case) -> float:
    return _timeout_s(case.chunks + case.backlog_jobs * case.chunks_per_job, case.chunk_bytes)


def _timeout_s(chunks: int, chunk_bytes: int) -> float:
    return _TIMEOUT_S + chunks * chunk_bytes / _BYTES_PER_S_MIN + chunks / _CHUNKS_PER_S_MIN
