"""The tier's own Prometheus metrics, from the engine's counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
)

_PREFIX: Final = "vllm:kv_offload_tiering_"
# By the engine's name of a count. The first is what vllm#57912 calls it.
_COUNTERS: Final = {
    "damaged_chunks": ("checksum_failures", "Chunks whose file was damaged, found when they were loaded."),
    "verified_loads": ("verified_loads", "Loads whose bytes were compared with their checksum."),
    "unverified_loads": ("unverified_loads", "Loads of files without a checksum."),
    "evicted_chunks": ("evicted_chunks", "Chunks that were removed to make room."),
    "shed_stores": ("shed_stores", "Stores that were dropped because too many waited."),
    "capacity_sheds": ("capacity_sheds", "Stores that were dropped for want of room."),
    "paused_stores": ("paused_stores", "Stores that were dropped because the disk took none."),
}
_GAUGES: Final = {
    "index_keys": ("present_chunks", "Chunks known to be on disk."),
    "used_bytes": ("used_bytes", "Bytes on disk that count against the capacity; 0 without limits."),
}


def definitions() -> dict[str, OffloadingMetricMetadata]:
    """Return vLLM's description of each metric; all have the label `tier`."""
    counters = {
        _PREFIX + name: OffloadingCounterMetadata(documentation=text, labelnames=("tier",))
        for name, text in _COUNTERS.values()
    }
    gauges = {
        _PREFIX + name: OffloadingGaugeMetadata(documentation=text, labelnames=("tier",))
        for name, text in _GAUGES.values()
    }
    return {**counters, **gauges}


class Meter:
    """Turns the engine's counts since its start into what vLLM wants: what has come since the last call.

    Args:
        tier: What vLLM calls the tier; the label of all samples.
    """

    def __init__(self, tier: str) -> None:
        self._label = (tier,)
        self._seen: dict[str, int] = {}

    def read(self, counts: Mapping[str, int]) -> OffloadingConnectorStats | None:
        """Return what to report of these counts, None if they are the ones that were reported last.

        The scheduler asks once a step, and hands on what it gets to another process.
        """
        if all(counts[key] == self._seen.get(key) for key in (*_COUNTERS, *_GAUGES)):
            return None
        stats = OffloadingConnectorStats()
        for key, (name, _) in _COUNTERS.items():
            grown = counts[key] - self._seen.get(key, 0)
            # Also when nothing has happened: a counter that is not there cannot be told from one that is 0.
            if grown or key not in self._seen:
                stats.increase_counter(_PREFIX + name, grown, self._label)
            self._seen[key] = counts[key]
        for key, (name, _) in _GAUGES.items():
            stats.set_gauge(_PREFIX + name, counts[key], self._label)
            self._seen[key] = counts[key]
        return stats
