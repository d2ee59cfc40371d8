"""Ask one server all documents, pass by pass, and record what it answered and where its tokens came from."""

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness import vllm_metrics
from harness.accuracy import lm_eval
from harness.accuracy.lm_eval import AccuracyResult, Questions
from harness.accuracy.plan import Pass, Plan, Stage
from harness.arms import TOKENS_PER_CHUNK
from harness.damage import damage_share, repair
from harness.errors import HarnessError
from harness.plan import DAMAGED
from harness.records import Env, RecordLog, Scalar, measured
from harness.server import MODEL_NAME
from harness.tools import Tool
from harness.vllm_metrics import Traffic

SUITE: Final = "accuracy"
# Of figures that belong to a pass as a whole.
ALL_TASKS: Final = "all tasks"
_RESET_TIMEOUT_S: Final = 60.0
_RESET_POLL_S: Final = 0.3
_REQUEST_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True)
class Subject:
    """The server that is asked.

    Attributes:
        stage: What it is started for.
        base_url: Where it answers.
        root_dir: Of its disk tier.
        env: What its records say about machine, software and run.
    """

    stage: Stage
    base_url: str
    root_dir: Path
    env: Env


class Asker:
    """Ask servers the documents of a plan; the first one's answers are what the others are compared with.

    Args:
        plan: What to ask.
        damaged_share: Of the chunks, how many a control damages, 0 to 1.
        tool: lm-eval.
        tokenizer: Directory of the model's tokenizer.
        raw_dir: lm-eval's samples go here.
        log: Gets the records.
    """

    def __init__(
        self, plan: Plan, damaged_share: float, tool: Tool, tokenizer: Path, raw_dir: Path, log: RecordLog
    ) -> None:
        self._plan = plan
        self._damaged_share = damaged_share
        self._tool = tool
        self.tokenizer = tokenizer
        self._raw_dir = raw_dir
        self._log = log
        # By task.
        self.baseline: dict[str, AccuracyResult] = {}
        self.prompts: dict[str, list[str]] = {}

    def ask(self, subject: Subject, which: Pass, *, forget: bool) -> None:
        """Make one pass; for a control damage chunks before it, and repair them after it.

        Args:
            subject: The server.
            which: The pass.
            forget: Have host memory dropped first, so that what was asked before comes from disk again.

        Raises:
            HarnessError: The server or lm-eval failed.
        """
        is_control = which.phase == DAMAGED
        damaged = []
        if is_control:
            seed = self._plan.seed + which.repetition
            damaged = damage_share(subject.root_dir, self._damaged_share, seed)
        try:
            if forget:
                forget_host_memory(subject.base_url)
            before = vllm_metrics.settle(subject.base_url)
            results = {asked: self._answers(subject, which, asked) for asked in self._plan.questions}
            after = vllm_metrics.settle(subject.base_url)
        finally:
            repair(damaged)
        for asked, result in results.items():
            self._record_answers(subject, which, asked, result)
        traffic = vllm_metrics.traffic(before, after, TOKENS_PER_CHUNK)
        self._record_traffic(subject, which, traffic, len(damaged))

    def _answers(self, subject: Subject, which: Pass, asked: Questions) -> AccuracyResult:
        name = f"{subject.stage.name}-{which.phase}{which.repetition}-{asked.task}.lm-eval.jsonl"
        output = self._raw_dir / name
        result = lm_eval.run(self._tool, subject.base_url, MODEL_NAME, self.tokenizer, asked, output)
        if asked.task not in self.baseline:
            self.baseline[asked.task] = result
            self.prompts[asked.task] = lm_eval.read_prompts(output)
        return result

    def _record_answers(
        self, subject: Subject, which: Pass, asked: Questions, result: AccuracyResult
    ) -> None:
        prefix = _prefix(which)
        case = _case(subject, which, asked.task, self._plan.n_threads)
        case = {**case, "inputs": result.documents}
        self.record(subject, case, f"{prefix}accuracy", result.scores)
        if result.strict_scores:
            strict = {**case, "task": f"{asked.task}, strict"}
            self.record(subject, strict, f"{prefix}accuracy", result.strict_scores)
        baseline = self.baseline[asked.task]
        if subject.stage.arm.offloads and result.prompts == baseline.prompts:
            same = [
                float(ours == theirs) for ours, theirs in zip(result.answers, baseline.answers, strict=True)
            ]
            self.record(subject, case, f"{prefix}answers_identical", same)

    def _record_traffic(self, subject: Subject, which: Pass, traffic: Traffic, damaged: int) -> None:
        case = _case(subject, which, ALL_TASKS, self._plan.n_threads)
        figures: dict[str, float] = {"tier_hit_tokens": traffic.tier_hit_tokens}
        if traffic.damaged_chunks is not None:
            figures["damaged_chunks"] = traffic.damaged_chunks
        if which.phase == DAMAGED:
            figures |= {"damaged_files": damaged, "failed_jobs": traffic.failed_jobs}
        else:
            figures |= {
                "host_hit_tokens": traffic.host_hit_tokens,
                "computed_tokens": traffic.computed_tokens,
                "tier_failed_jobs": traffic.failed_jobs,
            }
        for metric, value in figures.items():
            self.record(subject, case, f"{_prefix(which)}{metric}", [value])

    def record(
        self, subject: Subject, case: Mapping[str, Scalar], metric: str, values: Iterable[float]
    ) -> None:
        """Append a record about a server."""
        self._log.append(measured(SUITE, case, subject.stage.arm.name, metric, values, subject.env))


def _prefix(which: Pass) -> str:
    return "control_" if which.phase == DAMAGED else ""


def _case(subject: Subject, which: Pass, task: str, n_threads: int) -> dict[str, Scalar]:
    return {
        "phase": which.phase,
        "streams": lm_eval.CONCURRENCY,
        "threads": n_threads if subject.stage.arm.offloads else 0,
        "task": task,
        "checksums": subject.stage.checksums,
        "repetition": which.repetition,
    }


def forget_host_memory(base_url: str) -> None:
    """Have a server's primary tier dropped; the disk tier keeps what it has.

    Raises:
        HarnessError: The server refuses, or does not manage it in time.
    """
    url = f"{base_url}/reset_prefix_cache?reset_external=true"
    deadline = time.monotonic() + _RESET_TIMEOUT_S
    while True:
        try:
            request = urllib.request.Request(url, method="POST")
            with urllib.request.urlopen(request, timeout=_REQUEST_TIMEOUT_S) as response:
                done = json.loads(response.read())["success"]
        except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError, LookupError) as error:
            raise HarnessError(
                f"the server did not drop its host memory ({url}: {error}); does this vLLM still offer that "
                "where VLLM_SERVER_DEV_MODE is 1?"
            ) from error
        if done:
            return
        # Chunks are still on their way.
        if time.monotonic() > deadline:
            raise HarnessError(f"the server did not drop its host memory within {_RESET_TIMEOUT_S:.0f} s")
        time.sleep(_RESET_POLL_S)
