"""Test what the harness asks of guidellm, and reads from it, with guidellm's own mock server."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import load
from harness.load import LoadError, Workload
from harness.processes import GuardedProcess
from harness.server import free_port, is_healthy
from harness.tools import Tool, ToolError

TTFT_MS = 120.0
GAP_MS = 20.0
START_TIMEOUT_S = 60.0
RUN_TIMEOUT_S = 60.0
WORKLOAD = Workload(
    prefix_tokens=256, prefix_count=4, prompt_tokens=32, output_tokens=6, turns=3, conversations=4
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def guidellm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    with Tool("guidellm", tmp_path_factory.mktemp("tool"), load.ENVIRONMENT) as tool:
        assert tool.version() == "0.8.1", "the pinned version, which the parsers are written for"
        yield tool


@contextmanager
def mock_server(directory: Path, *options: str) -> Iterator[str]:
    """Run guidellm's server while the block lasts; yield its address."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "guidellm", "mock-server", "--host=127.0.0.1", f"--port={port}"),
        *(f"--ttft-ms={TTFT_MS}", f"--itl-ms={GAP_MS}", *options),
    ]
    environment = {"PATH": "", "HOME": str(directory), "HF_HUB_OFFLINE": "1", "TMPDIR": str(directory)}
    with GuardedProcess(command, log_path=directory / "mock.log", env=environment, cwd=directory) as process:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_healthy(f"http://127.0.0.1:{port}"):
            assert process.poll() is None, process.tail()
            assert time.monotonic() < deadline, process.tail()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
        process.kill()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mock_server(tmp_path_factory.mktemp("mock")) as address:
        yield address


def test_figures_are_those_that_the_server_was_told_to_have(
    guidellm: Tool, address: str, tokenizer: Path, tmp_path: Path
) -> None:
    result = load.run(guidellm, address, tokenizer, WORKLOAD, 2, 1, tmp_path / "r.json", RUN_TIMEOUT_S)
    assert set(result.ttft_ms_by_turn) == {1, 2, 3}
    assert len(result.ttft_ms_by_turn[1]) == 4
    first_tokens = [value for values in result.ttft_ms_by_turn.values() for value in values]
    assert min(first_tokens) >= TTFT_MS
    assert statistics.median(first_tokens) < 2 * TTFT_MS
    assert min(result.inter_token_latency_ms) >= 0.9 * GAP_MS
    assert min(result.request_latency_ms) >= TTFT_MS + 5 * GAP_MS
    assert len(result.request_latency_ms) >= WORKLOAD.requests - 1
    assert result.output_tokens_per_s == pytest.approx(6 * result.requests_per_s)
    # A request has its prefix and what was said before it, too.
    assert result.total_tokens_per_s > 10 * result.output_tokens_per_s


def test_equal_seeds_ask_the_same_with_other_streams_and_other_seeds_do_not(
    guidellm: Tool, address: str, tokenizer: Path, tmp_path: Path
) -> None:
    first, again, other = (
        load.run(guidellm, address, tokenizer, WORKLOAD, streams, seed, tmp_path / "r.json", RUN_TIMEOUT_S)
        for streams, seed in ((2, 1), (4, 1), (2, 2))
    )
    assert first.prompts == again.prompts != other.prompts
    # Four streams hold four conversations at a time.
    assert again.requests_per_s > 1.3 * first.requests_per_s


def test_lengths_that_vary_do(guidellm: Tool, address: str, tokenizer: Path, tmp_path: Path) -> None:
    spread = {"output_tokens_min": 2, "output_tokens_max": 9, "first_prompt_tokens": 200}
    workload = Workload(256, 1, 32, 6, 3, 4, spread)
    assert workload.conversation_tokens == 256 + 200 + 2 * 32 + 3 * 9
    result = load.run(guidellm, address, tokenizer, workload, 4, 1, tmp_path / "r.json", RUN_TIMEOUT_S)
    latencies = result.request_latency_ms
    assert max(latencies) - min(latencies) > GAP_MS
    assert max(latencies) < TTFT_MS + 9 * GAP_MS + TTFT_MS


def test_run_that_its_time_ends_counts_what_was_answered(
    guidellm: Tool, address: str, tokenizer: Path, tmp_path: Path
) -> None:
    workload = Workload(64, 1, 32, 6, 3, 200, duration_s=2.0)
    result = load.run(guidellm, address, tokenizer, workload, 2, 1, tmp_path / "r.json", RUN_TIMEOUT_S)
    assert 2 < len(result.request_latency_ms) < workload.requests / 4
    assert result.prompts == "what 2 s held"


def test_server_that_fails_is_said_with_its_reason(guidellm: Tool, tokenizer: Path, tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    with (
        mock_server(tmp_path, "--fail-after-requests=5") as address,
        pytest.raises(LoadError, match=r"of 12 requests succeeded \(.*500"),
    ):
        load.run(guidellm, address, tokenizer, WORKLOAD, 2, 1, output, RUN_TIMEOUT_S)


def test_server_that_is_not_there_is_said_by_guidellm(
    guidellm: Tool, tokenizer: Path, tmp_path: Path
) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ToolError, match="guidellm failed"):
        load.run(guidellm, address, tokenizer, WORKLOAD, 2, 1, tmp_path / "r.json", RUN_TIMEOUT_S)
