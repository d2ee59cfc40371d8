"""Drive a server with guidellm and read what each request saw."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from harness.errors import HarnessError, OutputShapeError
from harness.tools import Tool

TASK: Final = "guidellm"
# guidellm spreads its streams over as many processes, each of which takes seconds to start; one process
# serves some streams as well. The delay is what it waits for them.
ENVIRONMENT: Final = {
    "GUIDELLM__MAX_WORKER_PROCESSES": "1",
    "GUIDELLM__SCHEDULER_START_DELAY_NON_DISTRIBUTED": "0.3",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
}
# Two prompts that agree in so many characters begin with the same prefix.
_PREFIX_CHARACTERS: Final = 1000


class LoadError(HarnessError):
    """Requests failed, so that the rest of the figures mean nothing."""


@dataclass(frozen=True)
class Workload:
    """Conversations that begin with one of several long prefixes.

    Attributes:
        prefix_tokens: Length of a prefix.
        prefix_count: How many prefixes there are to draw from.
        prompt_tokens: What each turn adds.
        output_tokens: What the model answers to each.
        turns: Requests a conversation.
        conversations: How many are held; with `turns`, the number of requests.
        spread: Lengths that vary, under guidellm's own names such as `prompt_tokens_min`.
        duration_s: After which no conversation is held any more; 0 is never.
    """

    prefix_tokens: int
    prefix_count: int
    prompt_tokens: int
    output_tokens: int
    turns: int
    conversations: int
    spread: Mapping[str, int] = field(default_factory=dict)
    duration_s: float = 0.0

    @property
    def requests(self) -> int:
        """Requests in all."""
        return self.conversations * self.turns

    @property
    def conversation_tokens(self) -> int:
        """Length of the longest conversation at its end."""
        prompt = self._longest("prompt_tokens", self.prompt_tokens)
        first = self._longest("first_prompt_tokens", prompt)
        output = self._longest("output_tokens", self.output_tokens)
        return self.prefix_tokens + first + (self.turns - 1) * prompt + self.turns * output

    def _longest(self, name: str, mean: int) -> int:
        """Return the most tokens that guidellm makes of a length: its bound, or five deviations."""
        mean = self.spread.get(name, mean)
        return self.spread.get(f"{name}_max", mean + 5 * self.spread.get(f"{name}_stdev", 0))

    def as_data(self) -> str:
        """Return guidellm's `--data` for it."""
        return json.dumps(
            {
                "kind": "synthetic_text",
                "prompt_tokens": self.prompt_tokens,
                "output_tokens": self.output_tokens,
                "turns": self.turns,
                **self.spread,
                "prefix_buckets": [
                    {
                        "bucket_weight": 100,
                        "prefix_count": self.prefix_count,
                        "prefix_tokens": self.prefix_tokens,
                    }
                ],
            }
        )


@dataclass(frozen=True)
class LoadResult:
    """What the requests of one run saw.

    Attributes:
        ttft_ms_by_turn: Turn (from 1) to the time to first token of each of its requests.
        requests_per_s: Over the whole run.
        output_tokens_per_s: Over the whole run.
        total_tokens_per_s: Of prompts and answers, over the whole run.
        request_latency_ms: From sending to the last token, of each request.
        inter_token_latency_ms: Mean of each request with more than one token.
        prompts: A digest of the conversations' first prompts: equal ones asked the same. A run that its
            time ended has no set of prompts, and says that instead.
        shared_prefixes: First prompts whose prefix another first prompt had before.
    """

    ttft_ms_by_turn: Mapping[int, Sequence[float]]
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    request_latency_ms: Sequence[float]
    inter_token_latency_ms: Sequence[float]
    prompts: str
    shared_prefixes: int


def command_line(
    base_url: str, tokenizer: Path, workload: Workload, streams: int, seed: int, output: Path
) -> list[str]:
    """Return guidellm's arguments for one run; `guidellm` before them makes a command for the shell."""
    backend = {
        "kind": "openai_http",
        "target": base_url,
        "request_format": "/v1/completions",
        # The answers become part of the next turn's prompt, so they must not be drawn at random.
        "extras": {"body": {"temperature": 0}},
    }
    return [
        "run",
        "--backend",
        json.dumps(backend),
        "--profile",
        f"kind=concurrent,streams={streams}",
        "--constraint",
        f"kind=max_requests,count={workload.requests}",
        *(
            ["--constraint", f"kind=max_duration,seconds={workload.duration_s}"]
            if workload.duration_s
            else []
        ),
        "--seed",
        f"kind=static,value={seed}",
        "--tokenizer",
        f"kind=hf_auto,model={tokenizer}",
        "--data",
        workload.as_data(),
        # All data is made before the first request: by default guidellm makes thousands of prompts more
        # than are asked for, at the same time as it measures.
        "--data-loader",
        f"kind=pytorch,samples={workload.conversations},prefetch_factor=2",
        "--output",
        f"kind=json,path={output}",
        "--disable-console",
    ]


