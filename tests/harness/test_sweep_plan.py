"""Tests of what a sweep measures, in which order, and of going on after an interruption."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from made_up_sweep import OPTIONS, leg_records, study

from harness.errors import UsageError
from harness.records import Record, RecordLog
from harness.sweep import resume
from harness.sweep.plan import Leg, missing

CHUNK_BYTES = 1 << 20


def names(groups: list[list[Leg]]) -> list[list[str]]:
    return [[leg.title for leg in group] for group in groups]


def test_each_arm_meets_each_number_of_threads_once_and_plain_arms_fill_the_room() -> None:
    plan = study(arms="none,fs,kvfs,kvfs-fallback", threads="4,16")
    assert names(plan.groups(2)) == [
        ["fs, 4 threads", "kvfs, 4 threads"],
        ["kvfs-fallback, 4 threads", "none"],
        ["kvfs-fallback, 16 threads", "kvfs, 16 threads"],
        ["fs, 16 threads"],
    ]
    assert sorted(map(len, plan.groups(1))) == [1] * 7
    assert len(set(plan.legs())) == len(plan.legs()) == 7


def test_plain_arms_without_room_run_in_the_middle_side_by_side() -> None:
    plan = study(arms="none,dram,fs,kvfs", threads="4,16")
    assert names(plan.groups(2))[1] == ["none", "dram"]
    assert names(study(arms="none", threads="4").groups(2)) == [["none"]]


def test_phases_alternate_between_arms_and_warm_comes_after_the_restart() -> None:
    plan = study(arms="fs,kvfs", threads="4", streams=(1, 2))
    (group,) = plan.groups(2)
    cold = [(step.leg.arm.name, step.phase, step.streams) for step in plan.steps(group, "cold")]
    assert cold == [
        ("fs", "", 0),
        ("kvfs", "", 0),
        ("fs", "cold", 1),
        ("kvfs", "cold", 1),
        ("kvfs", "cold", 2),
        ("fs", "cold", 2),
    ]
    warm = [(step.leg.arm.name, step.phase, step.streams) for step in plan.steps(group, "warm")]
    assert warm[:3] == [("kvfs", "", 0), ("fs", "", 0), ("kvfs", "warm", 1)]
    assert len(list(plan.seconds(group))) == len(cold) + len(warm) + 4


def test_host_memory_alone_is_asked_again_without_a_restart() -> None:
    plan = study(arms="none,dram", threads="4", streams=(1,))
    (group,) = plan.groups(2)
    assert [(s.leg.arm.name, s.phase) for s in plan.steps(group, "cold") if s.phase] == [
        ("none", "cold"),
        ("dram", "cold"),
        ("dram", "host"),
    ]
    assert list(plan.steps(group, "warm")) == []


def test_streams_have_prompts_of_their_own_and_a_conversation_each() -> None:
    plan = study(streams=(1, 8), conversations=3)
    assert plan.seed_for(1) != plan.seed_for(8)
    assert [plan.workload_for(streams).conversations for streams in (1, 8)] == [3, 8]


def test_host_memory_is_a_share_of_what_is_stored_or_as_large_as_said() -> None:
    whole, half = (study(conversations=20, host_share=share).host_bytes(CHUNK_BYTES) for share in (1.0, 0.5))
    assert whole == pytest.approx(2 * half, rel=0.05)
    assert study(host_share=0.001).host_bytes(CHUNK_BYTES) >= 2 * CHUNK_BYTES
    assert study(host_gib=3.0).host_bytes(CHUNK_BYTES) == 3 << 30


def test_resumed_sweep_measures_the_legs_that_are_missing_alone() -> None:
    plan = study(arms="fs,kvfs", threads="4,16")
    first = plan.groups(2)[0]
    earlier = [record for leg in first for record in leg_records(plan, leg)]
    done = resume.done_legs(plan, earlier, OPTIONS(plan))
    assert done == first
    assert names(missing(plan.groups(2), done)) == [["kvfs, 16 threads", "fs, 16 threads"]]
    assert missing(plan.groups(2), plan.legs()) == []


def test_leg_without_one_of_its_phases_is_measured_again() -> None:
    plan = study(arms="fs", threads="4", streams=(1, 2))
    (leg,) = plan.legs()
    whole = leg_records(plan, leg)
    assert resume.done_legs(plan, whole, OPTIONS(plan)) == [leg]
    part = [r for r in whole if not (r.phase == "warm" and r.case["streams"] == 2)]
    assert resume.done_legs(plan, part, OPTIONS(plan)) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"streams": (1, 4)}, r"streams \[1, 2\], and this one has \[1, 4\]"),
        ({"threads": "16"}, r'threads \["4"\], and this one has \["16"\]'),
        ({"conversations": 5}, "workload "),
    ],
)
def test_other_options_in_the_same_directory_are_refused(change: dict[str, object], said: str) -> None:
    plan = study(arms="fs", threads="4", streams=(1, 2))
    earlier = leg_records(plan, plan.legs()[0])
    other = study(**{"arms": "fs", "threads": "4", "streams": (1, 2), **change})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"--out has a sweep of mine with {said}.*name another --out"):
        resume.done_legs(other, earlier, OPTIONS(other))


def test_other_software_in_the_same_directory_is_refused() -> None:
    plan = study(arms="fs", threads="4")
    earlier = leg_records(plan, plan.legs()[0])
    with pytest.raises(UsageError, match='with commit "abc", and this one has "def"'):
        resume.done_legs(plan, earlier, {**OPTIONS(plan), "commit": "def"})


def test_other_scenarios_and_other_suites_in_the_same_directory_are_left_alone(tmp_path: Path) -> None:
    plan = study(arms="fs", threads="4")
    elsewhere = [
        dataclasses.replace(record, case={**record.case, "scenario": "other"}, env={})
        for record in leg_records(plan, plan.legs()[0])
    ]
    bench = Record("bench", {}, "fs", "ttft_ms", "ms", "lower", [1.0], {})
    RecordLog(tmp_path).extend([*elsewhere, bench])
    earlier = resume.read_earlier(tmp_path)
    assert len(earlier) == len(elsewhere)
    assert resume.done_legs(plan, earlier, OPTIONS(plan)) == []
    assert resume.read_earlier(tmp_path / "nowhere") == []


def test_options_are_the_same_after_they_were_written(tmp_path: Path) -> None:
    plan = study(arms="fs", threads="4")
    RecordLog(tmp_path).extend(leg_records(plan, plan.legs()[0]))
    env = json.loads(json.dumps(OPTIONS(plan)))
    assert resume.done_legs(plan, resume.read_earlier(tmp_path), env) == plan.legs()
