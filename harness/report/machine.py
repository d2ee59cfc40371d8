"""Where it was measured: what the records say about machine, disk and software."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from harness.records import Record
from harness.report.grid import NOTHING, Grid
from harness.report.model import Section

# What is the same for all records of a session, in this order; `versions` is taken apart.
_KEYS: Final = (
    "cpu",
    "cpu_count",
    "memory_bytes",
    "kernel",
    "filesystem",
    "device",
    "device_model",
    "mount_options",
    "python",
    "versions",
    "dtype",
    "commit",
    "dirty",
)
_ARM_KEYS: Final = ("engine", "io_backend", "io_engine", "o_direct", "page_cache", "wheel")
_NAMES: Final = {
    "memory_bytes": "memory",
    "dirty": "local changes",
    "o_direct": "O_DIRECT",
    "cpu": "CPU",
    "cpu_count": "CPUs",
}
# More of one thing than this is no longer read.
_VALUES_MAX: Final = 4
_TEXT_MAX: Final = 160


def section(records: Sequence[Record]) -> Section:
    """Return the environments of all suites side by side, and of each arm what did its I/O."""
    suites = list(dict.fromkeys(record.suite for record in records))
    rows = []
    for key in _KEYS:
        cells = [_cell([record for record in records if record.suite == suite], key) for suite in suites]
        if any(cell != NOTHING for cell in cells):
            rows.append([_NAMES.get(key, key.replace("_", " ")), *cells])
    arm_rows = []
    for suite, arm in dict.fromkeys((record.suite, record.arm) for record in records):
        mine = [record for record in records if (record.suite, record.arm) == (suite, arm)]
        arm_rows.append([suite, arm, *(_cell(mine, key) for key in _ARM_KEYS)])
    columns = ("suite", "arm", *(_NAMES.get(key, key.replace("_", " ")) for key in _ARM_KEYS))
    used = [index for index in range(len(columns)) if any(row[index] != NOTHING for row in arm_rows)]
    arms = Grid(
        "Each arm",
        [columns[index] for index in used],
        [[row[index] for index in used] for row in arm_rows],
        len(used),
    )
    how = (
        "Absolute figures are those of one machine in one hour; what counts is how interleaved arms compare."
    )
    return Section(
        "Environment",
        [how],
        grids=[Grid("Machine and software", ("", *suites), rows, len(suites) + 1), arms],
    )


def _cell(records: Sequence[Record], key: str) -> str:
    texts = list(dict.fromkeys(_text(key, record.env[key]) for record in records if key in record.env))
    shown = texts[:_VALUES_MAX]
    if len(texts) > len(shown):
        shown.append(f"and {len(texts) - len(shown)} more")
    return "; ".join(shown) or NOTHING


def _text(key: str, value: object) -> str:
    if key == "memory_bytes" and isinstance(value, int | float):
        return f"{value / 1e9:.0f} GB"
    if key == "page_cache" and isinstance(value, Mapping):
        return f"{value.get('state', 'unknown')}{'' if value.get('proven', True) else ', NOT proven'}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {each}" for name, each in value.items())[:_TEXT_MAX]
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:_TEXT_MAX]
