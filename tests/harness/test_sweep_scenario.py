"""Tests of the named workloads: those that are shipped, what a scale makes of them, files with mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.sweep import scenario
from harness.sweep.scenario import FULL, QUICK, SCALED, Threads

CONTEXT_TOKENS = 4096
CHUNK_TOKENS = 128
GOOD = """
source = "somebody"
seed = 1
[load]
turns = 2
prefix_tokens = 1000
prefix_count = 10
prompt_tokens = 100
output_tokens = 50
output_tokens_stdev = 20
[full]
scale = 1
streams = [8]
threads = ["4"]
arms = ["fs"]
conversations = 9
duration_s = 60
host_gib = 2
[scaled]
scale = 10
streams = [1, 2]
threads = ["4", "8/2"]
arms = ["dram", "fs"]
conversations = 3
host_share = 0.5
[quick]
scale = 20
streams = [1]
threads = ["4"]
arms = ["fs"]
conversations = 2
host_share = 0.5
"""


def written(directory: Path, text: str) -> Path:
    (directory / "mine.toml").write_text(text)
    return directory


def test_shipped_scenarios_say_their_source_and_run_it_at_full_size() -> None:
    full = {name: scenario.load(name) for name in scenario.names()}
    sources = {name: found.source.split(":")[0] for name, found in full.items()}
    assert sources == {
        "prefix-10k": "vllm-project/vllm#46713",
        "disk-4k": "vllm-project/vllm#49152",
        "conversations": "vllm-project/vllm-ascend#10575",
    }
    lookups = full["prefix-10k"].workload(full["prefix-10k"].setups[FULL])
    assert (lookups.prefix_tokens, lookups.prefix_count, lookups.turns) == (10_000, 200, 5)
    assert (lookups.prompt_tokens, lookups.output_tokens, lookups.duration_s) == (128, 128, 700)
    busy = full["disk-4k"].workload(full["disk-4k"].setups[FULL])
    assert (busy.prompt_tokens, busy.output_tokens, busy.prefix_count) == (4096, 512, 256)
    talk = full["conversations"].workload(full["conversations"].setups[FULL])
    assert (talk.prefix_tokens, talk.spread["first_prompt_tokens_max"]) == (2000, 10_320)
    assert [str(t) for t in full["disk-4k"].setups[FULL].threads] == ["4", "16"]
    assert [str(t) for t in full["conversations"].setups[FULL].threads] == ["32/16"]
    assert [arm.name for arm in full["conversations"].setups[FULL].arms] == ["none", "fs", "kvfs", "dram"]
    assert {name: found.setups[FULL].streams for name, found in full.items()} == {
        "prefix-10k": (100,),
        "disk-4k": (64,),
        "conversations": (8, 16),
    }


@pytest.mark.parametrize("size", [SCALED, QUICK])
@pytest.mark.parametrize("name", scenario.names())
def test_scaled_scenarios_fit_the_context_and_begin_with_whole_chunks(name: str, size: str) -> None:
    found = scenario.load(name)
    work = found.workload(found.setups[size])
    assert work.conversation_tokens < 0.9 * CONTEXT_TOKENS
    assert work.prefix_tokens % CHUNK_TOKENS == 0
    assert work.prefix_tokens >= CHUNK_TOKENS
    assert work.turns == found.lengths["turns"], "how often a prefix is used is the workload's nature"


def test_scale_divides_lengths_and_numbers_and_keeps_them_sensible(tmp_path: Path) -> None:
    found = scenario.load("mine", written(tmp_path, GOOD))
    scaled = found.workload(found.setups[SCALED])
    assert (scaled.prefix_tokens, scaled.prefix_count) == (128, 1)
    assert (scaled.prompt_tokens, scaled.output_tokens) == (10, 5)
    assert (scaled.spread, scaled.duration_s) == ({"output_tokens_stdev": 2}, 0)
    quick = found.workload(found.setups[QUICK])
    assert (quick.prompt_tokens, quick.output_tokens) == (8, 3)
    full = found.workload(found.setups[FULL])
    assert (full.prefix_tokens, full.prompt_tokens, full.spread) == (1000, 100, {"output_tokens_stdev": 20})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("turns = 2", "turns = 2\nturn = 3", r"\[load\] has unknown keys: turn; known are .*turns"),
        ("turns = 2", "", r"\[load\] lacks turns"),
        ("turns = 2", "turns = 2.5", r"\[load\] turns must be a whole number from 1 on, got 2.5"),
        ("prefix_count = 10", "prefix_count = 0", r"\[load\] prefix_count .* got 0"),
        ("scale = 10", 'scale = "10"', r"\[scaled\] scale must be a number above 0, got '10'"),
        ("scale = 10", "scale = true", r"\[scaled\] scale .* got True"),
        ("streams = [1, 2]", "streams = []", r"\[scaled\] streams must be a list that is not empty"),
        ("streams = [1, 2]", "streams = 2", r"\[scaled\] streams must be a list .* got 2"),
        ('"8/2"', '"8/x"', r"'8/x' is no number of threads"),
        ('["dram", "fs"]', '["nfs"]', r"unknown arm 'nfs'; choose from none,fs"),
        ("host_gib = 2", "host_gib = 2\nhost_share = 1", r"\[full\] needs host_gib or host_share, one"),
        ("[quick]", "[quic]", r"unknown keys: quic"),
        ('source = "somebody"', "source = 3", r"source must be a string"),
        ("seed = 1", "seed = ", r"not TOML"),
    ],
)
def test_scenario_with_a_mistake_says_file_key_and_what_it_needs(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert GOOD.count(old) >= 1
    with pytest.raises(UsageError, match=f"mine.toml: .*{said}"):
        scenario.load("mine", written(tmp_path, GOOD.replace(old, new, 1)))


def test_unknown_scenario_is_told_which_there_are() -> None:
    with pytest.raises(
        UsageError, match="'nix': there is none; choose from conversations,disk-4k,prefix-10k"
    ):
        scenario.load("nix")


def test_threads_are_one_number_or_two() -> None:
    assert Threads.parse("16") == Threads(16, 16)
    assert Threads.parse("32/16") == Threads(32, 16)
    assert [str(Threads.parse(text)) for text in ("4", "4/4", "32/16")] == ["4", "4", "32/16"]
    for text in ("", "0", "x", "1/2/3", "-1", "2000"):
        with pytest.raises(UsageError, match="is no number of threads"):
            Threads.parse(text)
