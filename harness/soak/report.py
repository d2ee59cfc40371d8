"""A soak on paper: a table of what was done, a picture of the samples over time, and its records."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.records import HIGHER, LOWER, Record, RecordLog, Scalar
from harness.report import Grid
from harness.soak.checks import Sample, Seen

SUITE: Final = "soak"
_MIB: Final = 1 << 20
# What is drawn: title, unit of the axis, lines as (attribute of a sample, label, divisor).
_PANELS: Final[Sequence[tuple[str, str, Sequence[tuple[str, str, float]]]]] = (
    ("On disk, of what the capacity bounds", "MiB", [("physical_bytes", "blocks", _MIB)]),
    ("Memory of the longest-lived process", "MiB", [("rss_bytes", "resident", _MIB)]),
    (
        "Its descriptors and threads",
        "number",
        [("descriptors", "open descriptors", 1), ("threads", "threads", 1)],
    ),
    ("Chunks moved, all processes", "1/s", [("loads_per_s", "loads", 1), ("stores_per_s", "stores", 1)]),
    ("Loads, from submission to end", "ms", [("load_p50_ms", "median", 1), ("load_p99_ms", "p99", 1)]),
    ("Stores, from submission to end", "ms", [("store_p50_ms", "median", 1), ("store_p99_ms", "p99", 1)]),
)
_LOGARITHMIC: Final = frozenset({"ms"})
# Colours of Okabe and Ito.
_COLOURS: Final = ("#0072b2", "#d55e00")
_LIMIT_COLOUR: Final = "#b8860b"
_METRICS: Final[Mapping[str, tuple[str, str]]] = {
    "rss_bytes": ("bytes", LOWER),
    "descriptors": ("files", LOWER),
    "threads": ("threads", LOWER),
    "physical_bytes": ("bytes", LOWER),
    "loads_per_s": ("1/s", HIGHER),
    "stores_per_s": ("1/s", HIGHER),
    "load_p50_ms": ("ms", LOWER),
    "load_p99_ms": ("ms", LOWER),
    "store_p50_ms": ("ms", LOWER),
    "store_p99_ms": ("ms", LOWER),
}
_COUNTS: Final = (
    ("chunks loaded and compared", "loads"),
    ("chunks stored", "stores"),
    ("lookups", "lookups"),
    ("stores shed for want of room", "sheds"),
    ("hits that somebody else had evicted", "gone"),
    ("chunks evicted", "evicted_chunks"),
    ("temporaries of dead writers reclaimed", "reclaimed_temporaries"),
    ("damaged files found by loads", "damaged"),
    ("chunks loaded by the last starts", "final loads"),
    ("damaged files found by the last starts", "final damaged"),
    ("wrong chunks served", "wrong"),
    ("errors", "errors"),
)


def write_records(log: RecordLog, seen: Seen, case: Mapping[str, Scalar], env: Mapping[str, object]) -> None:
    """Write each series of samples as a record."""
    env = {**env, "counts": dict(seen.counts), "damages": seen.damages, "kills": seen.kills}
    if not seen.samples:
        return
    for metric, (unit, better) in _METRICS.items():
        values = [getattr(sample, metric) for sample in seen.samples]
        log.append(Record(SUITE, case, "kvfs", metric, unit, better, values, env))


def grid(seen: Seen) -> Grid:
    """Return what was done and seen as a table."""
    rows = [[text, f"{seen.counts[name]:,}"] for text, name in _COUNTS]
    rows[:0] = [
        ["processes killed", f"{seen.kills:,}"],
        ["processes closed and started again", f"{seen.restarts:,}"],
        ["files damaged", f"{seen.damages:,}"],
    ]
    if seen.samples:
        worst = max(sample.physical_bytes for sample in seen.samples)
        rows.append(["most on disk, of the capacity", f"{worst / seen.capacity_bytes:.1%}"])
        for text, name, divisor in (
            ("on disk, first and last quarter, MiB", "physical_bytes", _MIB),
            ("memory, first and last quarter, MiB", "rss_bytes", _MIB),
            ("descriptors, first and last quarter", "descriptors", 1),
            ("threads, first and last quarter", "threads", 1),
        ):
            rows.append([text, " and ".join(f"{value / divisor:.1f}" for value in _ends(seen.samples, name))])
        for text, name in (("load p50, p99, ms", "load"), ("store p50, p99, ms", "store")):
            medians = [
                statistics.median(getattr(each, f"{name}_{p}_ms") for each in seen.samples)
                for p in ("p50", "p99")
            ]
            rows.append([f"{text}: medians of samples", ", ".join(f"{value:.2f}" for value in medians)])
    return Grid("Soak", ("what", "figure"), rows, 1)


def _ends(samples: Sequence[Sample], name: str) -> tuple[float, float]:
    quarter = max(1, len(samples) // 4)
    first, last = (
        statistics.median(getattr(sample, name) for sample in part)
        for part in (samples[:quarter], samples[-quarter:])
    )
    return first, last


def draw(seen: Seen, path: Path, title: str) -> None:
    """Draw the samples over time."""
    minutes = [sample.at_s / 60 for sample in seen.samples]
    with mpl.rc_context({"font.size": 9}):
        figure = Figure(figsize=(10, 8), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(math.ceil(len(_PANELS) / 2), 2, sharex=True, squeeze=False)
        for axes, (name, unit, lines) in zip(panels.flat, _PANELS, strict=True):
            _draw_panel(axes, seen, minutes, unit, lines)
            axes.set_title(name, fontsize=9, loc="left")
        for axes in panels[-1]:
            axes.set_xlabel("minutes")
        first: Axes = panels[0][0]
        first.axhline(seen.capacity_bytes / _MIB, color=_LIMIT_COLOUR, linestyle="--", label="capacity")
        first.set_ylim(top=1.1 * seen.capacity_bytes / _MIB)
        first.legend(frameon=False, loc="lower right")
        figure.suptitle(title, fontsize=10)
        figure.savefig(path, dpi=120)


def _draw_panel(
    axes: Axes, seen: Seen, minutes: Sequence[float], unit: str, lines: Sequence[tuple[str, str, float]]
) -> None:
    for (attribute, label, divisor), colour in zip(lines, _COLOURS, strict=False):
        # Nothing was timed where there is 0.
        values = [getattr(sample, attribute) / divisor or math.nan for sample in seen.samples]
        axes.plot(minutes, values, color=colour, linewidth=1.2, label=label)
    axes.set_ylabel(unit)
    if unit in _LOGARITHMIC:
        axes.set_yscale("log")
    else:
        _, top = axes.get_ylim()
        axes.set_ylim(0, 1.15 * top)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if len(lines) > 1:
        axes.legend(frameon=False, ncols=2)
