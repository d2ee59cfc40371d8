"""Measure one server: its load phases, its answers, and where its prompt tokens came from."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from harness import completions, load, vllm_metrics
from harness.accuracy import lm_eval
from harness.accuracy.lm_eval import AccuracyResult, Questions
from harness.arms import TOKENS_PER_CHUNK
from harness.damage import damage_chunks
from harness.plan import DAMAGED, Plan
from harness.progress import Progress
from harness.records import Env, RecordLog, Scalar, measured
from harness.tools import Tool
from harness.vllm_metrics import Traffic

SUITE: Final = "bench"
_WARM_UP_TOKENS: Final = 4
Result = TypeVar("Result")


@dataclass(frozen=True)
class Tools:
    """What measures.

    Attributes:
        guidellm: Loaded, or loading.
        lm_eval: The same; None when no task is asked for.
        tokenizer: Directory of the model's tokenizer.
        raw_dir: The tools' own results go here.
    """

    guidellm: Tool
    lm_eval: Tool | None
    tokenizer: Path
    raw_dir: Path


@dataclass(frozen=True)
class Subject:
    """The server that is measured.

    Attributes:
        arm: Name of its arm.
        n_threads: Of its disk tier.
        title: What to call it on the terminal.
        name: What to call its files.
        base_url: Where it answers.
        model_name: What it calls its model.
        has_metrics: Whether it has vLLM's metrics; another server has times alone.
        root_dir: Of its disk tier; None where that is unknown.
        storage_read_bytes: Tells what its processes have read from storage; None where that is unknown.
        env: What its records say about machine, software and run.
    """

    arm: str
    n_threads: int
    title: str
    name: str
    base_url: str
    model_name: str
    has_metrics: bool
    storage_read_bytes: Callable[[], int] | None
    root_dir: Path | None
    env: Env


class Phases:
    """The measurements of one server, each a step of the run and some records.

    Args:
        subject: The server.
        plan: What to ask it.
        tools: What asks.
        log: Gets the records.
        progress: Is told about each step.
    """

    def __init__(
        self, subject: Subject, plan: Plan, tools: Tools, log: RecordLog, progress: Progress
    ) -> None:
        self._subject = subject
        self._plan = plan
        self._tools = tools
        self._log = log
        self._progress = progress

    def warm_up(self) -> None:
        """Have the server do once, on a prompt that nobody asks again, all that a phase will do.

        The first prompt of a length makes the libraries prepare their kernels for it, which takes longer than
        to compute it. The second answer comes from host memory where there is a tier.
        """
        subject = self._subject
        with self._progress.step(f"{subject.title}: warm up"):
            prompt = completions.unseen_prompt(self._plan.workload.prefix_tokens)
            for _ in range(2):
                completions.complete(subject.base_url, subject.model_name, prompt, _WARM_UP_TOKENS)

    def load(self, phase: str, streams: int) -> None:
        """Hold the workload's conversations; records of what the requests saw and where tokens came from."""
        subject = self._subject
        title = f"{subject.title}: {phase}, {streams} stream{'s' if streams > 1 else ''}"
        output = self._tools.raw_dir / f"{subject.name}-{phase}-s{streams}.guidellm.json"
        with self._progress.step(title):
            result, traffic, read_bytes = observe(
                subject,
                lambda: load.run(
                    self._tools.guidellm,
                    subject.base_url,
                    self._tools.tokenizer,
                    self._plan.workload,
                    streams,
                    self._plan.seed_for(streams),
                    output,
                ),
            )
        case: dict[str, Scalar] = {
            "phase": phase,
            "streams": streams,
            "threads": subject.n_threads,
            "task": load.TASK,
            "inputs": result.prompts,
        }
        self._record(case, "requests_per_s", [result.requests_per_s])
        self._record(case, "output_tokens_per_s", [result.output_tokens_per_s])
        for turn, values in result.ttft_ms_by_turn.items():
            self._record({**case, "turn": turn}, "ttft_ms", values)
        self._record(case, "shared_prefixes", [result.shared_prefixes])
        self._record_traffic(case, traffic, read_bytes)

    def accuracy(self, phase: str, asked: Questions) -> None:
        """Ask a task's documents; records of every score and of where tokens came from."""
        subject, tool = self._subject, self._tools.lm_eval
        assert tool is not None
        output = self._tools.raw_dir / f"{subject.name}-{phase}-{asked.task}.lm-eval.jsonl"
        with self._progress.step(f"{subject.title}: {phase}, {asked.task}"):
            result, traffic, read_bytes = observe(
                subject,
                lambda: lm_eval.run(
                    tool,
                    subject.base_url,
                    subject.model_name,
                    self._tools.tokenizer,
                    asked,
                    output,
                ),
            )
        answers = result.part(0, self._documents_of(asked.task))
        case = self._accuracy_case(phase, asked.task, answers)
        self._record(case, "accuracy", answers.scores)
        self._record_traffic(case, traffic, read_bytes)
        control = result.part(len(answers.scores), self._plan.control)
        if control.scores:
            self._record_control(phase, asked, control)

    def control(self, asked: Questions) -> None:
        """Damage all chunks on disk and ask documents of which host memory has none."""
        subject, tool = self._subject, self._tools.lm_eval
        assert tool is not None
        assert subject.root_dir is not None
        output = self._tools.raw_dir / f"{subject.name}-{DAMAGED}-{asked.task}.lm-eval.jsonl"
        with self._progress.step(f"{subject.title}: {DAMAGED}, {asked.task}"):
            damaged = damage_chunks(subject.root_dir)
            result, traffic, _ = observe(
                subject,
                lambda: lm_eval.run(
                    tool,
                    subject.base_url,
                    subject.model_name,
                    self._tools.tokenizer,
                    asked,
                    output,
                ),
            )
        case = self._record_control(DAMAGED, asked, result)
        self._record(case, "control_damaged_files", [damaged])
        if traffic is not None:
            self._record(case, "control_tier_hit_tokens", [traffic.tier_hit_tokens])
            self._record(case, "control_failed_jobs", [traffic.failed_jobs])
            if traffic.damaged_chunks is not None:
                self._record(case, "control_damaged_chunks", [traffic.damaged_chunks])

    def _documents_of(self, task: str) -> int:
        return next(asked.documents for asked in self._plan.questions if asked.task == task)

    def _record_control(self, phase: str, asked: Questions, result: AccuracyResult) -> dict[str, Scalar]:
        case = self._accuracy_case(phase, f"{asked.task}, control", result)
        self._record(case, "control_accuracy", result.scores)
        return case

    def _accuracy_case(self, phase: str, task: str, result: AccuracyResult) -> dict[str, Scalar]:
        return {
            "phase": phase,
            "streams": lm_eval.CONCURRENCY,
            "threads": self._subject.n_threads,
            "task": task,
            "inputs": result.documents,
        }

    def _record_traffic(
        self, case: Mapping[str, Scalar], traffic: Traffic | None, read_bytes: int | None
    ) -> None:
        for metric, value in traffic_metrics(traffic, read_bytes):
            self._record(case, metric, [value])

    def _record(self, case: Mapping[str, Scalar], metric: str, values: Iterable[float]) -> None:
        self._log.append(measured(SUITE, case, self._subject.arm, metric, values, self._subject.env))


