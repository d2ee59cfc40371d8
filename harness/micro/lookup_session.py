"""Look keys up through every tier, interleaved, a process per run; then ask kvfs the questions of scale."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from harness import environment, storage
from harness.errors import HarnessError, UsageError
from harness.micro.cases import SUITE, size_text
from harness.micro.directories import own_directory
from harness.micro.lookup_cases import (
    CHUNK_BYTES,
    INDEX,
    OWNER,
    START,
    UNITS,
    Contender,
    LookupCase,
    LookupPlan,
    ScaleCase,
)
from harness.micro.lookup_requests import (
    GAPS,
    MEASURE,
    PREPARE,
    PREPARE_SCALE,
    PROBE,
    RESTART,
    LookupAnswer,
    LookupRequest,
    parse_answer,
)
from harness.micro.lookup_requests import INDEX as INDEX_RUN
from harness.micro.lookup_requests import START as START_RUN
from harness.micro.session import Outcome, Step
from harness.micro.worker_process import WorkerProcess
from harness.records import Record, RecordLog, Scalar

WORKER: Final = "lookup"
_TIMEOUT_S: Final = 180.0
# The slowest disk that is waited for.
_FILES_PER_S_MIN: Final = 50
# A file is a page, and has one or two directories nearly for itself.
_BYTES_PER_FILE: Final = 3 * CHUNK_BYTES
_INODES_PER_FILE: Final = 3
_FREE_PART_MAX: Final = 0.9
# What runs weigh, about their seconds.
_START_WEIGHT: Final = 0.2
_WEIGHT_PER_KEY: Final = 5e-6
_WEIGHT_PER_FILE: Final = 2e-5
_WEIGHT_PER_INDEXED_KEY: Final = 5e-7


class LookupSession:
    """One worker, the files to be found, and the records of all lookups.

    Args:
        plan: What to do.
        directory: Gets the files, in a directory of its own that is removed.
        out: Gets the worker's log.
        log: Gets the records.
        report: Called before each step.
    """

    def __init__(
        self, plan: LookupPlan, directory: Path, out: Path, log: RecordLog, report: Callable[[Step], None]
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._logs = out / "logs"
        self._report = report
        self._contenders = list(plan.contenders)
        self._serial = 0
        self.log = log
        self.outcome = Outcome()

    @property
    def cases(self) -> Sequence[LookupCase | ScaleCase]:
        """What is measured, in order."""
        return [*self._plan.cases, *self._plan.scale]

    @property
    def weight(self) -> float:
        """What all steps weigh together; less, once it is known who is missing here."""
        rounds = self._plan.runs * len(self._contenders)
        lookups = sum(_weight_of(case) for case in self._plan.cases) * rounds
        return lookups + sum(_scale_weight(case) * self._plan.runs for case in self._plan.scale)

    def run(self, on_case: Callable[[object], None]) -> Outcome:
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
            self._env = environment.machine(self._root) | {
                "runs": self._plan.runs,
                "names": "cached by the kernel",
            }
            self._dir_fs = storage.mount_of(self._root).filesystem
            self._worker = stack.enter_context(WorkerProcess(WORKER, WORKER, {}, self._logs))
            if self._plan.cases:
                self._contenders = self._present()
                self._prepare(PREPARE, "looked-up", self._plan.files)
            for case in self._plan.cases:
                self._measure(case)
                on_case(case)
            for question in self._plan.scale:
                self._measure_scale(question)
                on_case(question)
        return self.outcome

    def _require_space(self) -> None:
        """Refuse to start what does not fit.

        Raises:
            UsageError: Says how much is needed and what to change.
        """
        files = self._plan.files + sum(case.keys for case in self._plan.scale if case.op == START)
        free = shutil.disk_usage(self._root).free
        if files * _BYTES_PER_FILE > free * _FREE_PART_MAX:
            raise UsageError(
                f"{self._directory} has {size_text(free >> 20 << 20)} free, but {files} small files take up "
                f"to {size_text(files * _BYTES_PER_FILE >> 20 << 20)}: use another --dir or a smaller --scale"
            )
        inodes = os.statvfs(self._root)
        # Some file systems have no fixed number, and say 0.
        if inodes.f_files and files * _INODES_PER_FILE > inodes.f_favail * _FREE_PART_MAX:
            raise UsageError(
                f"{self._directory} has {inodes.f_favail} inodes free, but {files} files and their "
                f"directories take up to {files * _INODES_PER_FILE}: use another --dir or a smaller --scale"
            )

    def _present(self) -> list[Contender]:
        """Try each contender once; return those that can be measured here.

        Raises:
            HarnessError: None can.
        """
        present = []
        for contender in self._contenders:
            self._report(Step(f"trying lookups of {contender.label}"))
            root = tempfile.mkdtemp(prefix="probe-", dir=self._root)
            try:
                self._ask(LookupRequest(PROBE, root, contender.tier, contender.mode, contender.io))
            except HarnessError as error:
                self.outcome.failures.append(f"{contender.label}, lookup: {error}")
            else:
                present.append(contender)
        if not present:
            raise HarnessError("\n".join(["no lookup can be measured here:", *self.outcome.failures]))
        return present

    def _prepare(self, kind: str, name: str, files: int) -> None:
        self._report(Step(f"making {files} files of {size_text(CHUNK_BYTES)}"))
        root = self._root / name
        root.mkdir()
        # No tier makes them: all find the same.
        request = LookupRequest(kind, str(root), "fs", "stock", "stock", files=files)
        self._ask(request, _TIMEOUT_S + files / _FILES_PER_S_MIN)

    def _ask(self, request: LookupRequest, timeout_s: float = _TIMEOUT_S) -> LookupAnswer:
        return parse_answer(self._worker.exchange(request.line(), timeout_s))

    def _measure(self, case: LookupCase) -> None:
        """Run all rounds of a case, the contenders forwards and backwards in turn; write its records."""
        taking_part = list(self._contenders)
        answers: dict[Contender, list[LookupAnswer]] = {each: [] for each in taking_part}
        for number in range(self._plan.runs):
            for contender in taking_part[:: 1 if number % 2 == 0 else -1]:
                self._report(Step(f"{case}: {contender.label}, run {number + 1}", _weight_of(case)))
                try:
                    answers[contender].append(self._ask(self._request(case, contender)))
                except HarnessError as error:
                    # The others go on, and what is left of this one would be no whole set of rounds.
                    self.outcome.failures.append(f"{contender.label}, {case}: {error}")
                    taking_part.remove(contender)
                    answers.pop(contender)
        for contender, runs in answers.items():
            io = str(runs[-1].facts.get("io_engine", contender.io))
            self._write(case.key(contender, io, self._dir_fs), contender.arm, runs)

    def _request(self, case: LookupCase, contender: Contender) -> LookupRequest:
        self._serial += 1
        return LookupRequest(
            MEASURE,
            str(self._root / "looked-up"),
            contender.tier,
            contender.mode,
            contender.io,
            files=self._plan.files,
            keys=case.keys,
            present=case.present,
            requests=2 if self._plan.smoke else case.requests,
            step_s=self._plan.step_s,
            chunks_per_job=case.chunks_per_job,
            serial=self._serial,
        )

    def _measure_scale(self, case: ScaleCase) -> None:
        """Ask a question of scale once a round; write what was answered before a failure, too."""
        root = self._root / "scale"
        kinds = [INDEX_RUN]
        if case.op == START:
            kinds = [START_RUN, RESTART, GAPS]
            self._prepare(PREPARE_SCALE, root.name, case.keys)
        answers: dict[str, list[LookupAnswer]] = {kind: [] for kind in kinds}
        engine = next((each for each in self._plan.contenders if each.arm == "kvfs"), None)
        io = engine.io if engine is not None else "auto"
        try:
            for number in range(self._plan.runs):
                for kind in kinds:
                    self._report(Step(f"{case}: {kind}, run {number + 1}", _scale_weight(case) / len(kinds)))
                    request = LookupRequest(
                        kind,
                        str(root),
                        "kvfs",
                        OWNER,
                        io,
                        files=case.keys,
                        keys=case.keys,
                        victim_s=self._plan.victim_s,
                    )
                    answers[kind].append(self._ask(request, _TIMEOUT_S + case.keys * _WEIGHT_PER_FILE * 10))
        except HarnessError as error:
            self.outcome.failures.append(f"kvfs, {case}: {error}")
        for runs in answers.values():
            if runs:
                self._write(self._scale_key(case, runs[-1]), "kvfs", runs)

    def _scale_key(self, case: ScaleCase, answer: LookupAnswer) -> dict[str, Scalar]:
        if case.op == INDEX:
            return case.key("", "none", "none")
        return case.key(OWNER, str(answer.facts["io_engine"]), self._dir_fs)

    def _write(self, key: Mapping[str, Scalar], arm: str, runs: Sequence[LookupAnswer]) -> None:
        jobs = [run.facts["jobs_left_at_verdict"] for run in runs if "jobs_left_at_verdict" in run.facts]
        env = {**self._env, **runs[-1].facts, **({"jobs_left_at_verdict": jobs} if jobs else {})}
        for metric in runs[-1].metrics:
            unit, better = UNITS[metric]
            values = [value for run in runs for value in run.metrics[metric]]
            self.log.append(Record(SUITE, key, arm, metric, unit, better, values, env))


def _weight_of(case: LookupCase) -> float:
    return _START_WEIGHT + case.requests * case.keys * _WEIGHT_PER_KEY


def _scale_weight(case: ScaleCase) -> float:
    if case.op == INDEX:
        return _START_WEIGHT + case.keys * _WEIGHT_PER_INDEXED_KEY
    return 3 * (_START_WEIGHT + case.keys * _WEIGHT_PER_FILE)
