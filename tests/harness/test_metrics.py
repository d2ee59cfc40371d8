"""Tests of reading vLLM's metrics: where tokens came from, on scrapes of a real server after a restart."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import vllm_metrics
from harness.vllm_metrics import MetricsError

TOKENS_PER_CHUNK = 128


def text_of(data: Path, when: str) -> str:
    return (data / f"vllm-0.32.0-{when}.prom").read_text()


@contextmanager
def serving(pages: list[str]) -> Iterator[str]:
    """Serve one page after the other as /metrics, the last one again and again."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.pop(0) if len(pages) > 1 else pages[0]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_traffic_tells_tokens_from_disk_from_those_from_host(data: Path) -> None:
    before, after = (vllm_metrics.parse(text_of(data, when)) for when in ("before", "after"))
    traffic = vllm_metrics.traffic(before, after, TOKENS_PER_CHUNK)
    assert traffic.tier_hit_tokens == 3328 - 768
    # What the tier says of itself agrees: as many chunks of 5,898,240 bytes.
    assert traffic.read_bytes == traffic.tier_hit_tokens // TOKENS_PER_CHUNK * 5_898_240
    prompt_tokens = after.total("vllm:prompt_tokens_total") - before.total("vllm:prompt_tokens_total")
    assert traffic.computed_tokens + traffic.host_hit_tokens + traffic.tier_hit_tokens == prompt_tokens
    assert traffic.write_bytes == traffic.failed_jobs == 0


def test_traffic_of_a_vllm_without_sources_counts_chunks(data: Path) -> None:
    texts = [text_of(data, when).splitlines() for when in ("before", "after")]
    before, after = (
        vllm_metrics.parse("\n".join(line for line in text if "cached_by_source" not in line) + "\n")
        for text in texts
    )
    assert vllm_metrics.traffic(before, after, TOKENS_PER_CHUNK).tier_hit_tokens == 3328 - 768


def test_traffic_counts_failed_jobs(data: Path) -> None:
    before = vllm_metrics.parse(text_of(data, "before"))
    name = "vllm:kv_offload_tiering_promotion_job_failures_total"
    after = vllm_metrics.parse(text_of(data, "before") + f'{name}{{engine="0",tier="1:kvfs"}} 2.0\n')
    assert vllm_metrics.traffic(before, after, TOKENS_PER_CHUNK).failed_jobs == 2


def test_traffic_counts_lookups_that_waited_and_steps_of_a_request(data: Path) -> None:
    """Three new conversations of two turns, asked of vLLM's own tier after a restart; three chunks each."""
    before, after = (vllm_metrics.parse(text_of(data, f"fs-{when}")) for when in ("before", "after"))
    traffic = vllm_metrics.traffic(before, after, TOKENS_PER_CHUNK)
    assert traffic.tier_hit_tokens == 9 * TOKENS_PER_CHUNK
    assert traffic.retried_lookups == 9
    assert traffic.engine_steps == 27 / 6
    # What vLLM calls steps are those in which something was computed: one a token.
    steps = "vllm:iteration_tokens_total_count"
    assert after.total(steps) - before.total(steps) == 6 * 8


def test_traffic_of_a_tier_that_never_said_retry_counts_0(data: Path) -> None:
    """A histogram has no samples before its first observation; its name is there all the same."""
    texts = [text_of(data, f"fs-{when}").splitlines() for when in ("before", "after")]
    before, after = (
        vllm_metrics.parse(
            "\n".join(line for line in text if line.startswith("#") or "tiering_lookup_async" not in line)
            + "\n"
        )
        for text in texts
    )
    assert vllm_metrics.traffic(before, after, TOKENS_PER_CHUNK).retried_lookups == 0


def test_traffic_of_a_vllm_that_does_not_count_lookups_says_so(data: Path) -> None:
    before, after = (vllm_metrics.parse(text_of(data, when)) for when in ("before", "after"))
    traffic = vllm_metrics.traffic(before, after, TOKENS_PER_CHUNK)
    assert traffic.retried_lookups is None
    assert traffic.engine_steps is None


def test_totals_add_up_over_labels(data: Path) -> None:
    snapshot = vllm_metrics.parse(text_of(data, "after"))
    name = "vllm:kv_offload_tiering_chunk_hits_total"
    assert snapshot.total(name) == 56
    assert snapshot.total(name, {"tier": vllm_metrics.PRIMARY_TIER}) == 30
    assert snapshot.tier_total(name) == 26
    assert snapshot.total("vllm:no_such_metric") == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("python_info 1.0\n", "this is not a vLLM server", id="another-server"),
        pytest.param("<html>not found</html>", "not in the Prometheus text format", id="a-page"),
    ],
)
def test_metrics_of_something_else_are_refused(text: str, message: str) -> None:
    with pytest.raises(MetricsError, match=message):
        vllm_metrics.parse(text)


def test_scrape_reads_a_server(data: Path) -> None:
    with serving([text_of(data, "after")]) as address:
        assert vllm_metrics.scrape(address).total("vllm:prompt_tokens_total") == 9164


def test_scrape_without_a_server_says_which() -> None:
    with pytest.raises(MetricsError, match=r"cannot read metrics from http://127.0.0.1:1/metrics"):
        vllm_metrics.scrape("http://127.0.0.1:1")


def test_settle_waits_for_jobs_and_for_writes_to_stop(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_metrics, "_SETTLE_POLL_S", 0.02)
    quiet = text_of(data, "after")
    busy = quiet.replace(
        'active_cascade_jobs{engine="0",model_name="kvfs-bench",tier="1:kvfs"} 0.0',
        'active_cascade_jobs{engine="0",model_name="kvfs-bench",tier="1:kvfs"} 3.0',
    )
    assert busy != quiet
    writing = quiet.replace("1.769472e+07", "1.179648e+07")
    assert writing != quiet
    pages = [busy, writing, quiet, quiet]
    with serving(pages) as address:
        snapshot = vllm_metrics.settle(address, timeout_s=20)
    assert snapshot.total("vllm:kv_offload_tiering_write_bytes_total") == 17_694_720
    assert len(pages) == 1


def test_settle_gives_up_on_a_server_that_stays_busy(data: Path) -> None:
    busy = (
        text_of(data, "after")
        .replace("num_requests_running{", 'num_requests_running{x="1",')
        .replace(
            'x="1",engine="0",model_name="kvfs-bench"} 0.0', 'x="1",engine="0",model_name="kvfs-bench"} 1.0'
        )
    )
    with serving([busy]) as address, pytest.raises(MetricsError, match=r"still busy after 1 s \(1 requests"):
        vllm_metrics.settle(address, timeout_s=0.7)
