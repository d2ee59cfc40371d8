"""Read a vLLM server's own metrics: where prompt tokens came from, what the tier moved, what lookups cost."""

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from harness.errors import HarnessError

_BY_SOURCE: Final = "vllm:prompt_tokens_cached_by_source_total"
_COMPUTED: Final = ("vllm:prompt_tokens_by_source_total", {"source": "local_compute"})
_PROMPT_TOKENS: Final = "vllm:prompt_tokens_total"
_READ_BYTES: Final = "vllm:kv_offload_tiering_read_bytes_total"
_WRITE_BYTES: Final = "vllm:kv_offload_tiering_write_bytes_total"
_CHUNK_HITS: Final = "vllm:kv_offload_tiering_chunk_hits_total"
_FAILURES: Final = (
    "vllm:kv_offload_tiering_promotion_job_failures_total",
    "vllm:kv_offload_tiering_cascade_job_failures_total",
)
# A histogram with one observation for each chunk of a request that the tier first answered with RETRY.
_RETRIED_LOOKUPS: Final = "vllm:kv_offload_tiering_lookup_async_delay_seconds"
# One for each time that the scheduler asked for a waiting request's chunks, once a step until it has them.
# vLLM's own count of steps, iteration_tokens_total, leaves out those that compute nothing: those of waiting.
_ASKED: Final = "vllm:kv_offload_lookup_sync_delay_seconds"
_ANSWERED: Final = "vllm:time_to_first_token_seconds"
# kvfs's own, under the name that vllm#57912 proposes.
_DAMAGED: Final = "vllm:kv_offload_tiering_checksum_failures"
# Gauges that are zero when nothing is under way.
_BUSY: Final = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_offload_tiering_active_promotion_jobs",
    "vllm:kv_offload_tiering_active_cascade_jobs",
)
PRIMARY_TIER: Final = "0:primary"
_SCRAPE_TIMEOUT_S: Final = 30.0
_SETTLE_POLL_S: Final = 0.3


class MetricsError(HarnessError):
    """A server's metrics could not be read, or are not vLLM's."""


@dataclass(frozen=True)
class Snapshot:
    """One scrape.

    Attributes:
        samples: (name, sorted labels) to value.
        families: Names of all metrics, those included that have no sample yet.
    """

    samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], float]
    families: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        """Say whether a metric of that name exists, whatever its value."""
        return any(True for _ in self._named(name))

    def total(self, name: str, labels: Mapping[str, str] | None = None) -> float:
        """Return the sum over the samples of a metric that carry these labels; 0 if there are none."""
        wanted = dict(labels or {}).items()
        return sum(value for have, value in self._named(name) if wanted <= dict(have).items())

    def _named(self, name: str) -> Iterator[tuple[tuple[tuple[str, str], ...], float]]:
        return ((labels, value) for (have, labels), value in self.samples.items() if have == name)

    def tier_total(self, name: str) -> float:
        """Return the sum over the secondary tiers."""
        return self.total(name) - self.total(name, {"tier": PRIMARY_TIER})


@dataclass(frozen=True)
class Traffic:
    """What happened to prompt tokens, and in the secondary tiers, between two scrapes.

    Attributes:
        computed_tokens: Prompt tokens that the model had to compute.
        host_hit_tokens: Prompt tokens whose KV came from host memory.
        tier_hit_tokens: Prompt tokens whose KV came from the disk tier.
        read_bytes: Bytes that the disk tier delivered.
        write_bytes: Bytes that the disk tier took.
        failed_jobs: Promotions and cascades that failed.
        retried_lookups: Chunks of requests that the disk tier first answered with RETRY, and later with HIT
            or MISS; None where the server does not count them.
        engine_steps: In how many steps the scheduler asked for a request's chunks until it had them, the mean
            over the requests; None where the server does not count that, or answered nothing.
        damaged_chunks: Chunks that the tier found damaged; None where it does not look.
    """

    computed_tokens: int
    host_hit_tokens: int
    tier_hit_tokens: int
    read_bytes: int
    write_bytes: int
    failed_jobs: int
    retried_lookups: int | None
    engine_steps: float | None
    damaged_chunks: int | None


