"""Tests of the claims that a benchmark must prove: all pass on good records, and each can be made to fail."""

from __future__ import annotations

import dataclasses

import pytest
from made_up_run import MadeUpRun

from harness import checks
from harness.checks import Check
from harness.records import measured


def failed(run: MadeUpRun) -> list[Check]:
    return [check for check in checks.evaluate(run.records) if not check.passed]


def the_only_failed(run: MadeUpRun) -> Check:
    (check,) = failed(run)
    return check


def test_all_checks_pass_on_records_as_they_should_be(run: MadeUpRun) -> None:
    found = checks.evaluate(run.records)
    assert [check for check in found if not check.passed] == []
    # One for all, nine for each of three arms with a tier, one more for the two that are kvfs.
    assert len(found) == 1 + 3 * 9 + 2


@pytest.mark.parametrize("arm", ["kvfs", "kvfs-fallback"])
def test_damaged_chunks_that_change_an_answer_fail(run: MadeUpRun, arm: str) -> None:
    assert run.change("control_accuracy", [1.0, 0.0], arm=arm, phase="damaged") == 1
    check = the_only_failed(run)
    assert check.name == f"{arm}, 4 threads: damaged chunks are found, and change no answer"
    assert "1 of 2 documents differ: 1 worse" in check.detail


@pytest.mark.parametrize("arm", ["kvfs", "kvfs-fallback"])
def test_damage_that_nobody_found_fails(run: MadeUpRun, arm: str) -> None:
    """Right answers prove nothing where the damaged chunks were not read at all."""
    run.change("control_damaged_chunks", [0], arm=arm)
    assert "0 chunks found damaged, of 40 files" in the_only_failed(run).detail
    assert run.drop("control_damaged_chunks", arm=arm)
    assert "0 chunks found damaged" in the_only_failed(run).detail


def test_control_that_changes_no_answer_of_the_stock_tier_fails(run: MadeUpRun) -> None:
    run.change("control_accuracy", [1.0, 1.0], arm="fs", phase="damaged")
    check = the_only_failed(run)
    assert check.name == "fs, 4 threads: damaged chunks make answers wrong (the control)"
    run.change("control_accuracy", [0.0, 0.0], arm="fs", phase="damaged")
    assert failed(run) == []
    run.change("control_tier_hit_tokens", [0], arm="fs")
    assert "0 tokens served from 40 damaged files" in the_only_failed(run).detail


def test_control_without_its_answers_fails(run: MadeUpRun) -> None:
    assert run.drop("control_accuracy", arm="kvfs", phase="damaged") == 1
    assert the_only_failed(run).detail == "no answers from damaged chunks to compare"


@pytest.mark.parametrize("arm", ["fs", "kvfs", "kvfs-fallback"])
def test_zero_tokens_from_disk_in_one_warm_case_fails(run: MadeUpRun, arm: str) -> None:
    assert run.change("tier_hit_tokens", [0], arm=arm, phase="warm", streams=4, task="guidellm") == 1
    check = the_only_failed(run)
    assert check.name == f"{arm}, 4 threads: warm tokens came from the disk tier"
    assert check.detail == "no token came from disk in guidellm, 4 streams"


def test_zero_tokens_from_disk_while_answering_fails(run: MadeUpRun) -> None:
    run.change("tier_hit_tokens", [0], arm="kvfs", phase="warm", task="ruler_vt")
    assert the_only_failed(run).detail == "no token came from disk in ruler_vt, 4 streams"


def test_a_warm_phase_that_was_not_measured_fails(run: MadeUpRun) -> None:
    """An arm without its proof must not pass because there is nothing to object to."""
    for metric in ("tier_hit_tokens", "ttft_ms", "accuracy"):
        assert run.drop(metric, arm="kvfs", phase="warm")
    details = [check.detail for check in failed(run)]
    assert "no warm phase was measured" in details
    assert "3 cold and 0 warm requests" in details
    assert any("no scores to compare" in detail for detail in details)


def test_warm_slower_than_cold_fails(run: MadeUpRun) -> None:
    run.change("ttft_ms", [1500.0, 1600.0, 90.0], arm="kvfs", phase="warm", streams=1, turn=1)
    check = the_only_failed(run)
    assert check.name == "kvfs, 4 threads, 1 stream: warm TTFT is lower than cold"
    assert check.detail == "median 1,000 ms cold, 1,500 ms warm"


def test_warm_as_slow_as_cold_fails(run: MadeUpRun) -> None:
    run.change("ttft_ms", [1000.0, 1000.0, 1000.0], arm="fs", phase="warm", streams=4, turn=1)
    assert the_only_failed(run).name == "fs, 4 threads, 4 streams: warm TTFT is lower than cold"


def test_second_turns_do_not_decide_about_the_first(run: MadeUpRun) -> None:
    run.change("ttft_ms", [9000.0], arm="kvfs", phase="warm", turn=2)
    assert failed(run) == []


def test_wrong_answers_from_disk_fail(run: MadeUpRun) -> None:
    """What damaged chunks did to vLLM's own tier: every answer wrong, no error anywhere."""
    run.change("accuracy", [0.0, 0.0, 0.0], arm="kvfs-fallback", phase="warm", task="niah_single_1")
    check = the_only_failed(run)
    assert check.name == "kvfs-fallback, 4 threads: warm answers are as right as the baseline's"
    assert "niah_single_1: worse than chance explains" in check.detail
    assert "3 of 3 documents differ: 3 worse, 0 better" in check.detail


def test_wrong_answers_of_the_stock_tier_fail_too(run: MadeUpRun) -> None:
    run.change("accuracy", [0.0, 0.0, 0.0], arm="fs", phase="warm", task="niah_single_1")
    assert the_only_failed(run).name.startswith("fs, 4 threads: warm answers")


