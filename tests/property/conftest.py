"""How the property tests look for counterexamples: the same way in every run, unless told otherwise."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

# Processes and files take their time, and what fails must be seen before it is made small.
_COMMON = settings(
    deadline=None,
    print_blob=True,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

# A test that fails now and then teaches people to run it again: these examples are the same in every run.
settings.register_profile("kvfs", _COMMON, derandomize=True, max_examples=15, stateful_step_count=30)
# Others each time, and more of them: `pytest tests/property --hypothesis-profile=kvfs-search`.
settings.register_profile("kvfs-search", _COMMON, max_examples=200, stateful_step_count=50)


def pytest_configure(config: pytest.Config) -> None:
    # What it caches goes where git does not look, instead of a directory of its own.
    set_hypothesis_home_dir(config.rootpath / ".pytest_cache" / "hypothesis")
    if not config.getoption("--hypothesis-profile"):
        settings.load_profile("kvfs")
