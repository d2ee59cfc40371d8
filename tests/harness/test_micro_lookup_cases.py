"""Tests of which lookups are planned: prompts, contenders, and what the command line makes of them."""

import pytest

from harness.errors import UsageError
from harness.micro import lookup_cases
from harness.micro.__main__ import COMMAND
from harness.micro.lookup_cases import LookupCase, LookupPlan, ScaleCase
from harness.micro.options import Options

ARMS = ["fs", "kvfs", "kvfs-fallback", "fio"]


def planned(*options: str) -> LookupPlan:
    return Options(**COMMAND.make_context("micro", list(options)).params).lookup_plan()


def test_plan_has_every_pattern_of_every_length_idle_and_busy() -> None:
    cases = lookup_cases.plan([512, 3600])
    assert len(cases) == len(set(cases)) == 12
    assert {(case.keys, case.pattern, case.busy) for case in cases} == {
        (keys, pattern, busy)
        for keys in (512, 3600)
        for pattern in ("hit", "half", "miss")
        for busy in (False, True)
    }
    assert [case.present for case in cases[:3]] == [512, 256, 0]


def test_runs_have_many_prompts_and_busy_ones_jobs_beside() -> None:
    for keys in (2, 512, 3600, 16000, 1_000_000):
        idle, busy = LookupCase(keys, "hit", busy=False), LookupCase(keys, "hit", busy=True)
        assert 5 <= idle.requests <= 40
        assert idle.chunks_per_job == 0
        assert 64 <= busy.chunks_per_job <= 512


@pytest.mark.parametrize("text", ["", "1", "0", "-5", "many", "1000001"])
def test_prompt_without_two_halves_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="a prompt has 2 to 1000000 keys"):
        lookup_cases.parse_keys(text)


def test_contenders_have_the_stock_tier_at_both_ends_and_kvfs_in_both_modes() -> None:
    assert [each.label for each in lookup_cases.contenders(ARMS, ["uring", "psync"])] == [
        "fs",
        "kvfs owner",
        "kvfs shared",
        "kvfs-fallback owner",
        "kvfs-fallback shared",
        "fs-aa",
    ]


@pytest.mark.parametrize(
    ("io", "asked"), [(["uring", "psync"], "auto"), (["uring"], "auto"), (["psync"], "psync")]
)
def test_contender_takes_io_uring_where_it_may_and_works(io: list[str], asked: str) -> None:
    assert {each.io for each in lookup_cases.contenders(["kvfs"], io)} == {asked}


def test_case_key_has_the_keys_of_the_suite() -> None:
    owner = lookup_cases.contenders(["kvfs"], ["psync"])[0]
    assert LookupCase(512, "half", busy=True).key(owner, "psync", "ext4") == {
        "op": "lookup",
        "layout": "files",
        "io": "psync",
        "dir_fs": "ext4",
        "keys": 512,
        "mode": "owner",
        "pattern": "half",
        "busy": True,
    }


def test_default_run_has_lookups_and_the_questions_of_scale() -> None:
    plan = planned()
    assert {case.keys for case in plan.cases} == {512, 3600, 16000}
    assert plan.scale == [ScaleCase("start", 200_000), ScaleCase("index", 10_000_000)]
    assert (plan.runs, plan.files) == (7, 16000)


def test_smoke_has_short_prompts_and_no_scale_unless_it_is_asked_for() -> None:
    plan = planned("--smoke")
    assert {case.keys for case in plan.cases} == {64}
    assert (plan.runs, list(plan.scale)) == (1, [])
    assert planned("--smoke", "--scale", "200").scale == [ScaleCase("start", 200)]


@pytest.mark.parametrize(
    ("options", "cases", "scale"),
    [
        (["--op", "store,load"], 0, 0),
        (["--op", "lookup", "--keys", "512", "--scale", "0", "--scale-keys", "0"], 6, 0),
        (["--op", "lookup", "--keys", "512", "--arms", "fs"], 6, 0),
        (["--op", "lookup", "--keys", "512", "--scale", "0"], 6, 1),
    ],
    ids=["not-asked-for", "no-scale", "no-kvfs", "index-alone"],
)
def test_options_pick_what_is_measured(options: list[str], cases: int, scale: int) -> None:
    plan = planned(*options)
    assert (len(plan.cases), len(plan.scale)) == (cases, scale)


def test_chunks_are_not_moved_where_lookups_alone_are_asked_for() -> None:
    # The size of chunks is none of its business either.
    options = ["--op", "lookup", "--chunk", "8MiB", "--max-bytes", "1MiB"]
    assert list(Options(**COMMAND.make_context("micro", options).params).plan().cases) == []