def observe(subject: Subject, measure: Callable[[], Result]) -> tuple[Result, Traffic | None, int | None]:
    """Measure, and say what vLLM's counters and the kernel's saw meanwhile.

    Returns:
        The measurement's own result, what vLLM counted, and what the server's processes had read from
        storage; the last two are None where they are unknown.
    """
    before = vllm_metrics.settle(subject.base_url) if subject.has_metrics else None
    read_before = subject.storage_read_bytes() if subject.storage_read_bytes else None
    result = measure()
    traffic = None
    if before is not None:
        traffic = vllm_metrics.traffic(before, vllm_metrics.settle(subject.base_url), TOKENS_PER_CHUNK)
    read_bytes = None
    if read_before is not None and subject.storage_read_bytes:
        read_bytes = subject.storage_read_bytes() - read_before
    return result, traffic, read_bytes


def traffic_metrics(traffic: Traffic | None, read_bytes: int | None) -> Iterator[tuple[str, float]]:
    """Yield the metrics, and their values, of what `observe` saw beside the measurement."""
    if traffic is not None:
        yield "tier_hit_tokens", traffic.tier_hit_tokens
        yield "host_hit_tokens", traffic.host_hit_tokens
        yield "computed_tokens", traffic.computed_tokens
        yield "tier_read_bytes", traffic.read_bytes
        yield "tier_write_bytes", traffic.write_bytes
        yield "tier_failed_jobs", traffic.failed_jobs
        if traffic.retried_lookups is not None:
            yield "tier_retried_lookups", traffic.retried_lookups
        if traffic.engine_steps is not None:
            yield "engine_steps", traffic.engine_steps
    if read_bytes is not None:
        yield "storage_read_bytes", read_bytes
