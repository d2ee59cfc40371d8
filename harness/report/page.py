"""Put a report together from records, and write it as a page and as Markdown."""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import jinja2
from markupsafe import Markup, escape

from harness.micro.cases import SUITE as MICRO
from harness.records import Record, Scalar
from harness.report import answers, bench_tables, charts, chunks, disk, machine, model, serving, verdicts
from harness.report.grid import untagged
from harness.report.model import Picture, Section
from harness.report.verdicts import Judged
from harness.verdicts import PASS

HTML_NAME: Final = "report.html"
MARKDOWN_NAME: Final = "report.md"
_TEMPLATE: Final = "page.html.j2"
_DRAWN: Final = frozenset({*serving.SUITES, MICRO, "accuracy", "gate"})
_SECTIONS: Final[Sequence[Callable[[Sequence[Record]], Section]]] = (
    serving.section,
    chunks.moving,
    disk.section,
    chunks.looking,
    answers.section,
    bench_tables.section,
    serving.sweep_tables,
)


def sections(records: Sequence[Record]) -> list[Section]:
    """Return the whole report, the summary first.

    Args:
        records: At least one.
    """
    judged = verdicts.judge(records)
    parts = [_summary(records, judged), verdicts.section(judged)]
    parts += [_attempt(make, records) for make in _SECTIONS]
    return [*parts, machine.section(records)]


def _attempt(make: Callable[[Sequence[Record]], Section], records: Sequence[Record]) -> Section:
    """Return a section, or one that says that the records of others are not what their suites write."""
    try:
        return make(records)
    except model.UNREADABLE as error:
        name = f"{make.__module__.rpartition('.')[2]} {make.__name__}".replace("_", " ")
        return Section(
            f"Left out: {name}", missing=f"Its records cannot be read ({type(error).__name__}: {error})."
        )


def _summary(records: Sequence[Record], judged: Mapping[str, Judged]) -> Section:
    suites: dict[str, list[Record]] = {}
    for record in records:
        suites.setdefault(record.suite, []).append(record)
    compared = "; ".join(
        f"`{suite}` ({len(mine)} records) compares {', '.join(dict.fromkeys(record.arm for record in mine))}"
        for suite, mine in suites.items()
    )
    answers_given = [answer for each in judged.values() for answer in each.answers if each.answers[answer]]
    if not answers_given:
        conclusion = "No gate makes a demand on it."
    else:
        told = "; ".join(each.sentence(suite) for suite, each in judged.items())
        all_pass = set(answers_given) == {PASS}
        conclusion = f"**{'All gates pass' if all_pass else 'Not all gates pass'}**: {told}."
    commits = dict.fromkeys(
        str(record.env.get("commit", "unknown"))[:12]
        + (" with local changes" if record.env.get("dirty") else "")
        for record in records
    )
    sentences = [
        f"{conclusion} {compared}.",
        f"{model.where(records)} Commit {' and '.join(commits)}.",
    ]
    left = [suite for suite in suites if suite not in _DRAWN]
    if left:
        sentences.append(f"Not drawn here: {', '.join(f'`{suite}`' for suite in left)}.")
    return Section("Summary", sentences)


def readable(record: Record) -> Record:
    """Return a record without what no page can hold: control characters and halves of surrogate pairs."""

    def text(value: object) -> object:
        if isinstance(value, str):
            return "".join(
                "\ufffd" if unicodedata.category(letter) in {"Cc", "Cs"} else letter for letter in value
            )
        if isinstance(value, Mapping):
            return {str(text(key)): text(each) for key, each in value.items()}
        return [text(each) for each in value] if isinstance(value, list) else value

    def plain(value: Scalar) -> Scalar:
        return str(text(value)) if isinstance(value, str) else value

    return Record(
        suite=str(text(record.suite)),
        case={str(text(key)): plain(value) for key, value in record.case.items()},
        arm=str(text(record.arm)),
        metric=str(text(record.metric)),
        unit=str(text(record.unit)),
        better=record.better,
        values=record.values,
        env={str(text(key)): text(value) for key, value in record.env.items()},
    )


def html(parts: Sequence[Section], title: str) -> str:
    """Return the report as one page that needs nothing else."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["marked"] = _marked
    environment.filters["slug"] = _slug
    text: str = environment.get_template(_TEMPLATE).render(
        title=title,
        sections=parts,
        palette=charts.PALETTE,
        background=charts.BACKGROUND,
        answers=verdicts.ORDER,
        panels=_drawn,
        legend=_legend,
        comparisons=model.comparisons,
    )
    return text


def _drawn(picture: Picture, prefix: str) -> list[dict[str, str]]:
    """Return each panel with its SVG and what it shows in words."""
    pairs = zip(picture.panels, charts.draw(picture, prefix), strict=True)
    return [
        {
            "title": panel.title,
            "svg": Markup(svg),  # noqa: S704  made by matplotlib, which escapes text
            "finding": model.finding(picture, panel),
        }
        for panel, svg in pairs
    ]


def _legend(picture: Picture, prefix: str) -> list[tuple[str, str]]:
    entries = charts.legend(picture.names, picture.kind, prefix)
    return [(name, Markup(svg)) for name, svg in entries]  # noqa: S704  as above


def _marked(text: str) -> Markup:
    """Return a sentence with its code and strong words marked, and everything else escaped."""
    safe = str(escape(text))
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", safe))  # noqa: S704  escaped above


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def markdown(parts: Sequence[Section], title: str) -> str:
    """Return the report as Markdown: what the page draws is in its tables."""
    lines = [f"# {title}", f"The same with plots: {HTML_NAME}."]
    for part in parts:
        lines += [f"## {part.title}", *([part.missing] if part.missing else part.sentences)]
        for picture in part.pictures:
            lines += [f"### {picture.title}", " ".join(picture.notes), *model.comparisons(picture)]
            if picture.table:
                lines.append(picture.table.markdown())
        for grid in part.grids:
            lines += [f"### {grid.title}", grid.markdown()]
    return untagged("\n\n".join(lines) + "\n")
