"""Tests of what a benchmark runs and in which order, and of the arms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import arms, plan
from harness.arms import ARMS
from harness.errors import UsageError
from harness.plan import Plan

TASKS = ("niah_single_1", "ruler_vt")


def make(*, quick: bool = True, names: str = ",".join(ARMS), servers_at_once: int = 2) -> Plan:
    return plan.make(
        arms.parse_arms(names),
        quick=quick,
        tasks=TASKS,
        seed=plan.DEFAULT_SEED,
        servers_at_once=servers_at_once,
    )


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "default"])
@pytest.mark.parametrize("servers_at_once", [1, 2])
def test_every_arm_runs_cold_before_it_runs_warm_with_each_thread_count(
    quick: bool, servers_at_once: int
) -> None:
    made = make(quick=quick, servers_at_once=servers_at_once)
    order = [(block.arm.name, block.n_threads, block.stage) for block in made.blocks()]
    for name in ("fs", "kvfs", "kvfs-fallback"):
        for n_threads in made.threads:
            cold, warm = order.index((name, n_threads, "cold")), order.index((name, n_threads, "warm"))
            assert cold < warm
    assert ("none", 0, "cold") in order
    assert len(order) == 1 + 6 * len(made.threads) + (0 if quick else 1)


def test_a_cold_server_and_the_warm_one_on_its_directory_never_run_side_by_side() -> None:
    for group in make(quick=False).groups():
        assert len(group) <= 2
        assert len({(block.arm.name, block.n_threads) for block in group}) == len(group)


def test_names_of_blocks_are_unique() -> None:
    names = [block.name for block in make(quick=False).blocks()]
    assert len(set(names)) == len(names)


def test_arms_of_a_group_take_turns_and_each_is_first_once() -> None:
    made = make(names="fs,kvfs")
    steps = list(made.steps(made.groups()[0]))
    load = [(step.block.arm.name, step.phase, step.streams) for step in steps if step.streams]
    assert load == [
        ("fs", "cold", 1),
        ("kvfs", "cold", 1),
        ("kvfs", "cold", 4),
        ("fs", "cold", 4),
        ("fs", "host", 1),
        ("kvfs", "host", 1),
        ("kvfs", "host", 4),
        ("fs", "host", 4),
    ]
    # Two documents, and two more for the control.
    asked = [(step.asked.task, step.asked.documents) for step in steps if step.asked]
    assert asked == [("niah_single_1", 4)] * 2


def test_control_asks_documents_that_were_asked_cold_and_not_warm() -> None:
    made = make(names="none,fs,kvfs")
    asked = [
        (step.block.arm.name, step.phase, step.asked.first, step.asked.documents)
        for group in made.groups()
        for step in made.steps(group)
        if step.asked
    ]
    assert sorted(asked) == [
        ("fs", "cold", 0, 4),
        ("fs", "damaged", 2, 2),
        ("fs", "warm", 0, 2),
        ("kvfs", "cold", 0, 4),
        ("kvfs", "damaged", 2, 2),
        ("kvfs", "warm", 0, 2),
        ("none", "cold", 0, 2),
    ]


def test_the_arms_that_begin_end_too() -> None:
    """Whoever runs first cold runs last warm, and the next thread count begins at the other end."""
    firsts = [group[0].arm.name for group in make(quick=False, names="fs,kvfs").groups()]
    assert firsts == ["fs", "kvfs", "kvfs", "fs"]


def test_each_step_has_an_estimate() -> None:
    made = make(quick=False)
    for group in made.groups():
        assert len(list(made.group_seconds(group))) == len(list(made.steps(group))) + 2


def test_streams_have_seeds_far_apart() -> None:
    made = make()
    assert made.seed_for(4) - made.seed_for(1) >= 1000


def test_a_conversation_ends_before_its_next_whole_chunk() -> None:
    """Otherwise a later turn would store a chunk, and warm would find more than cold had."""
    for quick in (True, False):
        work = make(quick=quick).workload
        first_turn = work.prefix_tokens + work.prompt_tokens
        assert first_turn // arms.TOKENS_PER_CHUNK == work.conversation_tokens // arms.TOKENS_PER_CHUNK
        assert work.prefix_tokens % arms.TOKENS_PER_CHUNK == 0


def test_the_primary_tier_holds_what_cold_stores() -> None:
    made = make(quick=False)
    assert made.cpu_bytes_to_use(5_898_240) > made.load_chunks() * 5_898_240
    assert made.disk_bytes(5_898_240) > 3 * made.load_chunks() * 5_898_240


def test_an_arm_tells_vllm_its_tier_and_threads() -> None:
    text = arms.kv_transfer_config(ARMS["kvfs"], Path("/data/x"), 16, 1 << 30, "engine-1")
    assert text is not None
    config = json.loads(text)
    assert config["kv_connector"] == "OffloadingConnector"
    assert config["engine_id"] == "engine-1"
    extra = config["kv_connector_extra_config"]
    assert extra["spec_name"] == "KvfsOffloadingSpec"
    assert extra["secondary_tiers"] == [
        {"type": "kvfs", "root_dir": "/data/x", "n_read_threads": 16, "n_write_threads": 16}
    ]


def test_host_memory_alone_has_no_disk_tier() -> None:
    assert not arms.DRAM.offloads
    text = arms.kv_transfer_config(arms.DRAM, Path("/data/x"), 0, 1 << 30, "engine-1")
    assert text is not None
    extra = json.loads(text)["kv_connector_extra_config"]
    assert (extra["secondary_tiers"], extra["cpu_bytes_to_use"]) == ([], 1 << 30)


def test_read_and_write_threads_may_differ() -> None:
    text = arms.kv_transfer_config(ARMS["fs"], Path("x"), 32, 1, "e", n_write_threads=16)
    assert text is not None
    (tier,) = json.loads(text)["kv_connector_extra_config"]["secondary_tiers"]
    assert (tier["n_read_threads"], tier["n_write_threads"]) == (32, 16)


def test_arms_differ_in_tier_or_environment_alone() -> None:
    assert arms.kv_transfer_config(ARMS["none"], Path("x"), 4, 1, "e") is None
    kvfs, fallback = (
        arms.kv_transfer_config(ARMS[n], Path("x"), 4, 1, "e") for n in ("kvfs", "kvfs-fallback")
    )
    stock = arms.kv_transfer_config(ARMS["fs"], Path("x"), 4, 1, "e")
    assert kvfs == fallback
    assert stock is not None
    assert kvfs is not None
    assert stock.replace('"type": "fs"', '"type": "kvfs"') == kvfs
    assert ARMS["kvfs-fallback"].environment == {"KVFS_DISABLE_EXT": "1"}


@pytest.mark.parametrize(
    ("text", "message"), [("fs,mooncake", "unknown arm 'mooncake'"), (",", "no arm is named")]
)
def test_unknown_arms_are_named_with_the_known_ones(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        arms.parse_arms(text)
    assert "choose from none,fs,kvfs,kvfs-fallback" in str(caught.value)
