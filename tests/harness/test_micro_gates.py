"""Tests of the micro benchmark's gates: each can pass, fail, be unable to tell, and be invalid."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from harness.micro import gates
from harness.micro.cases import Shape
from harness.micro.gates import Gate, Verdict
from harness.micro.summary import Group, Line

MIB = 1 << 20
GROUP = Group("load", MIB, Shape(1, 64), 16)
URING = "kvfs (uring)"
CPU = Gate("cpu", (URING,), "cpu_us_per_chunk", base_arm="fs", at_most=0.5)
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
        pytest.param(0.3, gates.PASS, id="far-below"),
        pytest.param(0.499, gates.PASS, id="just-below"),
        pytest.param(0.502, gates.INCONCLUSIVE, id="above-by-less-than-the-spread"),
        pytest.param(0.6, gates.REGRESSION, id="above"),
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
        assert verdict.answer == gates.INVALID
        assert "7 are the least" in verdict.why


def test_missing_arm_case_or_proof_is_invalid() -> None:
    fast = [line("fs", STEADY), line(URING, scaled(0.1))]
    assert judge_one(CPU, fast).answer == gates.PASS
    assert judge_one(CPU, fast[1:]).answer == gates.INVALID
    assert judge_one(CPU, []).answer == gates.INVALID
    assert judge_one(replace(CPU, op="store"), fast).answer == gates.INVALID
    unproven = ["kvfs (uring), load 1 MiB 1x64, 16 threads: 3% of the bytes were seen at the device"]
    assert judge_one(CPU, fast, unproven).answer == gates.INVALID
    assert judge_one(CPU, fast, [unproven[0].replace("1 MiB", "3 MiB")]).answer == gates.PASS


def test_too_much_spread_at_the_bound_is_no_pass() -> None:
    wild = [10.0, 10.0, 40.0, 45.0, 120.0, 130.0, 150.0]
    verdict = judge_one(CPU, [line("fs", STEADY), line(URING, wild)])
    assert (verdict.answer, verdict.why) == (gates.INCONCLUSIVE, "too much spread")


def test_only_cases_of_the_gate_are_judged() -> None:
    small = replace(GROUP, chunk_bytes=1 << 16)
    lines = [
        line(arm, STEADY, group=group) for group in (GROUP, small) for arm in ("fs", URING, "kvfs-fallback")
    ]
    assert len(gates.judge([CPU], lines)) == 2
    assert len(gates.judge([replace(CPU, chunk_min=MIB)], lines)) == 1
    assert len(gates.judge([replace(CPU, chunk_max=MIB - 1)], lines)) == 1
    assert judge_one(replace(CPU, shape=Shape(16, 16)), lines).answer == gates.INVALID
    assert judge_one(replace(CPU, threads=4), lines).answer == gates.INVALID
    assert gates.only_measured([CPU, replace(CPU, threads=4)], lines) == [CPU]


def test_throughput_may_fall_by_the_noise_of_fs_against_itself() -> None:
    gate = Gate("speed", (URING,), "gb_per_s", base_arm="fs", at_least=1.0, less_noise=True)
    lines = [line("fs", STEADY, "gb_per_s"), line(URING, scaled(0.9), "gb_per_s")]
    assert judge_one(gate, lines).answer == gates.REGRESSION
    again = line("fs-aa", scaled(1.2), "gb_per_s")
    verdict = judge_one(gate, [*lines, again])
    assert verdict.answer == gates.PASS
    assert verdict.bound == pytest.approx(1 / 1.2)


def test_limit_is_the_one_of_the_same_operation_and_size() -> None:
    gate = Gate("limit", (URING,), "gb_per_s", base_arm="fio (uring)", at_least=0.9)
    mine = line(URING, scaled(0.95), "gb_per_s")
    limit = line("fio (uring)", STEADY, "gb_per_s", Group("load", MIB, None, None))
    other = line("fio (uring)", scaled(9), "gb_per_s", Group("load", 2 * MIB, None, None))
    assert judge_one(gate, [other, limit, mine]).answer == gates.PASS
    assert judge_one(gate, [other, mine]).answer == gates.INVALID


def test_percentiles_compare_metrics_of_one_arm() -> None:
    gate = Gate(
        "gap", (URING,), "victim_gap_us", base_metric="victim_gap_idle_us", percentile=99.0, at_most=1.3
    )
    idle = [200.0] * 990 + [400.0] * 20
    busy = [220.0] * 990 + [1000.0] * 20
    lines = [Line(GROUP, URING, {"victim_gap_us": busy, "victim_gap_idle_us": idle})]
    verdict = judge_one(gate, lines)
    assert (verdict.answer, verdict.ratio) == (gates.REGRESSION, 2.5)
    assert judge_one(replace(gate, percentile=50.0), lines).answer == gates.PASS


def test_every_gate_of_the_file_can_fail_and_pass() -> None:
    for gate in gates.read():
        chunk = max(gate.chunk_min, min(gate.chunk_max, MIB))
        group = Group(gate.op or "load", chunk, gate.shape or Shape(1, 64), gate.threads or 16)
        limit = Group(group.op, chunk, None, None) if gate.base_arm.startswith("fio") else group
        for factor, answer in ((0.1, gates.PASS), (10.0, gates.REGRESSION)):
            by = factor if gate.at_least == 0.0 else 1 / factor
            lines = [line(arm, scaled(by), gate.metric, group) for arm in gate.arms]
            if gate.base_metric:
                lines = [
                    Line(each.group, each.arm, {**each.metrics, gate.base_metric: STEADY}) for each in lines
                ]
            else:
                lines.append(line(gate.base_arm, STEADY, gate.metric, limit))
            verdicts = gates.judge([gate], lines)
            assert [verdict.answer for verdict in verdicts] == [answer] * len(gate.arms), gate.name


def test_table_shows_the_worst_case_and_all_that_do_not_pass() -> None:
    groups = [replace(GROUP, threads=count) for count in (1, 4, 16)]
    factors = (0.3, 0.6, 0.7)
    lines = [line("fs", STEADY, group=group) for group in groups]
    lines += [line(URING, scaled(factor), group=group) for group, factor in zip(groups, factors, strict=True)]
    rows = gates.grid(gates.judge([CPU], lines)).rows
    assert [(row[2], row[3], row[-1]) for row in rows] == [
        (gates.REGRESSION, "0.60", "3"),
        (gates.REGRESSION, "0.70", "3"),
    ]
    (row,) = gates.grid(gates.judge([replace(CPU, at_most=0.9)], lines)).rows
    assert row[:4] == ["cpu", "load 1 MiB 1x64, 16 threads: kvfs (uring)", gates.PASS, "0.70"]
