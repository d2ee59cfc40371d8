"""Tests of what an accuracy run asks of which servers."""

from __future__ import annotations

import pytest

from harness.accuracy import plan
from harness.accuracy.lm_eval import GSM8K
from harness.accuracy.plan import Plan
from harness.arms import ARMS


def make(*tasks: str, arms: tuple[str, ...] = ("none", "fs", "kvfs"), repetitions: int = 1) -> Plan:
    return plan.make(
        [ARMS[name] for name in arms], tasks or plan.DEFAULT_TASKS, seed=1, repetitions=repetitions
    )


def test_each_tier_is_asked_cold_then_warm_after_a_restart_and_damaged_with_and_without_checksums() -> None:
    stages = [(stage.title, stage.checksums, stage.phases) for stage in make().stages()]
    assert stages == [
        ("none", "off", "cold"),
        ("fs", "off", "cold, warm, damaged"),
        ("kvfs", "on", "cold"),
        # With damage, fs is what has no checksums.
        ("kvfs", "on", "warm, damaged"),
    ]


def test_one_engine_of_kvfs_is_asked_without_checksums_where_no_other_tier_is() -> None:
    stages = make(arms=("none", "kvfs", "kvfs-fallback")).stages()
    assert [stage.title for stage in stages if stage.title.endswith("checksums off")] == [
        "kvfs, checksums off"
    ]


def test_repetitions_need_no_more_servers() -> None:
    arms = ("none", "kvfs")
    once, often = make(arms=arms).stages(), make(arms=arms, repetitions=10).stages()
    assert [stage.name for stage in once] == [stage.name for stage in often]
    assert len({stage.name for stage in often}) == len(often)
    assert [(each.phase, each.repetition) for each in often[2].passes][:3] == [
        ("warm", 0),
        ("damaged", 0),
        ("warm", 1),
    ]
    assert len(often[-1].passes) == 10


def test_documents_of_each_kind_of_score_are_enough_to_pass() -> None:
    by_kind = {True: 0, False: 0}
    for asked in make().questions:
        by_kind[asked.task in plan.GRADED] += asked.documents
    assert min(by_kind.values()) >= 20


def test_gsm8k_has_its_documents_and_room_for_25_examples() -> None:
    made = plan.make([ARMS["none"], ARMS["kvfs"]], [GSM8K], seed=1, gsm8k_dir="somewhere")
    (asked,) = made.questions
    assert (asked.task, asked.data_dir, asked.metric) == (GSM8K, "somewhere", "exact_match")
    assert made.max_model_len > 4096 + 1024
    assert make().max_model_len == 4096


def test_each_step_has_an_estimate() -> None:
    made = make(repetitions=2)
    steps = sum(2 + len(stage.passes) for stage in made.stages())
    assert len(list(made.seconds())) == steps


@pytest.mark.parametrize("repetitions", [1, 10])
def test_run_is_expected_to_end_in_time(repetitions: int) -> None:
    """By the estimates: the default within 15 minutes, ten repetitions of the control within 20."""
    everything = make(arms=tuple(ARMS)) if repetitions == 1 else make(arms=("none", "kvfs"), repetitions=10)
    assert sum(everything.seconds()) < (15 if repetitions == 1 else 20) * 60
