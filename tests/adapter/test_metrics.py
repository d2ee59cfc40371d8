"""The tier's own metrics: defined before they are reported, counted once, silent while nothing happens."""

from __future__ import annotations

from typing import Any

from polling import await_that
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm_parts import Tier, keys_of

PREFIX = "vllm:kv_offload_tiering_"
LABEL = "('kvfs',)"


def _read(tier: Tier) -> dict[str, Any] | None:
    """Return what a scheduler gets in a step, by name and label."""
    stats = tier.manager.get_stats()
    if stats is None:
        return None
    assert isinstance(stats, OffloadingConnectorStats)
    assert set(stats.data) == {"types", "data"}
    return stats.reduce()


def _settle(tier: Tier) -> None:
    """Let the scan end, which counts."""
    assert await_that(lambda: bool(tier.manager._engine.stats()["scan_complete"]))
    _read(tier)


def test_damaged_chunks_are_counted_once_under_the_proposed_name(tier: Tier) -> None:
    _settle(tier)
    keys = keys_of(2)
    assert tier.store(keys, [0, 1]).success
    with tier.path(keys[0]).open("r+b") as file:
        file.write(bytes(8))
    assert not tier.run(tier.job(keys, [2, 3], promotion=True)).success
    found = _read(tier)
    assert found is not None
    assert found[f"{PREFIX}checksum_failures:{LABEL}"] == 1
    assert found[f"{PREFIX}verified_loads:{LABEL}"] == 1
    assert found[f"{PREFIX}present_chunks:{LABEL}"] == 1
    # What was reported is not reported again, and a step in which nothing happens reports nothing.
    assert _read(tier) is None
    assert tier.store(keys[:1], [0]).success
    later = _read(tier)
    assert later is not None
    assert f"{PREFIX}checksum_failures:{LABEL}" not in later
    assert later[f"{PREFIX}present_chunks:{LABEL}"] == 2


def test_first_report_has_every_metric_that_is_defined(tier: Tier) -> None:
    found = _read(tier)
    assert found is not None
    defined = type(tier.manager).build_metric_definitions({})
    assert {name.partition(f":{LABEL}")[0] for name in found} == set(defined)
    assert all(metric.labelnames == ("tier",) for metric in defined.values())
