"""Tests of the accuracy gate's verdicts on whole runs: PASS on good records, and each demand can fail."""

from __future__ import annotations

import dataclasses

import pytest
from made_up_answers import SCORES, MadeUpAnswers

from harness.accuracy import report, verdicts
from harness.accuracy.comparison import read_limits
from harness.accuracy.verdicts import Outcome
from harness.records import Record
from harness.verdicts import INCONCLUSIVE, INVALID, PASS, REGRESSION

LIMITS = read_limits()


@pytest.fixture
def answers() -> MadeUpAnswers:
    return MadeUpAnswers()


def judged(answers: MadeUpAnswers) -> Outcome:
    return verdicts.evaluate(answers.records, LIMITS)


def failed_controls(answers: MadeUpAnswers) -> list[str]:
    return [f"{control.name}: {control.detail}" for control in judged(answers).controls if not control.passed]


def test_run_as_it_should_be_passes(answers: MadeUpAnswers) -> None:
    outcome = judged(answers)
    assert failed_controls(answers) == []
    assert {(each.arm, each.phase): each.verdict for each in outcome.passes} == {
        ("fs", "cold"): PASS,
        ("fs", "warm"): PASS,
        ("kvfs", "cold"): PASS,
        ("kvfs", "warm"): PASS,
    }
    assert outcome.verdict == PASS
    # fs has one control and kvfs two; there is one that must fail, and likely does; each arm has its engine.
    assert len(outcome.controls) == 7


def test_wrong_answers_from_disk_are_a_regression(answers: MadeUpAnswers) -> None:
    answers.change("accuracy", [0.0] * 8 + [1.0] * 16, arm="kvfs", phase="warm", task="niah_single_1")
    assert judged(answers).verdict == REGRESSION


def test_lower_graded_scores_are_a_regression(answers: MadeUpAnswers) -> None:
    answers.change("accuracy", [0.0] * 12, arm="fs", phase="cold", task="ruler_fwe")
    answers.change("accuracy", [0.0] * 12, arm="fs", phase="cold", task="ruler_vt")
    outcome = judged(answers)
    assert outcome.verdict == REGRESSION
    (wrong,) = (each for each in outcome.passes if each.verdict != PASS)
    assert [each.what for each in wrong.comparisons if each.verdict == REGRESSION] == ["graded scores"]


def test_other_answers_with_the_same_scores_are_a_regression(answers: MadeUpAnswers) -> None:
    answers.change("answers_identical", [0.0] * 24, arm="kvfs", phase="warm", task="niah_single_1")
    outcome = judged(answers)
    assert outcome.verdict == REGRESSION
    (wrong,) = (each for each in outcome.passes if each.verdict != PASS)
    assert [each.what for each in wrong.comparisons if each.verdict != PASS] == ["greedy answers"]


def test_one_wrong_answer_is_inconclusive(answers: MadeUpAnswers) -> None:
    answers.change("accuracy", [0.0] + [1.0] * 23, arm="kvfs", phase="warm", task="niah_single_1")
    assert judged(answers).verdict == INCONCLUSIVE


@pytest.mark.parametrize(
    ("metric", "values", "why"),
    [
        pytest.param("tier_hit_tokens", [0], "0 of 5,000 prompt tokens came from disk", id="nothing-read"),
        pytest.param("tier_hit_tokens", None, "0 of 5,000 prompt tokens came from disk", id="not-counted"),
        pytest.param("host_hit_tokens", [90_000], "25,000 of 120,000", id="little-read"),
        pytest.param("damaged_chunks", [1], "1 chunks were damaged, and nobody", id="found-damaged"),
        pytest.param("accuracy", None, "niah_single_1: no scores", id="no-scores"),
        pytest.param("answers_identical", None, "no answers were compared", id="no-answers"),
    ],
)
def test_warm_pass_without_its_proof_is_invalid(
    answers: MadeUpAnswers, metric: str, values: list[float] | None, why: str
) -> None:
    answers.change(metric, values, arm="kvfs", phase="warm")
    outcome = judged(answers)
    assert outcome.verdict == INVALID
    (invalid,) = (each for each in outcome.passes if each.verdict == INVALID)
    assert why in invalid.problem


def test_other_documents_are_invalid(answers: MadeUpAnswers) -> None:
    def asked_another(record: Record) -> Record:
        is_it = record.arm == "kvfs" and record.case["task"] == "ruler_vt" and record.phase == "warm"
        return dataclasses.replace(record, case={**record.case, "inputs": "others"}) if is_it else record

    answers.records = [asked_another(record) for record in answers.records]
    outcome = judged(answers)
    assert outcome.verdict == INVALID
    assert "ruler_vt: other documents than the baseline" in {each.problem for each in outcome.passes}


