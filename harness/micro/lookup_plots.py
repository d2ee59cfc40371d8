"""Draw what a key costs the scheduler and how long a verdict takes, by the prompt's length, for every arm."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.micro.cases import LOOKUP
from harness.micro.lookup_cases import HALF, HIT, MISS, PATTERNS
from harness.micro.plots import draw_arms
from harness.micro.summary import Line

# As in plots.py: each arm has a marker of its own beside its colour; shared modes are dashed.
_STYLES: Final = {
    "fs": ("#000000", "o", "-"),
    "fs-aa": ("#8c8c8c", "o", ":"),
    "kvfs owner": ("#d55e00", "D", "-"),
    "kvfs shared": ("#0072b2", "s", "--"),
    "kvfs-fallback owner": ("#009e73", "^", "-"),
    "kvfs-fallback shared": ("#cc79a7", "v", "--"),
}
_METRICS: Final = (
    ("scheduler_cpu_ns_per_key", "scheduler's CPU time a key, ns"),
    ("verdict_wall_ms", "time to the verdict, ms"),
)
_TITLES: Final = {HIT: "all keys are there", HALF: "the first half is there", MISS: "none is there"}


def draw_all(lines: Sequence[Line], directory: Path, subtitle: str) -> list[Path]:
    """Draw one picture of idle tiers and one of busy ones, as PNG and as SVG, and return the files.

    Args:
        lines: Of a session.
        directory: Gets the files.
        subtitle: Where it was measured.
    """
    paths = []
    with mpl.rc_context({"svg.fonttype": "none", "font.size": 9}):
        for busy in (False, True):
            members = [line for line in lines if line.group.op == LOOKUP and line.group.busy is busy]
            if not members:
                continue
            figure = _draw(members, "beside 32 jobs" if busy else "idle", subtitle)
            for suffix in ("png", "svg"):
                path = directory / f"micro-lookup-{'busy' if busy else 'idle'}.{suffix}"
                figure.savefig(path, dpi=150)
                paths.append(path)
    return paths


def _draw(lines: Sequence[Line], kind: str, subtitle: str) -> Figure:
    patterns = [pattern for pattern in PATTERNS if any(line.group.pattern == pattern for line in lines)]
    figure = Figure(figsize=(2.9 * len(patterns) + 1, 6.8), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(_METRICS), len(patterns), squeeze=False, sharex=True, sharey="row")
    lengths = sorted({line.group.keys for line in lines if line.group.keys is not None})
    for row, (metric, label) in enumerate(_METRICS):
        for column, pattern in enumerate(patterns):
            axes: Axes = grid[row][column]
            _draw_panel(axes, metric, [line for line in lines if line.group.pattern == pattern])
            axes.set_xticks([math.log2(length) for length in lengths], [str(length) for length in lengths])
            if row == 0:
                axes.set_title(_TITLES[pattern], fontsize=9)
            if column == 0:
                axes.set_ylabel(label)
            if row == len(_METRICS) - 1:
                axes.set_xlabel("keys of the prompt")
    handles: dict[str, Artist] = {}
    for axes in grid.flat:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(f"Lookup, {kind}: medians, dots are prompts\n{subtitle}", fontsize=10)
    return figure


def _draw_panel(axes: Axes, metric: str, lines: Sequence[Line]) -> None:
    """Draw one metric of one pattern; what differs by hundreds needs a logarithmic axis."""
    draw_arms(axes, metric, lines, _STYLES, lambda line: line.group.keys)
    axes.set_yscale("log")
