"""Draw pictures as SVG that lies within a page and takes its colours from there, in light and in dark."""

import io
import math
import re
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from harness.report.model import Kind, Panel, Picture

# The page's variables: each has a value for light pages and one for dark ones. Hues are those of Okabe and
# Ito, which colour-blind people tell apart, made darker or lighter until they stand out (a test has the least
# contrast). matplotlib draws with the first value; afterwards the variable takes its place.
PALETTE: Final = {
    "ink": ("#1b1b1f", "#e8e8ea"),
    "quiet": ("#5c5f66", "#a8abb2"),
    "rule": ("#d9dadd", "#3b3d42"),
    "orange": ("#c24e00", "#f5904a"),
    "blue": ("#0068a8", "#62b5f0"),
    "green": ("#007a5a", "#3cc79b"),
    "pink": ("#ad4d86", "#e59cc6"),
    "gold": ("#8a6a00", "#e0bd3f"),
    "violet": ("#6a4fb3", "#b3a1f2"),
}
BACKGROUND: Final = ("#ffffff", "#17181b")
# Narrow enough for a phone; a desk shows three beside each other.
_SIZE_INCHES: Final = (3.7, 2.5)
_ROW_INCHES: Final = 0.42
# Letters of a name that fit above its interval.
_NAME_MAX: Final = 44
_LABEL_INCHES: Final = 0.6
# What lies left of the axes, as a share of the width.
_LEFT: Final = {Kind.CURVES: 0.145, Kind.TIME: 0.145, Kind.INTERVALS: 0.03}
_DECADES: Final = 100.0
# How far series stand beside each other, of a doubling on the horizontal axis.
_BESIDE: Final = 0.07


@dataclass(frozen=True)
class Style:
    """How a series looks: distinguishable without colour, too."""

    colour: str
    marker: str
    dash: Literal["-", "--", ":"] = "-"

    @property
    def drawn(self) -> str:
        """The colour that matplotlib draws with."""
        return PALETTE[self.colour][0]


_STYLES: Final = {
    "none": Style("quiet", "x", ":"),
    "none, cold": Style("quiet", "x", ":"),
    "fs": Style("ink", "o"),
    "fs-aa": Style("quiet", "o", ":"),
    "kvfs": Style("orange", "D"),
    "kvfs (uring)": Style("orange", "D"),
    "kvfs owner": Style("orange", "D"),
    "kvfs (psync)": Style("blue", "s"),
    "kvfs shared": Style("blue", "s", "--"),
    "kvfs-fallback": Style("green", "^"),
    "kvfs-fallback owner": Style("green", "^"),
    "kvfs-fallback shared": Style("pink", "v", "--"),
    "dram": Style("violet", "P"),
    "target": Style("gold", "s"),
    "base": Style("ink", "o"),
    "head": Style("orange", "D"),
}
_DASHES: Final[tuple[Literal["-", "--", ":"], ...]] = ("-", "--", ":")
_OTHERS: Final = tuple(
    Style(colour, marker, dash)
    for dash in _DASHES
    for colour, marker in zip(
        ("blue", "orange", "green", "gold", "violet", "pink"), ("s", "D", "^", "P", "v", "X"), strict=True
    )
)


def styles(names: Sequence[str]) -> dict[str, Style]:
    """Return how each series of a picture looks: as its arm looks everywhere, which is named first."""
    arms = {name: name if name in _STYLES else name.partition(", ")[0] for name in names}
    found = {name: _STYLES[arm] for name, arm in arms.items() if arm in _STYLES}
    free = [style for style in _OTHERS if style not in found.values()]
    unknown = [name for name in names if name not in found]
    return found | {name: free[number % len(free)] for number, name in enumerate(unknown)}


