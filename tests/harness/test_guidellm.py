"""Test what the harness asks of guidellm, and reads from it, with guidellm's own mock server."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness import load
from harness.load import LoadError, LoadResult, Workload
from harness.processes import GuardedProcess
from harness.server import free_port, is_healthy
from harness.tools import Tool, ToolError

TTFT_MS = 120.0
GAP_MS = 20.0
START_TIMEOUT_S = 200.0
RUN_TIMEOUT_S = 60.0
WORKLOAD = Workload(
    prefix_tokens=256, prefix_count=4, prompt_tokens=32, output_tokens=6, turns=3, conversations=4
)

# Each of the three processes imports for ten seconds and more.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Parts:
    """What the tests of this module share: guidellm, loaded, and the addresses of two of its servers."""

    guidellm: Tool
    address: str
    failing: str


@contextmanager
def mock_server(directory: Path, *options: str) -> Iterator[tuple[GuardedProcess, str]]:
    """Run guidellm's server while the block lasts; yield it and its address, where it does not answer yet."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "guidellm", "mock-server", "--host=127.0.0.1", f"--port={port}"),
        *(f"--ttft-ms={TTFT_MS}", f"--itl-ms={GAP_MS}", *options),
    ]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TMPDIR": str(directory)}
    with GuardedProcess(command, log_path=directory / "mock.log", env=env, cwd=directory) as process:
        yield process, f"http://127.0.0.1:{port}"
        process.kill()


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    made = tmp_path_factory.mktemp
    with (
        Tool("guidellm", made("tool"), load.ENVIRONMENT) as tool,
        mock_server(made("mock")) as good,
        mock_server(made("failing"), "--fail-after-requests=5") as failing,
    ):
        assert tool.version() == "0.8.1", "the pinned version, which the parsers are written for"
        deadline = time.monotonic() + START_TIMEOUT_S
        for process, address in (good, failing):
            while not is_healthy(address):
                assert process.poll() is None, process.tail()
                assert time.monotonic() < deadline, process.tail()
                time.sleep(0.1)
        yield Parts(tool, good[1], failing[1])


def ask(
    parts: Parts,
    tokenizer: Path,
    output: Path,
    workload: Workload = WORKLOAD,
    **changes: Any,  # noqa: ANN401
) -> LoadResult:
    """Hold the conversations with the server that answers, two at a time and with seed 1 unless changed."""
    chosen: dict[str, Any] = {"base_url": parts.address, "streams": 2, "seed": 1, **changes}
    return load.run(
        parts.guidellm,
        tokenizer=tokenizer,
        workload=workload,
        output=output / "result.json",
        timeout_s=RUN_TIMEOUT_S,
        **chosen,
    )


def test_figures_are_those_that_the_server_was_told_to_have(
    parts: Parts, tokenizer: Path, tmp_path: Path
) -> None:
    result = ask(parts, tokenizer, tmp_path)
    assert set(result.ttft_ms_by_turn) == {1, 2, 3}
    assert len(result.ttft_ms_by_turn[1]) == 4
    first_tokens = [value for values in result.ttft_ms_by_turn.values() for value in values]
    assert min(first_tokens) >= TTFT_MS
    assert min(result.inter_token_latency_ms) >= 0.9 * GAP_MS
    assert min(result.request_latency_ms) >= TTFT_MS + 5 * GAP_MS
    assert len(result.request_latency_ms) >= WORKLOAD.requests - 1
    assert result.requests_per_s < 2 / (TTFT_MS + 5 * GAP_MS) * 1e3, "two streams answer no more than that"
    assert result.output_tokens_per_s == pytest.approx(6 * result.requests_per_s)
    # A request has its prefix and what was said before it, too.
    assert result.total_tokens_per_s > 10 * result.output_tokens_per_s


def test_equal_seeds_ask_the_same_with_other_streams_and_other_seeds_do_not(
    parts: Parts, tokenizer: Path, tmp_path: Path
) -> None:
    first = ask(parts, tokenizer, tmp_path)
    again = ask(parts, tokenizer, tmp_path, streams=4)
    other = ask(parts, tokenizer, tmp_path, seed=2)
    assert first.prompts == again.prompts != other.prompts


def test_lengths_that_vary_do(parts: Parts, tokenizer: Path, tmp_path: Path) -> None:
    spread = {"output_tokens_min": 2, "output_tokens_max": 9, "first_prompt_tokens": 200}
    workload = Workload(256, 1, 32, 6, 3, 4, spread)
    assert workload.conversation_tokens == 256 + 200 + 2 * 32 + 3 * 9
    result = ask(parts, tokenizer, tmp_path, workload)
    answered = json.loads((tmp_path / "result.json").read_text())["benchmarks"][0]["requests"]["successful"]
    lengths = {request["output_tokens"] for request in answered}
    assert len(lengths) > 1
    assert lengths <= set(range(2, 10))
    assert result.output_tokens_per_s / result.requests_per_s == pytest.approx(
        sum(request["output_tokens"] for request in answered) / len(answered)
    )


def test_run_that_its_time_ends_counts_what_was_answered(
    parts: Parts, tokenizer: Path, tmp_path: Path
) -> None:
    workload = Workload(64, 1, 32, 6, 3, 200, duration_s=2.0)
    result = ask(parts, tokenizer, tmp_path, workload)
    assert 0 < len(result.request_latency_ms) < workload.requests / 4
    assert result.prompts == "what 2 s held"


def test_server_that_fails_is_said_with_its_reason(parts: Parts, tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"of 12 requests succeeded \(.*500"):
        ask(parts, tokenizer, tmp_path, base_url=parts.failing)


def test_server_that_is_not_there_is_said_by_guidellm(parts: Parts, tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="guidellm failed"):
        ask(parts, tokenizer, tmp_path, base_url=f"http://127.0.0.1:{free_port()}")
