"""A small sweep and the records that it makes when everything is as it should be."""

from __future__ import annotations

import json

from harness.arms import ARMS as BENCH_ARMS
from harness.arms import parse_arms
from harness.records import Record, Scalar, measured
from harness.sweep.plan import STAGES, Leg, Study
from harness.sweep.scenario import ARMS, Scenario, Setup, Threads

LENGTHS = {"turns": 2, "prefix_tokens": 256, "prefix_count": 9, "prompt_tokens": 32, "output_tokens": 8}


def study(
    *,
    arms: str = "none,fs,kvfs",
    threads: str = "4",
    streams: tuple[int, ...] = (1, 2),
    conversations: int = 3,
    host_gib: float | None = None,
    host_share: float = 1.0,
) -> Study:
    """Return a sweep of the scenario "mine"."""
    setup = Setup(
        scale=2,
        streams=streams,
        threads=tuple(map(Threads.parse, threads.split(","))),
        arms=tuple(parse_arms(arms, ARMS)),
        conversations=conversations,
        host_gib=host_gib,
        host_share=host_share,
    )
    return Study(Scenario("mine", "somebody", 1, LENGTHS, {}), setup, 1)


def OPTIONS(plan: Study) -> dict[str, object]:  # noqa: N802 - stands where an env does
    """Return the `env` of a sweep's records, without what no test asks for."""
    return {"commit": "abc", "dirty": False, "options": json.loads(json.dumps(plan.options()))}


def leg_records(plan: Study, leg: Leg) -> list[Record]:
    """Return what a leg writes down when all is well."""
    found = []
    engine = BENCH_ARMS[leg.arm.name].engine or "extension" if leg.arm.offloads else "none"
    env = {**OPTIONS(plan), "engine": engine}
    for stage in STAGES:
        for phase in leg.phases(stage):
            for streams in plan.setup.streams:
                case: dict[str, Scalar] = {
                    "scenario": plan.scenario.name,
                    "scale": plan.setup.scale,
                    "phase": phase,
                    "streams": streams,
                    "threads": leg.threads.read,
                    "write_threads": leg.threads.write,
                    "task": "guidellm",
                    "inputs": f"prompts-{streams}",
                }
                is_warm = phase == "warm"
                values: dict[str, list[float]] = {
                    "requests_per_s": [4.0 if is_warm else 1.0],
                    "output_tokens_per_s": [32.0],
                    "total_tokens_per_s": [900.0],
                    "request_latency_ms": [1100.0, 1200.0, 1300.0, 1400.0],
                    "inter_token_latency_ms": [20.0, 21.0],
                    "tier_hit_tokens": [256.0 if is_warm else 0.0],
                    "host_hit_tokens": [64.0],
                    "computed_tokens": [100.0],
                    "tier_read_bytes": [8e6 if is_warm else 0.0],
                    "tier_failed_jobs": [0.0],
                    "storage_read_bytes": [8e6 if is_warm else 0.0],
                    "disk_read_mb_per_s": [0.0, 16.0, 8.0],
                    "disk_busy_percent": [0.0, 40.0, 20.0],
                    "disk_used_bytes": [1e6, 4e6],
                }
                found += [
                    measured("sweep", case, leg.arm.name, name, list(numbers), env)
                    for name, numbers in values.items()
                ]
                found += [
                    measured("sweep", {**case, "turn": turn}, leg.arm.name, "ttft_ms", [100.0 * turn], env)
                    for turn in (1, 2)
                ]
    return found
