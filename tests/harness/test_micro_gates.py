"""Tests of the micro benchmark's gates: each can pass, fail, be unable to tell, and be invalid."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from harness.micro import gates
from harness.micro.cases import Shape
from harness.micro.gates import Gate, Verdict
from harness.micro.summary import Group, Line
from harness.verdicts import INCONCLUSIVE, INVALID, PASS, REGRESSION

MIB = 1 << 20
GROUP = Group("load", MIB, Shape(1, 64), 16)
URING = "kvfs (uring)"
CPU = Gate("cpu", (URING,), "cpu_us_per_chunk", base_arm="fs", at_most=0.5)
PROMPT = Group("lookup", 0, None, None, 3600, "hit")
LOOKUP_OPS = ("lookup", "start", "index")
STEADY = (99.0, 100.0, 101.0, 100.0, 100.0, 99.5, 100.5)


def line(arm: str, values: Sequence[float], metric: str = "cpu_us_per_chunk", group: Group = GROUP) -> Line:
    return Line(group, arm, {metric: list(values)})


def scaled(factor: float) -> list[float]:
    return [factor * value for value in STEADY]


def judge_one(gate: Gate, lines: Sequence[Line], unproven: Sequence[str] = ()) -> Verdict:
    (verdict,) = gates.judge([gate], lines, unproven)
    return verdict


@pytest.mark.parametrize(
    ("factor", "answer"),
    [
        pytest.param(0.3, PASS, id="far-below"),
        pytest.param(0.499, PASS, id="just-below"),
        pytest.param(0.502, INCONCLUSIVE, id="above-by-less-than-the-spread"),
        pytest.param(0.6, REGRESSION, id="above"),
    ],
)
def test_ratio_of_medians_decides(factor: float, answer: str) -> None:
    verdict = judge_one(CPU, [line("fs", STEADY), line(URING, scaled(factor))])
    assert verdict.answer == answer
    assert verdict.ratio == pytest.approx(factor)
    assert verdict.low <= verdict.ratio <= verdict.high
    assert verdict.case == "load 1 MiB 1x64, 16 threads: kvfs (uring)"


@pytest.mark.parametrize("count", [0, 1, 6])
def test_too_few_runs_are_invalid(count: int) -> None:
    for values, base in ((scaled(0.1)[:count], STEADY), (scaled(0.1), STEADY[:count])):
        verdict = judge_one(CPU, [line("fs", base), line(URING, values)])
        assert verdict.answer == INVALID
        assert "7 are the least" in verdict.why


def test_missing_arm_case_or_proof_is_invalid() -> None:
    fast = [line("fs", STEADY), line(URING, scaled(0.1))]
    assert judge_one(CPU, fast).answer == PASS
    assert judge_one(CPU, fast[1:]).answer == INVALID
    assert judge_one(CPU, []).answer == INVALID
    assert judge_one(replace(CPU, op="store"), fast).answer == INVALID
    unproven = ["kvfs (uring), load 1 MiB 1x64, 16 threads: 3% of the bytes were seen at the device"]
    assert judge_one(CPU, fast, unproven).answer == INVALID
    assert judge_one(CPU, fast, [unproven[0].replace("1 MiB", "3 MiB")]).answer == PASS


def test_too_much_spread_at_the_bound_is_no_pass() -> None:
    wild = [10.0, 10.0, 40.0, 45.0, 120.0, 130.0, 150.0]
    verdict = judge_one(CPU, [line("fs", STEADY), line(URING, wild)])
    assert (verdict.answer, verdict.why) == (INCONCLUSIVE, "too much spread")


def test_only_cases_of_the_gate_are_judged() -> None:
    small = replace(GROUP, chunk_bytes=1 << 16)
    lines = [
        line(arm, STEADY, group=group) for group in (GROUP, small) for arm in ("fs", URING, "kvfs-fallback")
    ]
    assert len(gates.judge([CPU], lines)) == 2
    assert len(gates.judge([replace(CPU, chunk_min=MIB)], lines)) == 1
    assert len(gates.judge([replace(CPU, chunk_max=MIB - 1)], lines)) == 1
    assert judge_one(replace(CPU, shape=Shape(16, 16)), lines).answer == INVALID
    assert judge_one(replace(CPU, threads=4), lines).answer == INVALID
    assert gates.only_measured([CPU, replace(CPU, threads=4)], lines) == [CPU]


def test_throughput_may_fall_by_the_noise_of_fs_against_itself() -> None:
    gate = Gate("speed", (URING,), "gb_per_s", base_arm="fs", at_least=1.0, less_noise=True)
    lines = [line("fs", STEADY, "gb_per_s"), line(URING, scaled(0.9), "gb_per_s")]
    assert judge_one(gate, lines).answer == REGRESSION
    again = line("fs-aa", scaled(1.2), "gb_per_s")
    verdict = judge_one(gate, [*lines, again])
    assert verdict.answer == PASS
    assert verdict.bound == pytest.approx(1 / 1.2)


def test_limit_is_the_one_of_the_same_operation_and_size() -> None:
    gate = Gate("limit", (URING,), "gb_per_s", base_arm="fio (uring)", at_least=0.9)
    mine = line(URING, scaled(0.95), "gb_per_s")
    limit = line("fio (uring)", STEADY, "gb_per_s", Group("load", MIB, None, None))
    other = line("fio (uring)", scaled(9), "gb_per_s", Group("load", 2 * MIB, None, None))
    assert judge_one(gate, [other, limit, mine]).answer == PASS
    assert judge_one(gate, [other, mine]).answer == INVALID


def test_percentiles_compare_metrics_of_one_arm() -> None:
    gate = Gate(
        "gap", (URING,), "victim_gap_us", base_metric="victim_gap_idle_us", percentile=99.0, at_most=1.3
    )
    idle = [200.0] * 990 + [400.0] * 20
    busy = [220.0] * 990 + [1000.0] * 20
    lines = [Line(GROUP, URING, {"victim_gap_us": busy, "victim_gap_idle_us": idle})]
    verdict = judge_one(gate, lines)
    assert (verdict.answer, verdict.ratio) == (REGRESSION, 2.5)
    assert judge_one(replace(gate, percentile=50.0), lines).answer == PASS


def group_of(gate: Gate) -> Group:
    """Return a case that a gate makes its demand on."""
    if gate.op in LOOKUP_OPS:
        pattern = (*gate.patterns, "hit")[0] if gate.op == "lookup" else ""
        return Group(gate.op, 0, None, None, gate.keys or 512, pattern)
    chunk = max(gate.chunk_min, min(gate.chunk_max, MIB))
    return Group(gate.op or "load", chunk, gate.shape or Shape(1, 64), gate.threads or 16)


@pytest.mark.parametrize("gate", gates.read(), ids=lambda gate: gate.name)
def test_every_gate_of_the_file_can_fail_and_pass(gate: Gate) -> None:
    group = group_of(gate)
    limit = Group(group.op, group.chunk_bytes, None, None) if gate.base_arm.startswith("fio") else group
    # Ratios on both sides of the bound; a bound of 0 leaves nothing below it.
    good, bad = (0.1, 10.0) if gate.at_least == 0.0 else (10.0, 0.1)
    bound = gate.at_most if gate.at_least == 0.0 else gate.at_least
    for ratio, answer in ((good * bound, PASS), (bad * bound or 1.0, REGRESSION)):
        base = [gate.base_value] * len(STEADY) if gate.base_value else list(STEADY)
        measured = {gate.metric: [ratio * value for value in base]}
        if gate.base_metric:
            measured[gate.base_metric] = base
        lines = [Line(group, arm, measured) for arm in gate.arms]
        if gate.base_arm:
            lines.append(line(gate.base_arm, base, gate.metric, limit))
        verdicts = gates.judge([gate], lines)
        assert [verdict.answer for verdict in verdicts] == [answer] * len(gate.arms)


def prompts(arm: str, values: Sequence[float], metric: str, *, runs: int = 7, group: Group = PROMPT) -> Line:
    return Line(group, arm, {metric: list(values)}, runs)


def test_lookups_of_either_mode_are_compared_with_the_stock_tier_in_the_same_case() -> None:
    arms = ("kvfs owner", "kvfs shared")
    gate = Gate("lookup", arms, "verdict_wall_ms", base_arm="fs", op="lookup", at_most=0.1)
    measured = [prompts(arm, scaled(0.01), "verdict_wall_ms") for arm in arms]
    other = prompts("fs", scaled(100), "verdict_wall_ms", group=replace(PROMPT, busy=True))
    assert [each.answer for each in gates.judge([gate], [*measured, other])] == [INVALID] * 2
    verdicts = gates.judge([gate], [*measured, other, prompts("fs", STEADY, "verdict_wall_ms")])
    assert [each.answer for each in verdicts] == [PASS] * 2
    assert [each.case for each in verdicts] == [f"lookup 3600 keys, hit: {arm}" for arm in arms]


def test_lookup_gate_is_about_its_keys_and_patterns_alone() -> None:
    gate = Gate(
        "half", ("fs",), "retry_steps", base_value=1, op="lookup", keys=3600, patterns=("half", "miss")
    )
    groups = [replace(PROMPT, pattern=pattern) for pattern in ("hit", "half", "miss")]
    groups.append(replace(PROMPT, pattern="half", keys=512))
    covered = [gate.covers(prompts("fs", STEADY, "retry_steps", group=group)) for group in groups]
    assert covered == [False, True, True, False]


@pytest.mark.parametrize(
    ("retries", "answer"),
    [
        pytest.param([0] * 70, PASS, id="never"),
        pytest.param([0] * 69 + [1], INCONCLUSIVE, id="once"),
        pytest.param([1] * 70, REGRESSION, id="always"),
    ],
)
def test_demand_of_zero_allows_not_one(retries: Sequence[float], answer: str) -> None:
    gate = Gate("retry", ("fs",), "retry_steps", base_value=1, percentile=100, at_most=0)
    lines = [prompts("fs", retries, "retry_steps")]
    assert judge_one(gate, lines).answer == answer
    (row,) = gates.grid(gates.judge([gate], lines)).rows
    assert row[2:4] == [answer, f"{max(retries):.2f}"]
    assert row[5] == "<= 0.00"


def test_many_prompts_of_few_runs_are_invalid() -> None:
    gate = Gate("lookup", ("kvfs owner",), "verdict_wall_ms", base_arm="fs", at_most=0.1)
    for own, base in ((7, 7), (6, 7), (7, 6)):
        lines = [
            prompts("kvfs owner", scaled(0.01) * 10, "verdict_wall_ms", runs=own),
            prompts("fs", list(STEADY) * 10, "verdict_wall_ms", runs=base),
        ]
        verdict = judge_one(gate, lines)
        assert verdict.answer == (PASS if own == base == 7 else INVALID)
        assert verdict.why in ("", "6 runs, 7 are the least")


def test_table_shows_the_worst_case_and_all_that_do_not_pass() -> None:
    groups = [replace(GROUP, threads=count) for count in (1, 4, 16)]
    factors = (0.3, 0.6, 0.7)
    lines = [line("fs", STEADY, group=group) for group in groups]
    lines += [line(URING, scaled(factor), group=group) for group, factor in zip(groups, factors, strict=True)]
    rows = gates.grid(gates.judge([CPU], lines)).rows
    assert [(row[2], row[3], row[-1]) for row in rows] == [
        (REGRESSION, "0.60", "3"),
        (REGRESSION, "0.70", "3"),
    ]
    (row,) = gates.grid(gates.judge([replace(CPU, at_most=0.9)], lines)).rows
    assert row[:4] == ["cpu", "load 1 MiB 1x64, 16 threads: kvfs (uring)", PASS, "0.70"]


def test_session_about_checksums_has_their_gates_and_no_others() -> None:
    assert gates.suite_of([line("fs", STEADY), line(URING, STEADY)]) == "micro"
    lines = [
        line(arm, STEADY, "gb_per_s") for arm in (URING, "kvfs-unverified (uring)", "kvfs-unverified (psync)")
    ]
    assert gates.suite_of(lines) == gates.CHECKSUMS
    demands = gates.read(suite=gates.CHECKSUMS)
    assert [gate.base_arm for gate in demands] == ["kvfs-unverified (uring)", "kvfs-unverified (psync)"]


@pytest.mark.parametrize(("factor", "answer"), [(0.97, PASS), (0.9, REGRESSION)])
def test_checksums_that_cost_more_than_a_twentieth_fail_their_gate(factor: float, answer: str) -> None:
    demand = gates.read(suite=gates.CHECKSUMS)[0]
    base = line(demand.base_arm, STEADY, "gb_per_s")
    assert judge_one(demand, [base, line(URING, scaled(factor), "gb_per_s")]).answer == answer


def test_checksums_are_judged_run_by_run_whatever_the_disk_did_between() -> None:
    demand = gates.read(suite=gates.CHECKSUMS)[0]
    # Each run's disk is another one; both arms of a run had the same.
    disk = [50.0, 100.0, 200.0, 70.0, 150.0, 90.0, 180.0]
    base = line(demand.base_arm, disk, "gb_per_s")
    for factor, answer in ((0.97, PASS), (0.9, REGRESSION)):
        mine = [factor * value for value in disk]
        assert judge_one(demand, [base, line(URING, mine, "gb_per_s")]).answer == answer


def test_checksums_pass_only_where_the_whole_interval_does() -> None:
    demand = gates.read(suite=gates.CHECKSUMS)[0]
    base = line(demand.base_arm, [100.0] * 7, "gb_per_s")
    mine = line(URING, [91.0, 99.0, 92.0, 97.0, 98.0, 96.0, 97.0], "gb_per_s")
    verdict = judge_one(demand, [base, mine])
    assert verdict.ratio == pytest.approx(0.97)
    assert verdict.answer == INCONCLUSIVE