def test_wrong_answers_while_storing_fail(run: MadeUpRun) -> None:
    run.change("accuracy", [0.0, 0.0, 0.0], arm="kvfs", phase="cold", task="niah_single_1")
    assert the_only_failed(run).name == "kvfs, 4 threads: cold answers are as right as the baseline's"


def test_one_document_that_differs_passes_and_is_told(run: MadeUpRun) -> None:
    run.change("accuracy", [0.2, 0.2, 0.6], arm="kvfs", phase="warm", task="ruler_vt")
    assert failed(run) == []
    (check,) = [c for c in checks.evaluate(run.records) if c.name.startswith("kvfs, 4 threads: warm answers")]
    assert "ruler_vt: 1 of 3 documents differ: 1 worse, 0 better" in check.detail


def test_other_documents_than_the_baseline_fail(run: MadeUpRun) -> None:
    run.change("accuracy", [1.0, 1.0], arm="kvfs", phase="warm", task="niah_single_1")
    assert "niah_single_1: no scores to compare" in the_only_failed(run).detail


def test_other_prompts_in_one_phase_fail(run: MadeUpRun) -> None:
    record = next(each for each in reversed(run.records) if each.case["task"] == "ruler_vt")
    run.records.append(
        measured("bench", {**record.case, "inputs": "others"}, record.arm, record.metric, [0], record.env)
    )
    assert "prompts or documents differ: ruler_vt, 4 streams" in [check.detail for check in failed(run)]


def test_tokens_from_disk_before_the_restart_fail(run: MadeUpRun) -> None:
    run.change("tier_hit_tokens", [128], arm="kvfs", phase="cold", streams=1, task="guidellm")
    check = the_only_failed(run)
    assert check.name == "kvfs, 4 threads: nothing came from disk before the restart"
    assert check.detail == "128 tokens"


def test_the_wrong_engine_fails(run: MadeUpRun) -> None:
    """A wheel without its extension would make both kvfs arms the same and prove nothing about it."""
    run.records = [
        dataclasses.replace(record, env={**record.env, "engine": "fallback"})
        if record.arm == "kvfs"
        else record
        for record in run.records
    ]
    check = the_only_failed(run)
    assert check.name == "kvfs, 4 threads: runs on its extension"
    assert check.detail == "engine: fallback"


def test_failed_jobs_fail(run: MadeUpRun) -> None:
    run.change("tier_failed_jobs", [2], arm="fs", phase="warm", streams=1)
    assert the_only_failed(run).name == "fs, 4 threads: no promotion and no cascade failed"


@pytest.mark.parametrize("arm", ["kvfs", "kvfs-fallback"])
def test_as_many_steps_spent_on_lookups_as_the_stock_tier_fail(run: MadeUpRun, arm: str) -> None:
    """What the project began with: each request with chunks on disk waited a step to hear of them."""
    run.change("tier_retried_lookups", [20], arm=arm, phase="warm", task="guidellm")
    run.change("tier_retried_lookups", [43], arm=arm, phase="warm", task="ruler_vt")
    # Cold lookups decide nothing.
    run.change("tier_retried_lookups", [0], arm="fs", phase="cold")
    assert failed(run) == []
    run.change("tier_retried_lookups", [44], arm=arm, phase="warm", task="ruler_vt")
    check = the_only_failed(run)
    assert check.name == f"{arm}, 4 threads: fewer warm lookups wait than with fs"
    assert check.detail == "84 RETRYs, 84 with fs"


def test_a_stock_tier_that_never_said_retry_proves_nothing(run: MadeUpRun) -> None:
    run.change("tier_retried_lookups", [0], arm="fs", phase="warm")
    assert [check.detail for check in failed(run)] == ["0 RETRYs, 0 with fs"] * 2


def test_lookups_that_nobody_counted_fail(run: MadeUpRun) -> None:
    run.drop("tier_retried_lookups", arm="kvfs", phase="warm")
    assert the_only_failed(run).detail == "RETRYs counted in 0 warm cases, with fs in 4"


def test_lookups_of_other_cases_than_the_stock_tiers_fail(run: MadeUpRun) -> None:
    assert run.drop("tier_retried_lookups", arm="fs", phase="warm", streams=1) == 1
    expected = "RETRYs counted in 4 warm cases, with fs in 3"
    assert [check.detail for check in failed(run)] == [expected] * 2


def test_without_the_stock_tier_no_lookup_may_cost_a_step(run: MadeUpRun) -> None:
    run.records = [record for record in run.records if record.arm != "fs"]
    assert failed(run) == []
    assert run.change("tier_retried_lookups", [1], arm="kvfs", phase="warm", streams=1) == 1
    check = the_only_failed(run)
    assert check.name == "kvfs, 4 threads: no warm lookup waits"
    assert check.detail == "1 RETRYs"


def test_without_a_baseline_warm_is_compared_with_the_same_arm_cold(run: MadeUpRun) -> None:
    run.records = [record for record in run.records if record.arm == "kvfs"]
    assert failed(run) == []
    run.change("accuracy", [0.0, 0.0, 0.0], phase="warm", task="niah_single_1")
    assert the_only_failed(run).name.startswith("kvfs, 4 threads: warm answers")


def test_the_baseline_alone_only_has_to_be_measured(run: MadeUpRun) -> None:
    run.records = [record for record in run.records if record.arm == "none"]
    assert failed(run) == []
    run.drop("requests_per_s")
    assert the_only_failed(run).name == "the baseline was measured"


def test_a_server_of_the_user_calls_for_no_check(run: MadeUpRun) -> None:
    run.records = [
        dataclasses.replace(record, arm="target") for record in run.records if record.phase == "cold"
    ]
    assert checks.evaluate(run.records) == []