def run(
    tool: Tool,
    base_url: str,
    tokenizer: Path,
    workload: Workload,
    streams: int,
    seed: int,
    output: Path,
    timeout_s: float = 900.0,
) -> LoadResult:
    """Hold the workload's conversations with a server.

    Args:
        tool: guidellm.
        base_url: The server's address.
        tokenizer: Directory of the model's tokenizer.
        workload: What to ask.
        streams: How many conversations at a time.
        seed: Equal seeds ask the same, different ones share no prefix.
        output: guidellm's own result goes here.
        timeout_s: After which the run has failed.

    Raises:
        ToolError: guidellm failed.
        LoadError: Requests failed.
        OutputShapeError: guidellm's result is not as its pinned version writes it.
    """
    argv = command_line(base_url, tokenizer, workload, streams, seed, output)
    tool.run({"argv": argv}, timeout_s)
    return parse(output, workload)


def parse(path: Path, workload: Workload) -> LoadResult:
    """Read guidellm's JSON.

    guidellm 0.8 tells its end before it hands over the last answer, so that it now and then misses the one
    that came last, always a last turn. Such a run counts: every first turn is there, and what is missing is
    missing in requests and time alike. Requests that the end of a run's time has cut off are left out.

    Raises:
        LoadError: A request failed, or more than one has no record.
        OutputShapeError: The file is not as guidellm 0.8 writes it.
    """
    try:
        report = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
        (benchmark,) = report["benchmarks"]
        outcomes = benchmark["requests"]
        succeeded = cast("list[dict[str, Any]]", outcomes["successful"])
        unfinished = cast("list[dict[str, Any]]", outcomes["incomplete"])
        duration_s = float(benchmark["duration"])
        # Only the end of its time leaves more than the one answer out that guidellm may miss.
        cut = 0 < workload.duration_s <= duration_s + 1 and len(succeeded) < workload.requests - 1
        failed = [*outcomes["errored"], *([] if cut else unfinished)]
        errors = Counter(str(request["info"]["error"]) for request in failed)
        by_turn: dict[int, list[float]] = {}
        latencies_ms = []
        gaps_ms = []
        output_tokens = total_tokens = 0
        first_prompts = []
        for request in succeeded:
            turn = int(request["info"]["turn_index"]) + 1
            by_turn.setdefault(turn, []).append(float(request["time_to_first_token_ms"]))
            latencies_ms.append(1e3 * float(request["request_latency"]))
            output_tokens += int(request["output_tokens"])
            total_tokens += int(request["total_tokens"])
            if request["inter_token_latency_ms"] is not None:
                gaps_ms.append(float(request["inter_token_latency_ms"]))
            if turn == 1:
                first_prompts.append(str(json.loads(request["request_args"])["body"]["prompt"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputShapeError(
            f"{path} is not a result of guidellm 0.8 ({type(error).__name__}: {error}); install the pinned "
            "version, or adapt harness/load.py to the new one"
        ) from error
    complete = len(by_turn.get(1, ())) == workload.conversations and len(succeeded) >= workload.requests - 1
    if failed or not (complete or (cut and succeeded)):
        reasons = "; ".join(f"{count} times {error}" for error, count in errors.most_common(3)) or "no reason"
        raise LoadError(
            f"guidellm: {len(succeeded)} of {workload.requests} requests succeeded ({reasons}); all of it is "
            f"in {path}"
        )
    prefixes = {prompt[:_PREFIX_CHARACTERS] for prompt in first_prompts}
    return LoadResult(
        ttft_ms_by_turn={turn: by_turn[turn] for turn in sorted(by_turn)},
        requests_per_s=len(succeeded) / duration_s,
        output_tokens_per_s=output_tokens / duration_s,
        total_tokens_per_s=total_tokens / duration_s,
        request_latency_ms=latencies_ms,
        inter_token_latency_ms=gaps_ms,
        prompts=f"what {workload.duration_s:g} s held" if cut else _digest(first_prompts),
        shared_prefixes=len(first_prompts) - len(prefixes),
    )


def _digest(prompts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(sorted(prompts)).encode()).hexdigest()[:12]
