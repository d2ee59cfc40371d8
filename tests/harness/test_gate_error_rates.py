"""How often the gate is wrong, on comparisons drawn from noise that was recorded on a real machine."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from gate_records import comparison
from rich.console import Console

from harness.errors import EXIT_FAILED, EXIT_OK
from harness.gate import error_rates, noise
from harness.gate.__main__ import COMMAND
from harness.gate.error_rates import CAUGHT_MIN, COMPARISONS, FALSE_MAX, rates_of, scenarios
from harness.gate.judge import judge, read_rules
from harness.gate.noise import Noise, NoiseError
from harness.records import RecordLog
from harness.verdicts import REGRESSION


@pytest.fixture(scope="module")
def recorded() -> Noise:
    return noise.read(error_rates.NOISE)


@pytest.mark.timeout(600)
def test_equal_wheels_are_called_a_regression_at_most_once_in_a_hundred(recorded: Noise) -> None:
    rates = rates_of(scenarios()[0], recorded, read_rules())
    assert sum(rates.counts.values()) == COMPARISONS == 200
    assert rates.counts.get(REGRESSION, 0) <= FALSE_MAX * COMPARISONS == 2


@pytest.mark.timeout(600)
def test_ten_percent_slower_is_caught_in_95_of_100(recorded: Noise) -> None:
    rates = rates_of(scenarios()[1], recorded, read_rules())
    assert sum(rates.counts.values()) == COMPARISONS == 200
    assert rates.counts[REGRESSION] >= CAUGHT_MIN * COMPARISONS == 190


def test_rules_that_call_any_difference_a_regression_miss_the_demand(recorded: Noise) -> None:
    careless = replace(
        read_rules(), regression_error=1.0, at_most={"wall_us_per_op": 1.0, "cpu_us_per_op": 1.0}
    )
    rates = rates_of(scenarios()[0], recorded, careless, 40)
    assert rates.counts[REGRESSION] > FALSE_MAX * 40
    assert not rates.holds


def test_rules_that_see_nothing_miss_the_demand(recorded: Noise) -> None:
    blind = replace(read_rules(), at_most={"wall_us_per_op": 2.0, "cpu_us_per_op": 2.0})
    assert not rates_of(scenarios()[1], recorded, blind, 20).holds


def test_error_rates_command_fails_when_a_demand_is_missed() -> None:
    console = Console(record=True, width=160)
    assert error_rates.run(None, read_rules(), console, 10) == EXIT_OK
    assert "REGRESSION <= 1%: holds" in console.export_text()
    blind = replace(read_rules(), at_most={"wall_us_per_op": 2.0, "cpu_us_per_op": 2.0})
    assert error_rates.run(None, blind, console, 10) == EXIT_FAILED
    assert "REGRESSION >= 95%: MISSED" in console.export_text()


def test_simulated_comparison_has_the_effect_that_it_was_given(recorded: Noise) -> None:
    line, other = sorted(recorded.blocks[0])[:2]
    found = recorded.comparison(np.random.default_rng(0), 400, {line: np.log(1.5)})
    effects = {effect.line: effect for effect in judge(found, replace(read_rules(), looks=(400,))).effects}
    assert effects[line].ratio == pytest.approx(1.5, rel=0.03)
    assert effects[other].ratio == pytest.approx(1.0, rel=0.03)


def test_noise_of_records_comes_back_as_it_was_measured(tmp_path: Path) -> None:
    equal = {"wheel": {"revision": "a", "sha256": "same", "backend": "extension"}}
    log = RecordLog(tmp_path)
    log.extend([*comparison(6, 0.0, 0.02, env=equal), *comparison(7, 0.0, 0.02, number=2, seed=2, env=equal)])
    found = noise.read(log.path)
    assert len(found.blocks) == 13
    line = min(found.blocks[0])
    assert found.spread(line) == pytest.approx(0.02, rel=0.5)
    condensed = tmp_path / "noise.json"
    condensed.write_text(json.dumps(noise.condense(log.records)))
    assert noise.read(condensed) == found


@pytest.mark.parametrize(
    ("env", "blocks"),
    [
        pytest.param({}, 6, id="two-wheels"),
        pytest.param({"wheel": {"sha256": "same"}, "slowdown": 0.1}, 6, id="slowed-down"),
        pytest.param({"wheel": {"sha256": "same"}, "cpu": None}, 6, id="unknown-machine"),
        pytest.param({"wheel": {"sha256": "same"}}, 0, id="no-block"),
    ],
)
def test_records_that_are_no_noise_are_refused(env: dict[str, object], blocks: int) -> None:
    with pytest.raises(NoiseError, match="no noise can be taken"):
        noise.condense(comparison(blocks, env=env))


def test_noise_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "noise.json"
    file.write_text("{")
    result = CliRunner().invoke(COMMAND, ["--error-rates", "--noise", str(file)])
    assert result.exit_code == EXIT_FAILED
    assert result.output.count("\n") == 1
    assert "cannot be read as noise" in result.output