def parse(text: str) -> Snapshot:
    """Parse the Prometheus text format.

    Raises:
        MetricsError: It is not that format, or holds none of vLLM's metrics.
    """
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    families = set()
    try:
        for family in text_string_to_metric_families(text):
            families.add(family.name)
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                samples[key] = samples.get(key, 0.0) + float(sample.value)
    except ValueError as error:
        raise MetricsError(f"metrics are not in the Prometheus text format: {error}") from error
    snapshot = Snapshot(samples, frozenset(families))
    if not snapshot.has(_PROMPT_TOKENS):
        raise MetricsError(
            f"metrics lack {_PROMPT_TOKENS}: this is not a vLLM server, or not one of version 1"
        )
    return snapshot


def scrape(base_url: str) -> Snapshot:
    """Fetch and parse `/metrics`.

    Raises:
        MetricsError: The server does not answer, or not with vLLM's metrics.
    """
    url = f"{base_url}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=_SCRAPE_TIMEOUT_S) as response:
            text = response.read().decode("utf-8")
    except (urllib.error.URLError, http.client.HTTPException, OSError, UnicodeDecodeError) as error:
        raise MetricsError(f"cannot read metrics from {url}: {error}") from error
    return parse(text)


def traffic(before: Snapshot, after: Snapshot, tokens_per_chunk: int) -> Traffic:
    """Return what happened between two scrapes of one server.

    vLLM says since 0.32 which tier each cached token came from. For older ones the tier's hits are counted
    in chunks.

    Args:
        before: The earlier scrape.
        after: The later one.
        tokens_per_chunk: For servers that only count chunks.
    """

    def grown(name: str, labels: Mapping[str, str] | None = None) -> int:
        return round(after.total(name, labels) - before.total(name, labels))

    def tier_grown(name: str) -> int:
        return round(after.tier_total(name) - before.tier_total(name))

    if after.has(_BY_SOURCE):
        host_hit_tokens = grown(_BY_SOURCE, {"source": "host"})
        tier_hit_tokens = grown(_BY_SOURCE, {"source": "disk"})
    else:
        host_hit_tokens = grown(_CHUNK_HITS, {"tier": PRIMARY_TIER}) * tokens_per_chunk
        tier_hit_tokens = tier_grown(_CHUNK_HITS) * tokens_per_chunk
    # A histogram has no sample before its first observation.
    counts_retries, counts_steps = (name in after.families for name in (_RETRIED_LOOKUPS, _ASKED))
    answered = grown(f"{_ANSWERED}_count")
    return Traffic(
        computed_tokens=grown(*_COMPUTED),
        host_hit_tokens=host_hit_tokens,
        tier_hit_tokens=tier_hit_tokens,
        read_bytes=tier_grown(_READ_BYTES),
        write_bytes=tier_grown(_WRITE_BYTES),
        failed_jobs=sum(tier_grown(name) for name in _FAILURES),
        retried_lookups=tier_grown(f"{_RETRIED_LOOKUPS}_count") if counts_retries else None,
        engine_steps=grown(f"{_ASKED}_count") / answered if counts_steps and answered else None,
        damaged_chunks=grown(f"{_DAMAGED}_total") if after.has(f"{_DAMAGED}_total") else None,
    )


def settle(base_url: str, timeout_s: float = 60.0) -> Snapshot:
    """Wait until no request and no tier job is under way and the tier's writes have stopped growing.

    Raises:
        MetricsError: It was still busy after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    written = -1.0
    while True:
        snapshot = scrape(base_url)
        busy = sum(snapshot.total(name) for name in _BUSY)
        now_written = snapshot.total(_WRITE_BYTES)
        if busy == 0 and now_written == written:
            return snapshot
        if time.monotonic() > deadline:
            raise MetricsError(
                f"{base_url} is still busy after {timeout_s:.0f} s ({busy:.0f} requests and jobs)"
            )
        written = now_written
        time.sleep(_SETTLE_POLL_S)