def draw(picture: Picture, prefix: str) -> list[str]:
    """Return one SVG for each panel of a picture.

    Args:
        picture: What to draw.
        prefix: Makes the elements' ids differ from those of other pictures on the page.
    """
    looks = styles(picture.names)
    bounds = _bounds(picture)
    drawn = []
    for index, panel in enumerate(picture.panels):
        height = _SIZE_INCHES[1]
        if picture.kind is Kind.INTERVALS:
            height = _LABEL_INCHES + _ROW_INCHES * len(panel.series)
        with _settings():
            figure = Figure(figsize=(_SIZE_INCHES[0], height))
            axes = figure.add_axes(_room(picture.kind, height))
            {Kind.CURVES: _curves, Kind.TIME: _time, Kind.INTERVALS: _intervals}[picture.kind](
                axes, panel, looks
            )
            axes.set_xlabel(picture.x_label)
            if picture.kind is not Kind.INTERVALS:
                # Above the axis and level, so that figures of any width leave it alone.
                figure.text(0.012, 0.985, picture.y_label, va="top")
                axes.grid(axis="y", linewidth=0.6)
                _scale(axes, bounds, logarithmic=picture.logarithmic)
            drawn.append(_svg(figure, f"{prefix}-{index}"))
    return drawn


def legend(names: Sequence[str], kind: Kind, prefix: str) -> list[tuple[str, str]]:
    """Return each series' name with a small SVG of how it looks; nothing where rows bear their names."""
    if kind is Kind.INTERVALS:
        return []
    entries = []
    for index, (name, style) in enumerate(styles(names).items()):
        with _settings():
            figure = Figure(figsize=(0.42, 0.18))
            line = Line2D(
                [0.02, 0.5, 0.98], [0.5] * 3, color=style.drawn, linestyle=style.dash, linewidth=1.6
            )
            if kind is Kind.CURVES:
                line.set(marker=style.marker, markersize=6, markevery=[1])
            figure.add_artist(line)
            entries.append((name, _svg(figure, f"{prefix}-legend-{index}")))
    return entries


def _settings() -> AbstractContextManager[None]:
    """Return matplotlib's settings, for a `with`."""
    return mpl.rc_context(
        {
            # Text stays text: it can be read aloud, searched, and takes the page's colour.
            "svg.fonttype": "none",
            "svg.hashsalt": "kvfs",
            "text.parse_math": False,
            "font.size": 9,
            "font.family": ["sans-serif"],
            "text.color": PALETTE["ink"][0],
            "axes.labelcolor": PALETTE["ink"][0],
            "axes.edgecolor": PALETTE["quiet"][0],
            "xtick.color": PALETTE["quiet"][0],
            "ytick.color": PALETTE["quiet"][0],
            "xtick.labelcolor": PALETTE["ink"][0],
            "ytick.labelcolor": PALETTE["ink"][0],
            "grid.color": PALETTE["rule"][0],
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.facecolor": "none",
            "figure.facecolor": "none",
            "axes.axisbelow": True,
        }
    )


def _room(kind: Kind, height_inches: float) -> tuple[float, float, float, float]:
    """Return left, bottom, width and height of the axes; a place that is sought takes ten times as long."""
    bottom = 0.47 / height_inches
    top = 1 - (0.06 if kind is Kind.INTERVALS else 0.28) / height_inches
    return _LEFT[kind], bottom, 0.975 - _LEFT[kind], top - bottom


def _scale(axes: Axes, bounds: tuple[float, float], *, logarithmic: bool) -> None:
    """Give the vertical axis its bounds, and figures that people write."""
    axes.set_yscale("log" if logarithmic else "linear")
    axes.set_ylim(bounds)
    if logarithmic:
        # Of less than two decades one figure each would be too little.
        few = bounds[1] < _DECADES * bounds[0]
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _bounds(picture: Picture) -> tuple[float, float]:
    """Return the vertical axis of all panels, so that they can be compared by eye."""
    values = [
        value
        for panel in picture.panels
        for series in panel.series
        for each in series.marks
        for value in (each.low, each.middle, each.high, *each.values)
    ]
    if picture.logarithmic:
        above = [value for value in values if value > 0] or [1.0]
        return min(above) / 1.3, max(above) * 1.3
    return min(0.0, *values), max(values, default=1.0) * 1.06 or 1.0


