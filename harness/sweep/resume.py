"""Find what an earlier start of the same sweep has measured, from its records alone."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from harness import records
from harness.errors import UsageError
from harness.records import Record
from harness.sweep.plan import STAGES, Leg, Study

SUITE: Final = "sweep"
# Where a record's `env` keeps what must be the same for two starts to be parts of one sweep.
OPTIONS_KEY: Final = "options"
_ALSO_SAME: Final = ("commit", "dirty", "versions", "filesystem")
_SHOWN_LENGTH: Final = 60


def read_earlier(out_dir: Path) -> list[Record]:
    """Return the sweep's records of a directory, none where there is no file.

    Raises:
        RecordError: A line is not a record.
    """
    path = out_dir / records.FILE_NAME
    if not path.is_file():
        return []
    return [record for record in records.read(path) if record.suite == SUITE]


def done_legs(study: Study, earlier: Sequence[Record], env: Mapping[str, object]) -> list[Leg]:
    """Return the legs of a study that have been measured.

    A leg's records are written together, so each leg is there as a whole or not at all.

    Args:
        study: What is to be measured.
        earlier: All records of sweeps.
        env: What every new record will say, `OPTIONS_KEY` included.

    Raises:
        UsageError: The records are of this scenario, and of other options or other software.
    """
    mine = [record for record in earlier if record.case.get("scenario") == study.scenario.name]
    for record in mine:
        _require_same(study.scenario.name, record.env, env)
    measured = {
        (
            record.arm,
            record.case["threads"],
            record.case["write_threads"],
            record.phase,
            record.case["streams"],
        )
        for record in mine
        if record.metric == "requests_per_s"
    }
    return [
        leg
        for leg in study.legs()
        if all(
            (leg.arm.name, leg.threads.read, leg.threads.write, phase, streams) in measured
            for stage in STAGES
            for phase in leg.phases(stage)
            for streams in study.setup.streams
        )
    ]


def _require_same(name: str, old: Mapping[str, object], new: Mapping[str, object]) -> None:
    for key, before, after in _differences(old, new):
        raise UsageError(
            f"--out has a sweep of {name} with {key} {_short(before)}, and this one has {_short(after)}; "
            "name another --out, or go on with the options that it was started with"
        )


def _differences(old: Mapping[str, object], new: Mapping[str, object]) -> "list[tuple[str, object, object]]":
    ours, theirs = new.get(OPTIONS_KEY), old.get(OPTIONS_KEY)
    pairs = [(key, old.get(key), new.get(key)) for key in _ALSO_SAME]
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        pairs += [(key, theirs.get(key), ours.get(key)) for key in sorted({*ours, *theirs})]
    else:
        pairs.append((OPTIONS_KEY, theirs, ours))
    # As JSON: what was read from a file has lists where there may have been tuples.
    return [
        pair for pair in pairs if json.dumps(pair[1], sort_keys=True) != json.dumps(pair[2], sort_keys=True)
    ]


def _short(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}..."
