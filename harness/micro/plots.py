"""Draw throughput and CPU time against threads: every arm and the disk's limit, one panel a chunk size."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.micro.arms import FIO
from harness.micro.cases import LOAD, STORE, Shape, size_text
from harness.micro.summary import Line

# Distinguishable without colour, too: each arm has a marker of its own (colours of Okabe and Ito).
_STYLES: Final = {
    "fs": ("#000000", "o", "-"),
    "fs-aa": ("#8c8c8c", "o", ":"),
    "kvfs (uring)": ("#d55e00", "D", "-"),
    "kvfs (psync)": ("#0072b2", "s", "-"),
    "kvfs-unverified (uring)": ("#e69f00", "D", "--"),
    "kvfs-unverified (psync)": ("#56b4e9", "s", "--"),
    "kvfs-fallback": ("#009e73", "^", "-"),
}
_LIMIT_COLOUR: Final = "#b8860b"
_METRICS: Final = (
    ("gb_per_s", "throughput, GB/s"),
    ("cpu_us_per_chunk", "CPU time a chunk, µs"),
)
_SIZES_IN_A_WIDE_FIGURE: Final = 4
_TITLES: Final = {STORE: "Store", LOAD: "Load"}


def draw_all(lines: Sequence[Line], directory: Path, subtitle: str) -> list[Path]:
    """Draw one picture for each operation and shape, as PNG and as SVG, and return the files.

    Args:
        lines: Of a session.
        directory: Gets the files.
        subtitle: Where it was measured.
    """
    lines = [line for line in lines if line.group.op in _TITLES and "gb_per_s" in line.metrics]
    pictures: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        if line.group.shape is not None:
            pictures.setdefault((line.group.op, _kind(line.group.shape)), []).append(line)
    limits = [line for line in lines if line.group.shape is None]
    paths = []
    with mpl.rc_context({"svg.fonttype": "none", "font.size": 9}):
        for (op, kind), members in pictures.items():
            own_limits = [line for line in limits if line.group.op == op]
            figure = _draw(op, kind, members, own_limits, subtitle)
            for suffix in ("png", "svg"):
                path = directory / f"micro-{op}-{'one-job' if 'one job' in kind else 'many-jobs'}.{suffix}"
                figure.savefig(path, dpi=150)
                paths.append(path)
    return paths


def _kind(shape: Shape) -> str:
    """Return which picture a shape belongs to: large chunks may have fewer in a job."""
    return "one job at a time" if shape.jobs == 1 else "many jobs at once"


def _draw(op: str, kind: str, lines: Sequence[Line], limits: Sequence[Line], subtitle: str) -> Figure:
    sizes = sorted({line.group.chunk_bytes for line in lines})
    figure = Figure(figsize=(max(6.5, 2.5 * len(sizes) + 1), 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(_METRICS), len(sizes), squeeze=False, sharex=True)
    threads = sorted({line.group.threads for line in lines if line.group.threads is not None})
    for row, (metric, label) in enumerate(_METRICS):
        for column, size in enumerate(sizes):
            axes: Axes = grid[row][column]
            limit = next((line for line in limits if line.group.chunk_bytes == size), None)
            _draw_panel(axes, metric, [line for line in lines if line.group.chunk_bytes == size], limit)
            axes.set_xticks([math.log2(count) for count in threads], [str(count) for count in threads])
            axes.set_ylim(bottom=0)
            if row == 0:
                shapes = {str(line.group.shape) for line in lines if line.group.chunk_bytes == size}
                jobs = ", ".join(sorted(shapes))
                axes.set_title(f"{size_text(size)}\njobs {jobs}", fontsize=9)
            if column == 0:
                axes.set_ylabel(label)
            if row == len(_METRICS) - 1:
                axes.set_xlabel("read and write threads")
    handles: dict[str, Artist] = {}
    for axes in grid.flat:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=len(handles) if len(sizes) >= _SIZES_IN_A_WIDE_FIGURE else 3,
        frameon=False,
    )
    figure.suptitle(f"{_TITLES[op]}, {kind}: medians, dots are runs\n{subtitle}", fontsize=10)
    return figure


def draw_arms(
    axes: Axes,
    metric: str,
    lines: Sequence[Line],
    styles: Mapping[str, tuple[str, str, str]],
    where: Callable[[Line], int | None],
) -> None:
    """Draw a metric of all arms: medians joined by a line, and every value as a dot.

    Args:
        axes: Where to draw; the horizontal axis is the logarithm of base 2.
        metric: What is drawn.
        lines: What was measured.
        styles: Colour, marker and dash of each arm, in the order of the legend.
        where: A line's place on the horizontal axis.
    """
    arms = sorted({line.arm for line in lines}, key=list(styles).index)
    for number, arm in enumerate(arms):
        colour, marker, dash = styles[arm]
        own = sorted((line for line in lines if line.arm == arm), key=lambda line: where(line) or 0)
        # Arms stand a little beside each other, so that equal ones can be seen.
        shift = (number - (len(arms) - 1) / 2) * 0.06
        places = [math.log2(where(line) or 1) + shift for line in own]
        axes.plot(
            places,
            [line.median(metric) or math.nan for line in own],
            color=colour,
            marker=marker,
            linestyle=dash,
            markersize=4.5,
            linewidth=1.4,
            label=arm,
        )
        for place, line in zip(places, own, strict=True):
            values = line.metrics.get(metric, [])
            axes.plot([place] * len(values), values, ".", color=colour, markersize=3, alpha=0.35, zorder=1)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_panel(axes: Axes, metric: str, lines: Sequence[Line], limit: Line | None) -> None:
    """Draw one metric at one chunk size."""
    draw_arms(axes, metric, lines, _STYLES, lambda line: line.group.threads)
    if limit is not None and (value := limit.median(metric)):
        label = f"{FIO.name}: 16 requests deep, one file"
        axes.axhline(value, color=_LIMIT_COLOUR, linestyle="--", linewidth=1.4, label=label, zorder=0)