def _curves(axes: Axes, panel: Panel, looks: dict[str, Style]) -> None:
    ticks = sorted({each.x for series in panel.series for each in series.marks})
    for number, series in enumerate(panel.series):
        style = looks[series.name]
        # Series stand a little beside each other, so that equal ones can be seen.
        shift = (number - (len(panel.series) - 1) / 2) * _BESIDE
        marks = sorted(series.marks, key=lambda each: each.x)
        places = [_log2(each.x) + shift for each in marks]
        axes.plot(
            places,
            [each.middle for each in marks],
            color=style.drawn,
            marker=style.marker,
            linestyle=style.dash,
            markersize=4.5,
            linewidth=1.4,
        )
        spread = [(place, each) for place, each in zip(places, marks, strict=True) if each.count > 1]
        axes.vlines(
            [place for place, _ in spread],
            [each.low for _, each in spread],
            [each.high for _, each in spread],
            color=style.drawn,
            linewidth=1.0,
        )
        dots = [(place, value) for place, each in spread for value in each.values]
        axes.plot(
            [place for place, _ in dots],
            [value for _, value in dots],
            ".",
            color=style.drawn,
            markersize=2.5,
            alpha=0.5,
        )
    axes.set_xticks([_log2(tick) for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.set_xlim(_log2(ticks[0]) - 0.4, _log2(ticks[-1]) + 0.4)


def _time(axes: Axes, panel: Panel, looks: dict[str, Style]) -> None:
    for series in panel.series:
        style = looks[series.name]
        axes.plot(
            [each.x for each in series.marks],
            [each.middle for each in series.marks],
            color=style.drawn,
            linestyle=style.dash,
            linewidth=1.2,
        )
    axes.set_xlim(left=0)


def _intervals(axes: Axes, panel: Panel, looks: dict[str, Style]) -> None:
    """Draw a row for each series: its name, and below it the middle and what it hardly lies outside of."""
    rows = range(len(panel.series))
    axes.vlines(
        [0] * len(rows),
        [row + 0.02 for row in rows],
        [row + 0.38 for row in rows],
        color=PALETTE["quiet"][0],
        linewidth=0.8,
    )
    widest = 0.0
    for row, series in enumerate(panel.series):
        style = looks[series.name]
        name = series.name
        if len(name) > _NAME_MAX:
            name = f"{name[: _NAME_MAX - 1]}…"
        axes.text(0.0, row - 0.2, name, transform=axes.get_yaxis_transform(), va="center")
        for each in series.marks:
            axes.plot([each.low, each.high], [row + 0.2] * 2, color=style.drawn, linewidth=1.6)
            axes.plot([each.middle], [row + 0.2], color=style.drawn, marker=style.marker, markersize=5)
            widest = max(widest, abs(each.low), abs(each.high))
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_ylim(len(panel.series) - 0.5, -0.5)
    # All the same is a point in the middle of an axis that still has a width.
    axes.set_xlim(-1.15 * widest or -0.1, 1.15 * widest or 0.1)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="x", linewidth=0.6)


def _log2(x: float) -> float:
    return math.log2(x) if x > 0 else -1.0


def _svg(figure: Figure, prefix: str) -> str:
    """Return a figure as an element for a page: colours are its variables, and ids its own."""
    FigureCanvasSVG(figure)
    buffer = io.StringIO()
    with warnings.catch_warnings():
        # Only the width of such text is guessed then; the browser has the letters.
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    variables = {light: f"var(--{name})" for name, (light, _) in PALETTE.items()}
    text = re.sub(r"(?<=: )#[0-9a-f]{6}(?=[;\"])", lambda found: variables[found.group()], text)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{prefix}-", text)
    # The page decides how wide it is; the view box keeps its shape.
    for name in ("width", "height"):
        text = re.sub(rf'^(<svg [^>]*?) {name}="[^"]*"', r"\1", text, count=1)
    return text
