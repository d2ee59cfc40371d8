"""Tests that lookups stay true, whatever is done to a namespace, in whichever order and by whomever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from lookup_machine import Lookups, Setting, made_for
from lookup_process import Nursery


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


@pytest.fixture
def lookups(nursery: Nursery, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lookups]:
    """Yield a machine in a setting, to be led through a sequence of rules by hand."""
    machine = made_for(nursery, tmp_path, request.param)()
    machine.begin(is_large=False)
    machine.answers_are_possible()
    yield machine
    machine.teardown()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(Setting("owner", "nobody"), id="owner-alone"),
        pytest.param(Setting("shared", "vllm"), id="shared-with-a-vllm"),
        pytest.param(Setting("auto", "vllm"), id="auto-with-a-vllm"),
        pytest.param(Setting("auto", "kvfs"), id="auto-with-another-kvfs"),
    ],
)
def test_lookups_are_true_whatever_happens(nursery: Nursery, tmp_path: Path, setting: Setting) -> None:
    machine = made_for(nursery, tmp_path, setting)
    # Each rule and the invariant assert; the first that fails is raised here.
    run_state_machine_as_test(machine, settings=settings())
    # There was something to be wrong about.
    hits = machine.compared["HIT"]
    assert min(hits, machine.compared.total() - hits) > 100


# What the machine has found, step by step.


@pytest.mark.parametrize("lookups", [pytest.param(Setting("auto", "kvfs"), id="auto")], indirect=True)
def test_another_kvfs_that_came_and_went_unseen_is_noticed(lookups: Lookups) -> None:
    """The owner asked whether somebody shares; who had stored and gone before it did was never noticed."""
    lookups.others_store([4])
    lookups.let_the_time_to_live_pass()
    lookups.answers_are_possible()
    assert not lookups.engine.call("status").is_owner


@pytest.mark.parametrize("lookups", [pytest.param(Setting("auto", "nobody"), id="auto")], indirect=True)
def test_own_chunk_whose_load_failed_is_not_taken_for_somebody_elses(lookups: Lookups) -> None:
    """The check of a MISS found the engine's own chunk, forgotten meanwhile, and gave the namespace up."""
    lookups.wait_for_scan()
    lookups.answers_are_possible()
    lookups.store([6])
    lookups.load_to_nowhere([6])
    lookups.answer()
    lookups.answers_are_possible()
    assert lookups.engine.call("status").is_owner


@pytest.mark.parametrize("lookups", [pytest.param(Setting("auto", "nobody"), id="auto")], indirect=True)
def test_chunk_whose_load_failed_is_not_missed_after_a_restart(lookups: Lookups) -> None:
    """The snapshot was whole without it, so that the next owner said MISS until its scan had ended."""
    lookups.make_scans_long(2000)
    lookups.wait_for_scan()
    lookups.store([2, 5])
    lookups.load_to_nowhere([2])
    lookups.answers_are_possible()
    lookups.restart("close", [], [], None, 0, "nothing")
    while not lookups.engine.call("status").is_scanned:
        lookups.answers_are_possible()
    lookups.answers_are_possible()
    assert lookups.engine.call("status").is_owner
