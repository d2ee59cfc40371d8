"""What the disk did while a sweep ran: its samples over time."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from harness.records import Record
from harness.report import model
from harness.report.grid import Grid, significant
from harness.report.model import Kind, Mark, Panel, Picture, Section, Series

# Metric, title, label of the axis, and by what its values are divided.
_METRICS: Final = (
    ("disk_read_mb_per_s", "Reads from the device", "read, MB/s", 1.0),
    ("disk_write_mb_per_s", "Writes to the device", "written, MB/s", 1.0),
    ("disk_busy_percent", "How busy the device was", "busy, % of the time", 1.0),
    ("disk_used_bytes", "What the tier's directory takes", "used, MB", 1e6),
)
_INTERVAL: Final = "interval_s"
# More samples than a panel has dots are drawn as means of neighbours.
_SAMPLES_MAX: Final = 300


def section(records: Sequence[Record]) -> Section:
    """Return a picture of each metric with a panel for each scenario, phase, thread count and concurrency."""
    title = "The disk over time"
    pictures = []
    for metric, heading, label, divisor in _METRICS:
        mine = [record for record in records if record.metric == metric and _interval_s(record) > 0]
        if mine:
            pictures.append(_picture(mine, heading, label, divisor))
    if not pictures:
        return Section(
            title, missing="The disk was not watched while something ran: `nox -s sweep` does that."
        )
    how = "Seconds count from the begin of each phase. The device is the whole machine's, whoever used it."
    return Section(title, [how], pictures)


def _interval_s(record: Record) -> float:
    return model.number(record.case.get(_INTERVAL, record.env.get(_INTERVAL)))


def _picture(records: Sequence[Record], heading: str, label: str, divisor: float) -> Picture:
    panels: dict[str, list[Series]] = {}
    for record in records:
        marks = list(_marks(record, divisor))
        panels.setdefault(_title(record), []).append(Series(record.arm, marks))
    counts = [len(record.values) for record in records]
    intervals = " or ".join(
        f"{interval:g}" for interval in sorted({_interval_s(record) for record in records})
    )
    samples = f"Lines are samples, one every {intervals} s, without a spread; {model.span(counts)} a line."
    if max(counts) > _SAMPLES_MAX:
        samples += f" Of more than {_SAMPLES_MAX} the means of neighbours are drawn."
    return Picture(
        title=heading,
        kind=Kind.TIME,
        x_label="since the phase began, s",
        y_label=label,
        panels=[Panel(title, series) for title, series in panels.items()],
        notes=[samples, model.where(records)],
        table=_table(records, heading, label, divisor),
    )


def _title(record: Record) -> str:
    case = record.case
    streams = case.get("streams")
    threads = case.get("threads")
    parts = [
        str(case.get("scenario", "")),
        record.phase,
        f"{threads} threads" if threads else "",
        f"{streams} streams" if streams else "",
    ]
    return ", ".join(filter(None, parts))


def _marks(record: Record, divisor: float) -> Iterator[Mark]:
    interval_s = _interval_s(record)
    step = -(-len(record.values) // _SAMPLES_MAX)
    for start in range(0, len(record.values), step):
        value = statistics.fmean(record.values[start : start + step]) / divisor
        yield Mark(start * interval_s, value, value, value)


def _table(records: Sequence[Record], heading: str, label: str, divisor: float) -> Grid:
    rows = []
    for record in records:
        values = [value / divisor for value in record.values]
        figures = (statistics.fmean(values), statistics.median(values), max(values), values[-1])
        rows.append([_title(record), record.arm, str(len(values)), *map(significant, figures)])
    columns = ("phase", "arm", "n", f"mean, {label}", "median", "highest", "last")
    return Grid(heading, columns, rows, 2)
