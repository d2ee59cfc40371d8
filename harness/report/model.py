"""What a report is made of, before it is drawn: sections with sentences, pictures and tables."""

import enum
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from harness.records import Record
from harness.report.grid import NOTHING, Grid, significant

# So many values of one mark are drawn each; of more, the middle half alone.
VALUES_DRAWN_MAX: Final = 30


# What reading records ends in that their suite would not have written.
UNREADABLE: Final = (LookupError, ValueError, TypeError, ArithmeticError)


class Kind(enum.Enum):
    """How a picture's panels are drawn."""

    CURVES = "curves"
    TIME = "time"
    INTERVALS = "intervals"


@dataclass(frozen=True)
class Mark:
    """One place of a series.

    Attributes:
        x: Its place on the horizontal axis; of an interval the middle's.
        middle: The median, or the value itself.
        low: The lower end of what its spread is.
        high: The upper one.
        values: The raw values where there are few.
        count: How many there are.
    """

    x: float
    middle: float
    low: float
    high: float
    values: Sequence[float] = ()
    count: int = 1


@dataclass(frozen=True)
class Series:
    """What is drawn in one colour; `name` is its arm as people read it."""

    name: str
    marks: Sequence[Mark]


@dataclass(frozen=True)
class Panel:
    """One small plot of a picture.

    Attributes:
        title: What it is of.
        series: What is drawn.
        group: Panels whose ratios are told together.
    """

    title: str
    series: Sequence[Series]
    group: str = ""


@dataclass(frozen=True)
class Picture:
    """Panels that share their axes, their legend and a caption.

    Attributes:
        title: Its heading.
        kind: How it is drawn.
        x_label: The horizontal axis, with its unit.
        y_label: The vertical one, with its unit.
        panels: At least one.
        notes: The caption: what the marks are, of how many values, and where that was measured.
        base: The series that `findings` compares with, if it is there.
        x_word: What a place on the horizontal axis is called, "4 streams".
        logarithmic: Whether the values differ too much for a linear axis.
        table: The same in figures.
    """

    title: str
    kind: Kind
    x_label: str
    y_label: str
    panels: Sequence[Panel]
    notes: Sequence[str]
    base: str = ""
    x_word: str = ""
    logarithmic: bool = False
    table: Grid | None = None

    @property
    def names(self) -> list[str]:
        """The series of all panels, each once."""
        return list(dict.fromkeys(series.name for panel in self.panels for series in panel.series))


@dataclass(frozen=True)
class Section:
    """A part of the report under a heading of its own.

    Attributes:
        title: The heading.
        sentences: Paragraphs; what stands in backquotes is code, what stands in two asterisks is strong.
        pictures: Plots.
        grids: Tables.
        missing: What the records do not have, and what measures it; "" if they have it.
    """

    title: str
    sentences: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    grids: Sequence[Grid] = ()
    missing: str = ""


def mark(x: float, values: Sequence[float]) -> Mark:
    """Return the mark of raw values: their median, and the middle half of them."""
    low = high = middle = statistics.median(values)
    if len(values) > 1:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    drawn = values if len(values) <= VALUES_DRAWN_MAX else ()
    return Mark(x, middle, low, high, drawn, len(values))


def number(value: object) -> float:
    """Return a field of a case as a number; what is none counts as 0, so that hand-made records are drawn."""
    try:
        return float(str(value))
    except ValueError:
        return 0.0


def curve_notes(panels: Sequence[Panel], what: str) -> list[str]:
    """Say what the marks of curves are and of how many values.

    Args:
        panels: Theirs.
        what: What one value is of, "run".
    """
    counts = [each.count for panel in panels for series in panel.series for each in series.marks]
    spread = "there is one value a mark, so that no spread can be shown"
    if max(counts) > 1:
        spread = "the bar is the middle half of the values (25th to 75th percentile)"
        if min(counts) <= VALUES_DRAWN_MAX:
            spread += f", dots are the values themselves where there are at most {VALUES_DRAWN_MAX}"
    return [f"A mark is the median; {spread}. {span(counts)} a mark, one value a {what}."]


def span(counts: Sequence[int]) -> str:
    """Return how many values there are, in words."""
    low, high = min(counts), max(counts)
    return f"n = {low}" if low == high else f"n = {low} to {high}"


def curve_table(picture: Picture, column: str) -> Grid:
    """Return a picture of curves in figures, a row a mark.

    Args:
        picture: The picture.
        column: Heading of the horizontal axis.
    """
    rows = [
        [
            panel.title,
            series.name,
            f"{each.x:g}",
            str(each.count),
            significant(each.middle),
            f"{significant(each.low)} to {significant(each.high)}" if each.count > 1 else NOTHING,
        ]
        for panel in picture.panels
        for series in panel.series
        for each in series.marks
    ]
    columns = ("panel", "arm", column, "n", f"median, {picture.y_label}", "middle half")
    return Grid(picture.title, columns, rows, 2)


def finding(picture: Picture, panel: Panel) -> str:
    """Say in a sentence what a panel shows, for those who cannot see it."""
    if picture.kind is Kind.INTERVALS:
        return "; ".join(
            f"{series.name}: {each.middle:+.3f} ({each.low:+.3f} to {each.high:+.3f})"
            for series in panel.series
            for each in series.marks
        )
    if picture.kind is Kind.TIME:
        parts = []
        for series in panel.series:
            values = [each.middle for each in series.marks]
            figures = (statistics.median(values), max(values))
            parts.append("{}: median {}, highest {}".format(series.name, *map(significant, figures)))
        return "; ".join(parts)
    last = max(each.x for series in panel.series for each in series.marks)
    found = [
        f"{series.name} {significant(each.middle)}"
        for series in panel.series
        for each in series.marks
        if each.x == last
    ]
    return f"at {last:g} {picture.x_word}: {', '.join(found)}"


def comparisons(picture: Picture) -> list[str]:
    """Say how each series compares with the base wherever both were measured: ratios, never a verdict."""
    ratios: dict[str, dict[str, list[float]]] = {}
    for panel in picture.panels:
        base = next((series for series in panel.series if series.name == picture.base), None)
        at: Mapping[float, float] = {each.x: each.middle for each in base.marks} if base else {}
        for series in panel.series:
            found = [each.middle / at[each.x] for each in series.marks if at.get(each.x)]
            if series is not base and found:
                ratios.setdefault(panel.group, {}).setdefault(series.name, []).extend(found)
    return [
        f"{f'{group}, times' if group else 'Times'} **{picture.base}**: {'; '.join(map(_ratio, of.items()))}."
        for group, of in ratios.items()
    ]


def _ratio(item: tuple[str, Sequence[float]]) -> str:
    name, found = item
    low, middle, high = map(significant, (min(found), statistics.median(found), max(found)))
    return f"**{name}** {middle} ({low} to {high} in {len(found)} places)"


def where(records: Sequence[Record]) -> str:
    """Say on which machine and which file system records were measured."""
    seen = dict.fromkeys(
        f"{record.env.get('filesystem', 'an unknown file system')} on "
        f"{record.env.get('device', 'an unknown device')}, {record.env.get('cpu_count', '?')} CPUs "
        f"({record.env.get('cpu', 'unknown')})"
        for record in records
    )
    return f"Measured on {'; and on '.join(seen)}."
