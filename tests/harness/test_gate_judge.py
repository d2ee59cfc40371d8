"""The gate's verdicts from records alone: each is reached, and nothing that is unfit for one gets one."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from gate_records import changed, comparison

from harness.gate import text
from harness.gate.cases import BASE, CPU, HEAD, WALL
from harness.gate.judge import Rules, judge, judge_stored, read_rules
from harness.records import Record
from harness.verdicts import INCONCLUSIVE, INVALID, PASS, REGRESSION

RULES = Rules({WALL: 1.05, CPU: 1.05}, (6, 12), 0.01, 0.05, 0.25)


def test_rules_of_gates_toml_keep_the_error_of_equal_wheels_at_one_percent() -> None:
    rules = read_rules()
    assert rules.regression_error <= 0.01
    assert rules.pass_error <= 0.05
    assert set(rules.at_most) == {WALL, CPU}
    assert all(at_most > 1 for at_most in rules.at_most.values())
    assert list(rules.looks) == sorted(rules.looks)


@pytest.mark.parametrize(
    ("effect", "spread", "answer", "blocks"),
    [
        pytest.param(0.0, 0.01, PASS, 6, id="equal-and-quiet"),
        pytest.param(-0.2, 0.01, PASS, 6, id="faster"),
        pytest.param(0.02, 0.01, PASS, 6, id="slower-within-the-threshold"),
        pytest.param(0.10, 0.01, REGRESSION, 6, id="slower"),
        pytest.param(0.08, 0.075, REGRESSION, 12, id="slower-and-loud-takes-longer"),
        pytest.param(0.0, 0.15, INCONCLUSIVE, 12, id="too-loud-to-tell"),
        pytest.param(0.0, 0.5, INVALID, 12, id="absurdly-loud"),
    ],
)
def test_effect_and_spread_decide_the_verdict(effect: float, spread: float, answer: str, blocks: int) -> None:
    verdict = judge(comparison(12, effect, spread), RULES)
    assert (verdict.answer, verdict.blocks) == (answer, blocks)


def test_one_slower_line_of_ten_is_a_regression() -> None:
    found = comparison(12, 0.10, slower=lambda case, metric: case.op == "lookup" and metric == CPU)
    verdict = judge(found, RULES)
    assert verdict.answer == REGRESSION
    worse = [effect.line for effect in verdict.effects if effect.answer == REGRESSION]
    assert [(line.op, line.metric) for line in worse] == [("lookup", CPU)]


def test_line_that_is_too_loud_does_not_hide_one_that_got_slower() -> None:
    loud = comparison(12, 0.0, 0.5)
    slower = comparison(12, 0.10)
    mixed = [one if one.metric == WALL else other for one, other in zip(loud, slower, strict=True)]
    assert judge(loud, RULES).answer == INVALID
    assert judge(mixed, RULES).answer == REGRESSION


def test_pass_needs_the_whole_interval_inside_the_threshold() -> None:
    for seed in range(20):
        verdict = judge(comparison(12, 0.03, 0.02, seed=seed), RULES)
        for effect in verdict.effects:
            assert (effect.answer == PASS) == (effect.high < effect.at_most)
        assert (verdict.answer == PASS) == all(effect.high < effect.at_most for effect in verdict.effects)


def test_significant_but_small_slowdown_is_no_regression() -> None:
    verdict = judge(comparison(12, 0.03, 0.002), RULES)
    assert verdict.answer == PASS
    assert all(effect.p_value < 1e-6 for effect in verdict.effects)


def test_p_values_are_corrected_for_the_number_of_lines() -> None:
    lines = [effect.p_value for effect in judge(comparison(6, 0.0, 0.02, seed=3), RULES).effects]
    one = judge(comparison(6, 0.0, 0.02, seed=3), RULES).effects
    assert len(one) == 10
    assert max(lines) == 1.0
    assert all(0 <= p_value <= 1 for p_value in lines)


def test_looks_that_were_planned_in_the_records_take_the_place_of_the_rules() -> None:
    found = comparison(20, 0.0, 0.1, env={"looks": [6, 20]})
    verdict = judge(found, RULES)
    assert verdict.blocks == 20
    assert verdict.final


def test_verdict_on_fewer_blocks_than_the_last_look_is_not_final() -> None:
    verdict = judge(comparison(8, 0.0, 0.1), RULES)
    assert (verdict.answer, verdict.blocks, verdict.final) == (INCONCLUSIVE, 6, False)


def without(wanted: Callable[[Record], bool]) -> Callable[[list[Record]], list[Record]]:
    return lambda found: [record for record in found if not wanted(record)]


def with_env(**env: object) -> Callable[[list[Record]], list[Record]]:
    return lambda found: [*found[:-1], changed(found[-1], env)]


def with_proof(**counts: int) -> Callable[[list[Record]], list[Record]]:
    def damage(found: list[Record]) -> list[Record]:
        proof = found[0].env["proof"]
        assert isinstance(proof, dict)
        return [changed(found[0], {"proof": {**proof, **counts}}), *found[1:]]

    return damage


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        pytest.param(lambda _found: [], "no records of a gate", id="nothing"),
        pytest.param(
            without(lambda each: int(str(each.case["block"])) > 4), "6 are the least", id="few-blocks"
        ),
        pytest.param(without(lambda each: each.arm == BASE), "missing or not whole", id="one-arm"),
        pytest.param(
            without(lambda each: each.case["op"] == "lookup"), "nothing was measured", id="no-lookup"
        ),
        pytest.param(without(lambda each: each.metric == CPU), "nothing was measured", id="no-cpu-time"),
        pytest.param(without(lambda each: each.case["block"] == 3), "blocks are missing", id="lost-block"),
        pytest.param(lambda found: [*found, found[-1]], "twice", id="block-twice"),
        pytest.param(
            lambda found: [changed(found[0], values=found[0].values[:-1]), *found[1:]],
            "make no pairs",
            id="lost-burst",
        ),
        pytest.param(
            lambda found: [changed(found[0], values=[0.0] * 4), *found[1:]], "not positive", id="no-time"
        ),
        pytest.param(
            lambda found: [changed(found[0], arm="other"), *found[1:]], "unknown arms", id="unknown-arm"
        ),
        pytest.param(with_env(cpu="another"), "different machines: cpu", id="another-cpu"),
        pytest.param(with_env(filesystem="ext4"), "different machines: filesystem", id="another-file-system"),
        pytest.param(with_env(kernel=None), "different machines: kernel", id="kernel-unknown"),
        pytest.param(with_env(looks=[3]), "different plans", id="another-plan"),
        pytest.param(with_env(page_cache="empty"), "page cache", id="another-cache-state"),
        pytest.param(with_env(wheel={"sha256": "x"}), "2 different wheels", id="another-wheel"),
        pytest.param(with_env(proof=None), "no proof", id="no-proof"),
        pytest.param(with_proof(moved_bytes=4096), "bytes moved", id="bytes-not-moved"),
        pytest.param(with_proof(ops=1), "were reported", id="ops-not-reported"),
        pytest.param(with_proof(checked=0), "were compared", id="nothing-compared"),
    ],
)
def test_records_unfit_for_a_verdict_are_invalid(
    damage: Callable[[list[Record]], list[Record]], says: str
) -> None:
    good = comparison(12)
    assert judge(good, RULES).answer == PASS
    verdict = judge(damage(good), RULES)
    assert verdict.answer == INVALID
    assert says in "; ".join(verdict.problems)


def test_all_of_one_machine_unknown_is_invalid() -> None:
    verdict = judge(comparison(12, env={"cpu": None}), RULES)
    assert verdict.answer == INVALID
    assert "cpu is missing" in verdict.problems[0]


@pytest.mark.parametrize(("effect", "answer"), [(0.0, PASS), (0.12, REGRESSION)])
def test_stored_baseline_is_compared_with_head_of_another_run(effect: float, answer: str) -> None:
    baseline, later = comparison(12, 0.0, 0.01, seed=1), comparison(12, effect, 0.01, seed=2)
    verdict = judge_stored(baseline, later, RULES)
    assert verdict.answer == answer
    paragraph = text.paragraph(later, verdict, RULES, baseline)
    assert "at different times" in paragraph


def test_stored_baseline_of_another_machine_or_none_is_invalid() -> None:
    found = comparison(12)
    other = comparison(12, env={"cpu": "another"})
    assert judge_stored(other, found, RULES).answer == INVALID
    assert "different machines: cpu" in judge_stored(other, found, RULES).problems[0]
    assert judge_stored([], found, RULES).answer == INVALID


def paragraph_of(found: Sequence[Record], rules: Rules = RULES) -> str:
    return text.paragraph(found, judge(found, rules), rules)


def test_paragraph_says_what_was_compared_how_often_and_the_effect() -> None:
    paragraph = paragraph_of(comparison(12, 0.10))
    assert paragraph.startswith(
        "REGRESSION. Compared base (the base, wheel base-0123456) with head (the head, "
    )
    assert (
        "6 blocks of two fresh processes, each with 4 bursts of 5 operations, in turns (ABBA), on made up"
        in paragraph
    )
    assert "tmpfs (the file system is the page cache)" in paragraph
    assert "where +5.0% is allowed" in paragraph
    assert "10 of 10 lines got slower" in paragraph


def test_paragraph_of_inconclusive_says_how_many_more_blocks_decide() -> None:
    found = comparison(12, 0.0, 0.08)
    verdict = judge(found, RULES)
    assert verdict.answer == INCONCLUSIVE
    more = max(effect.more_blocks or 0 for effect in verdict.effects)
    assert more > 0
    assert f"about {more} more blocks would decide: run again with --blocks {12 + more}" in paragraph_of(
        found
    )
    # As many as that do decide, when effect and spread stay what they are.
    enough = [
        changed(record, {"looks": [6, 12 + 4 * more]}) for record in comparison(12 + 4 * more, 0.0, 0.08)
    ]
    assert judge(enough, replace(RULES, looks=(6, 12 + 4 * more))).answer == PASS


def test_paragraph_of_an_effect_at_its_threshold_says_that_more_would_not_decide() -> None:
    found = [
        changed(
            record,
            values=[100 * (1.05 * 0.9999 * (0.98 if int(str(record.case["block"])) % 2 else 1 / 0.98))] * 4,
        )
        if (record.arm, record.case["op"], record.metric) == (HEAD, "lookup", CPU)
        else record
        for record in comparison(12)
    ]
    assert judge(found, RULES).answer == INCONCLUSIVE
    assert "more blocks would not decide it" in paragraph_of(found)


def test_paragraph_of_invalid_says_what_is_wrong() -> None:
    found = comparison(12)[:-1]
    assert "No verdict can be drawn: " in paragraph_of([record for record in found if record.arm == HEAD])
