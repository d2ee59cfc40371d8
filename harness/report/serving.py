"""Throughput and time to first token against concurrency: what `bench` and `sweep` measured."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from harness.arms import ARMS, BASELINE, STOCK
from harness.plan import COLD, HOST, WARM
from harness.records import Record
from harness.report import model
from harness.report.model import Kind, Panel, Picture, Section, Series
from harness.sweep import summary as sweep_summary

SWEEP: Final = "sweep"
SUITES: Final = ("bench", SWEEP)
# Metric, title, label of the axis, and what one value is of.
_METRICS: Final = (
    ("requests_per_s", "Requests per second", "requests/s", "run"),
    ("ttft_ms", "Time to first token of first turns", "TTFT, ms", "request"),
    ("output_tokens_per_s", "Output tokens per second", "output tokens/s", "run"),
)
_PHASES: Final = (COLD, HOST, WARM)
# From so many times on a linear axis shows the smallest as nothing.
_LINEAR_MAX: Final = 20.0
_Places = Mapping[tuple[str, str, str], Mapping[float, Sequence[float]]]


def section(records: Sequence[Record]) -> Section:
    """Return the pictures of every scenario, each metric's panels by thread count and phase."""
    title = "Throughput and time to first token"
    found = [record for record in records if record.suite in SUITES and record.case.get("streams")]
    pictures = [
        picture
        for suite, scenario in dict.fromkeys(map(_scenario, found))
        for picture in _pictures(
            [record for record in found if _scenario(record) == (suite, scenario)], suite, scenario
        )
    ]
    if not pictures:
        return Section(title, missing="No load was measured: `nox -s bench` and `nox -s sweep` do.")
    phases = (
        "**cold**: every prompt is computed, and stored. **host**: the same again, from host memory. "
        "**warm**: the same after a restart, from disk. An arm that offloads nothing computes all of it each "
        "time; its cold figures stand beside the other phases, too."
    )
    return Section(title, [phases], pictures)


def sweep_tables(records: Sequence[Record]) -> Section:
    """Return the tables of `sweep` itself: what requests saw, where their tokens came from, and the disk."""
    title = "Tables of sweep"
    mine = [record for record in records if record.suite == SWEEP]
    if not mine:
        return Section(title, missing="`nox -s sweep` did not add to these records.")
    return Section(title, grids=sweep_summary.grids(mine))


def _scenario(record: Record) -> tuple[str, str]:
    name = str(record.case.get("scenario", ""))
    scale = record.case.get("scale")
    return record.suite, f"{name}, scale {model.number(scale):g}" if name and scale is not None else name


def _pictures(records: Sequence[Record], suite: str, scenario: str) -> Iterator[Picture]:
    for metric, title, label, each in _METRICS:
        mine = [record for record in records if record.metric == metric and record.case.get("turn", 1) == 1]
        if not mine:
            continue
        panels = list(_panels(_places(mine)))
        medians = [each.middle for panel in panels for series in panel.series for each in series.marks]
        picture = Picture(
            title=f"{title}: {suite}{f', {scenario}' if scenario else ''}",
            kind=Kind.CURVES,
            x_label="conversations at a time (streams)",
            y_label=label,
            panels=panels,
            notes=[*model.curve_notes(panels, each), model.where(mine)],
            base=STOCK,
            x_word="streams",
            logarithmic=min(medians) > 0 and max(medians) > _LINEAR_MAX * min(medians),
        )
        yield replace(picture, table=model.curve_table(picture, "streams"))


def _places(records: Sequence[Record]) -> dict[tuple[str, str, str], dict[float, list[float]]]:
    """Return values by phase, threads and arm, and then by streams."""
    found: dict[tuple[str, str, str], dict[float, list[float]]] = {}
    for record in records:
        place = (record.phase, _threads(record), record.arm)
        streams = model.number(record.case.get("streams"))
        found.setdefault(place, {}).setdefault(streams, []).extend(record.values)
    return found


def _threads(record: Record) -> str:
    read, write = record.case.get("threads"), record.case.get("write_threads")
    if not read:
        return ""
    return f"{read}" if write in (None, read) else f"{read}/{write}"


def _panels(places: _Places) -> Iterator[Panel]:
    """Yield a panel for each phase and thread count; arms without threads stand in all of a phase."""
    phases = sorted({place[0] for place in places}, key=_phase_order)
    threads = sorted(
        {place[1] for place in places if place[1]},
        key=lambda text: [model.number(part) for part in text.split("/")],
    )
    for count in threads or [""]:
        for phase in phases:
            series = [
                Series(arm, _marks(values))
                for (its_phase, its_threads, arm), values in sorted(places.items(), key=_arm_order)
                if its_phase == phase and its_threads in ("", count)
            ]
            cold = places.get((COLD, "", BASELINE))
            if cold and (phase, "", BASELINE) not in places:
                series.insert(0, Series(f"{BASELINE}, {COLD}", _marks(cold)))
            if len(series) > bool(cold):
                where = f"{count} thread{'' if count == '1' else 's'}" if count else ""
                yield Panel(", ".join(filter(None, (phase, where))), series, group=phase)


def _arm_order(item: tuple[tuple[str, str, str], object]) -> tuple[int, str]:
    """Return where an arm stands: the baseline first, and what is not known after all that is."""
    arm = item[0][2]
    return (list(ARMS).index(arm) if arm in ARMS else len(ARMS), arm)


def _phase_order(phase: str) -> tuple[int, str]:
    return (_PHASES.index(phase) if phase in _PHASES else len(_PHASES), phase)


def _marks(values: Mapping[float, Sequence[float]]) -> list[model.Mark]:
    return [model.mark(streams, values[streams]) for streams in sorted(values)]
