"""One target under libFuzzer, native or through atheris: its command, its limits, what its output says."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.fuzz import inputs

# Of one input: much more than any needs, with a sanitizer and on a busy machine.
_TIMEOUT_S: Final = 10
_RSS_MAX_MB: Final = 1024
_ALLOCATION_MAX_MB: Final = 256
# Loading, and the last input.
_GRACE_S: Final = 180.0
_COVERAGE: Final = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)/")
_ENVIRONMENT: Final = {"UBSAN_OPTIONS": "print_stacktrace=1", "PYTHONHASHSEED": "0"}


@dataclass(frozen=True)
class Result:
    """What came of one target's run.

    Attributes:
        name: The target.
        kind: Of its inputs.
        executions: Inputs that were tried.
        executions_per_s: As libFuzzer counts them.
        edges: Places in the code that some input reached; of Python targets, in kvfs's Python code.
        features: Edges with how often they were taken, and comparisons.
        corpus: Inputs that each reached something new.
        peak_rss_mb: The most memory that it had.
        findings: Inputs that broke it.
        problem: What else went wrong; "" for nothing.
        log: All that it said.
    """

    name: str
    kind: str
    executions: int
    executions_per_s: int
    edges: int
    features: int
    corpus: int
    peak_rss_mb: int
    findings: tuple[Path, ...]
    problem: str
    log: Path


@dataclass(frozen=True)
class Fuzzer:
    """A target that libFuzzer runs.

    Attributes:
        name: Of the target.
        kind: Of its inputs, see `inputs.SIZE_MAX_BYTES`.
        command: The program, without libFuzzer's arguments.
    """

    name: str
    kind: str
    command: tuple[str, ...]

    def run(self, seconds: int, out: Path, scratch: Path) -> Result:
        """Fuzz for some seconds, from the seeds and from what earlier runs have kept. Blocks.

        Args:
            seconds: How long.
            out: Gets what is kept: corpus, findings, logs.
            scratch: For the target's own files.
        """
        corpus, findings, log = (
            out / "corpus" / self.name,
            out / "findings" / self.name,
            out / f"{self.name}.log",
        )
        for directory in (corpus, findings):
            directory.mkdir(parents=True, exist_ok=True)
        seeds = [directory / self.kind for directory in (inputs.CORPUS, inputs.REGRESSIONS)]
        before = set(findings.iterdir())
        command = [
            *self.command,
            f"-max_total_time={seconds}",
            f"-max_len={inputs.SIZE_MAX_BYTES[self.kind]}",
            f"-timeout={_TIMEOUT_S}",
            f"-rss_limit_mb={_RSS_MAX_MB}",
            f"-malloc_limit_mb={_ALLOCATION_MAX_MB}",
            f"-artifact_prefix={findings}/",
            "-print_final_stats=1",
            *map(str, [corpus, *(path for path in seeds if path.is_dir())]),
        ]
        problem = ""
        with log.open("w") as output:
            try:
                status = _call(command, scratch, seconds + _GRACE_S, output.fileno())
            except subprocess.TimeoutExpired:
                status, problem = 1, f"did not end {_GRACE_S:.0f} s after its time"
        found = tuple(sorted(set(findings.iterdir()) - before))
        if status != 0 and not found and not problem:
            problem = f"ended with status {status} and without an input that broke it"
        return _result(self, log, found, problem)

    def replay(self, path: Path, scratch: Path) -> int:
        """Run one input; return the status of the program. Blocks."""
        return _call([*self.command, str(path.resolve())], scratch, _GRACE_S, None)


def _call(command: Sequence[str], scratch: Path, timeout_s: float, output: int | None) -> int:
    env = {**os.environ, **_ENVIRONMENT, "TMPDIR": str(scratch)}
    run = subprocess.run(
        command, env=env, stdout=output, stderr=output, cwd=inputs.ROOT, timeout=timeout_s, check=False
    )
    return run.returncode


def _result(fuzzer: Fuzzer, log: Path, findings: tuple[Path, ...], problem: str) -> Result:
    text = log.read_text(errors="replace")
    stats = {name: int(value) for name, value in re.findall(r"stat::(\w+):\s+(\d+)", text)}
    edges, features, corpus = map(int, ([("0", "0", "0"), *_COVERAGE.findall(text)])[-1])
    executions = stats.get("number_of_executed_units", 0)
    if not executions and not problem and not findings:
        problem = "tried no input"
    return Result(
        fuzzer.name,
        fuzzer.kind,
        executions,
        stats.get("average_exec_per_sec", 0),
        edges,
        features,
        corpus,
        stats.get("peak_rss_mb", 0),
        findings,
        problem,
        log,
    )


def table(results: Sequence[Result]) -> str:
    """Return the results as a table for the terminal."""
    head = ("target", "executions", "per s", "edges", "features", "corpus", "peak MB", "findings")
    rows = [
        (
            result.name,
            f"{result.executions:,}",
            f"{result.executions_per_s:,}",
            f"{result.edges:,}",
            f"{result.features:,}",
            f"{result.corpus:,}",
            f"{result.peak_rss_mb:,}",
            "failed" if result.problem else str(len(result.findings)),
        )
        for result in results
    ]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    )