@pytest.mark.parametrize("arm", ["fs", "kvfs"])
def test_damage_that_fails_nothing_makes_the_run_invalid(answers: MadeUpAnswers, arm: str) -> None:
    for task, scores in SCORES.items():
        which = {"arm": arm, "phase": "damaged", "checksums": "off", "task": task}
        answers.change("control_accuracy", scores, **which)
        answers.change("control_answers_identical", [1.0] * len(scores), **which)
    (failed,) = failed_controls(answers)
    assert failed.startswith(f"{arm}, checksums off: damage fails the gate: PASS; 10 chunks damaged")
    assert judged(answers).verdict == INVALID


@pytest.mark.parametrize("metric", ["control_damaged_files", "control_tier_hit_tokens"])
def test_failure_without_damage_that_was_read_is_no_control(answers: MadeUpAnswers, metric: str) -> None:
    answers.change(metric, [0], arm="kvfs", checksums="off")
    (failed,) = failed_controls(answers)
    assert failed.startswith("kvfs, checksums off: damage fails the gate: REGRESSION; ")


def test_damage_that_nobody_found_makes_the_run_invalid(answers: MadeUpAnswers) -> None:
    answers.change("control_damaged_chunks", [0], arm="kvfs")
    (failed,) = failed_controls(answers)
    assert (
        failed
        == "kvfs, checksums on: damage is found, and the gate passes: PASS; 0 chunks found damaged, of 10"
    )


def test_damage_that_checksums_let_through_makes_the_run_invalid(answers: MadeUpAnswers) -> None:
    answers.change("control_accuracy", [0.0] * 24, arm="kvfs", checksums="on", task="niah_single_1")
    (failed,) = failed_controls(answers)
    assert failed.startswith("kvfs, checksums on: damage is found, and the gate passes: REGRESSION; ")


def test_run_without_a_control_is_invalid(answers: MadeUpAnswers) -> None:
    answers.records = [
        record
        for record in answers.records
        if record.phase != "damaged" or record.case.get("checksums") != "off"
    ]
    assert set(failed_controls(answers)) == {
        "a control without checksums was made: 0 passes must fail the gate",
        "fs: all passes were made: missing: damaged, checksums off",
    }
    assert judged(answers).verdict == INVALID


@pytest.mark.parametrize("power", [[0.98], None])
def test_control_that_may_pass_by_chance_makes_the_run_invalid(
    answers: MadeUpAnswers, power: list[float] | None
) -> None:
    answers.change("control_power", power)
    (failed,) = failed_controls(answers)
    assert failed.startswith("damage is likely enough to fail the gate: probability 0.")
    assert judged(answers).verdict == INVALID


def test_arm_on_another_engine_makes_the_run_invalid(answers: MadeUpAnswers) -> None:
    answers.records = [
        dataclasses.replace(record, env={"engine": "fallback"}) if record.arm == "kvfs" else record
        for record in answers.records
    ]
    assert failed_controls(answers) == ["kvfs: runs on its extension: engine: fallback"]


@pytest.mark.parametrize("kept", [0, 1])
def test_records_without_a_comparison_are_invalid(answers: MadeUpAnswers, kept: int) -> None:
    answers.records = answers.records[:kept]
    assert judged(answers).verdict == INVALID


def test_of_two_runs_in_one_file_the_last_counts(answers: MadeUpAnswers) -> None:
    earlier = MadeUpAnswers()
    earlier.change("accuracy", [0.0] * 24, arm="kvfs", phase="warm", task="niah_single_1")
    answers.records = [*earlier.records, *answers.records]
    assert judged(answers).verdict == PASS
    answers.records = [*answers.records, *earlier.records]
    assert judged(answers).verdict == REGRESSION


def test_tally_counts_each_repetition_by_its_kind() -> None:
    answers = MadeUpAnswers(("kvfs",), repetitions=3)
    answers.change("accuracy", [0.0] * 24, arm="kvfs", phase="warm", task="niah_single_1", repetition=1)
    assert verdicts.tally(judged(answers)) == [
        "kvfs: identical: passed 2 of 3",
        "kvfs: damaged, checksums on: passed 3 of 3",
        "kvfs: damaged, checksums off: failed 3 of 3",
    ]


def test_report_shows_every_comparison_and_control(answers: MadeUpAnswers) -> None:
    text = report.markdown(answers.records, judged(answers), LIMITS, ["Power: 1."], 1)
    assert text.startswith("# kvfs accuracy\n\nPASS: 4 passes pass the gate, all 7 controls hold.")
    assert "Power: 1." in text
    assert (
        "| kvfs | warm | on | right or wrong | PASS | 24 | 0 | 0 | 0.000 | -0.142 to 0.117 | 0.150 |" in text
    )
    assert "| kvfs | damaged | off | right or wrong | REGRESSION | 24 | 12 | 0 | 0.500 |" in text
    assert "held  kvfs, checksums off: damage fails the gate (REGRESSION; 10 chunks damaged" in text
