"""Tests of the report: what it shows of any suite, what it leaves out, and what it must not trust."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import gate_records
import made_up_report
import pytest
from made_up_answers import MadeUpAnswers
from made_up_run import MadeUpRun

from harness.records import Record, RecordLog
from harness.report import charts, page, verdicts

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "a | b\nc `d` **e**",
    "nul \x00 and half \ud800",
    "$\\frac{1}{0}$ _under %s {0}",
    "a long name without any place to break " + "x" * 300,
)


class Parsed(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def attributes(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.tags if name in attributes]


def html_of(records: Sequence[Record]) -> str:
    return page.html(page.sections([page.readable(record) for record in records]), "a title")


def section_of(html: str, name: str) -> str:
    return html.partition(f'<section id="{name}">')[2].partition("</section>")[0]


def test_page_needs_nothing_but_itself() -> None:
    parsed = Parsed(html_of([*made_up_report.accuracy(), *made_up_report.micro()]))
    tags = {tag for tag, _ in parsed.tags}
    assert not tags & {"script", "link", "img", "iframe", "object"}
    assert {target[0] for name in ("href", "xlink:href") for target in parsed.attributes(name)} == {"#"}
    ids = parsed.attributes("id")
    assert len(ids) == len(set(ids))
    for name in ("href", "xlink:href"):
        assert {target[1:] for target in parsed.attributes(name)} <= set(ids)


def test_page_says_of_each_plot_what_it_shows_and_of_how_many_values() -> None:
    html = section_of(html_of(list(made_up_report.sweep())), "throughput-and-time-to-first-token")
    labels = [
        attributes["aria-label"] for _, attributes in Parsed(html).tags if attributes.get("role") == "img"
    ]
    assert len(labels) == html.count("<svg") - html.count('<span aria-hidden="true"><svg')
    assert any(
        re.fullmatch(r"requests/s, warm, 4 threads: at 8 streams: .*kvfs 3\.56.*", label) for label in labels
    )
    assert "n = 12 a mark, one value a request" in html
    assert "there is one value a mark, so that no spread can be shown" in html
    assert "Measured on ext4 on /dev/vda, 2 CPUs (a processor)." in html
    assert "warm, times <strong>fs</strong>: " in html
    assert "<strong>kvfs</strong> 1.19 (1.19 to 1.19 in 4 places)" in html
    # An arm that offloads nothing stands beside the phases that it does not have.
    assert "none, cold" in html


def test_page_has_the_sweeps_own_tables() -> None:
    section = section_of(html_of(list(made_up_report.sweep())), "tables-of-sweep")
    assert "disk-4k, scale 32: speed" in section
    assert "disk-4k, scale 32: where prompt tokens came from" in section


def test_page_leaves_out_what_was_not_measured_with_a_sentence() -> None:
    html = html_of(list(made_up_report.accuracy()))
    for name, session in (
        ("throughput-and-time-to-first-token", "nox -s sweep"),
        ("what-a-chunk-costs", "nox -s micro"),
        ("the-disk-over-time", "nox -s sweep"),
        ("what-a-lookup-costs", "nox -s micro"),
    ):
        section = section_of(html, name)
        assert session in section
        assert "<svg" not in section
    assert "<svg" in section_of(html, "accuracy")
    for name in ("tables-of-bench", "tables-of-sweep"):
        assert "did not add to these records" in section_of(html, name)


def test_page_pairs_scores_by_document() -> None:
    text = page.markdown(page.sections(list(made_up_report.accuracy())), "a title")
    rows = [line for line in text.splitlines() if line.startswith("| ruler_vt | fs, warm")]
    # Four of 24 documents lost 0.2, but for one that had less to lose.
    assert len(rows) == 1
    assert re.fullmatch(
        r"\| ruler_vt \| fs, warm, 4 threads, checksums off \| 24 \| 0\.\d+ \| -0\.03\d "
        r"\| -0\.0\d\d to -0\.0\d\d \| 4 \| 0 \| 0\.062 \|",
        rows[0],
    )
    assert "| niah_single_1 | kvfs, warm, 4 threads, checksums on | 24 | 1.000 | +0.000 |" in text
    assert "where 24 agree, 12% of all may still differ" in text


def test_page_without_a_baseline_says_that_nothing_can_be_paired() -> None:
    records = [record for record in made_up_report.accuracy() if record.arm != "none"]
    assert "none of the arm <code>none</code> to pair them with" in html_of(records)


def test_summary_tells_what_was_compared_and_all_verdicts(run: MadeUpRun) -> None:
    summary = section_of(html_of(run.records), "summary")
    assert "<strong>All gates pass</strong>: bench: 30 PASS." in summary
    assert "compares none, fs, kvfs, kvfs-fallback" in summary
    run.change("tier_hit_tokens", [0], arm="kvfs", phase="warm", streams=1)
    html = html_of(run.records)
    assert "<strong>Not all gates pass</strong>: bench: 1 FAIL, 29 PASS." in section_of(html, "summary")
    assert '<span class="answer fail">FAIL</span>' in section_of(html, "verdicts")


def test_verdicts_of_micro_are_those_of_its_gates() -> None:
    judged = verdicts.judge(list(made_up_report.micro()))["micro"]
    # No fio among the made-up arms.
    assert judged.answers["INVALID"] == 1
    assert judged.answers["PASS"] > 20
    slow = [
        dataclasses.replace(record, values=[value * 3 for value in record.values])
        if record.arm == "kvfs" and record.metric == "cpu_us_per_chunk"
        else record
        for record in made_up_report.micro()
    ]
    assert verdicts.judge(slow)["micro"].answers["REGRESSION"] > 0


def test_verdicts_stand_first_and_the_worst_on_top() -> None:
    section = verdicts.section(verdicts.judge(list(made_up_report.micro())))
    answers = [row[0] for row in section.grids[0].rows]
    assert section.grids[0].columns[0] == "answer"
    assert answers == sorted(answers, key=verdicts.ORDER.index)
    assert {answers[0], answers[-1]} == {"INVALID", "PASS"}


def test_verdicts_of_bytes_that_may_not_have_passed_the_device_are_invalid() -> None:
    records = [
        dataclasses.replace(record, env={**record.env, "page_cache": {"proven": False}})
        for record in made_up_report.micro()
        if record.case["op"] == "load"
    ]
    answers = verdicts.judge(records)["micro"].answers
    assert answers["INVALID"] == sum(answers.values())


@pytest.mark.parametrize(("effect", "answer"), [(0.0, "PASS"), (0.2, "REGRESSION")])
def test_verdict_of_the_gate_is_its_judge_s(effect: float, answer: str) -> None:
    judged = verdicts.judge(gate_records.comparison(12, effect))["gate"]
    assert judged.answers == {answer: 1}
    assert any(grid.rows for grid in judged.grids)


def test_verdicts_of_several_comparisons_are_one_each() -> None:
    records = [*gate_records.comparison(12), *gate_records.comparison(12, 0.2, number=2)]
    judged = verdicts.judge(records)["gate"]
    assert judged.answers == {"PASS": 1, "REGRESSION": 1}
    told = verdicts.section({"gate": judged}).grids[0].rows
    assert [row[:2] for row in told] == [["REGRESSION", "2"], ["PASS", "1"]]
    assert "6 blocks" in told[0][2]


def test_verdict_of_accuracy_is_invalid_without_its_controls() -> None:
    answers = MadeUpAnswers()
    assert verdicts.judge(answers.records)["accuracy"].answers == {"PASS": 1}
    alone = [record for record in answers.records if record.phase != "damaged"]
    assert verdicts.judge(alone)["accuracy"].answers == {"INVALID": 1}


def test_records_that_their_suite_would_not_write_are_invalid_and_the_rest_is_shown() -> None:
    broken = dataclasses.replace(next(made_up_report.micro()), case={"op": "load"})
    html = html_of([broken, *made_up_report.accuracy()])
    assert "1 INVALID" in section_of(html, "summary")
    assert "<strong>Not all gates pass</strong>" in section_of(html, "summary")
    assert "Its records cannot be read (KeyError" in section_of(html, "left-out-chunks-moving")
    assert "<svg" in section_of(html, "accuracy")


@pytest.mark.parametrize("name", HOSTILE, ids=["script", "attribute", "markup", "letters", "math", "long"])
def test_page_of_hostile_strings_is_text(name: str) -> None:
    records = [
        dataclasses.replace(
            record,
            arm=name if record.arm == "kvfs" else record.arm,
            case={**record.case, "scenario": name, "task": name},
            env={**record.env, "cpu": name, "commit": name, "versions": {name: name}},
        )
        for record in (*made_up_report.sweep(), *made_up_report.accuracy())
        if record.case["phase"] == "cold" and record.case.get("streams") in {None, 1, 8}
    ]
    html = html_of([*records, dataclasses.replace(records[0], suite=name, metric=name)])
    parsed = Parsed(html)
    assert not {tag for tag, _ in parsed.tags} & {"script", "img"}
    assert not [key for _, attributes in parsed.tags for key in attributes if key.startswith("on")]
    shown = name.replace("\x00", "\ufffd").replace("\ud800", "\ufffd").replace("\n", "\ufffd")
    assert any(shown in label for label in parsed.attributes("aria-label"))
    html.encode()
    for line in page.markdown(page.sections([page.readable(record) for record in records]), "t").splitlines():
        assert not re.search(r"<(script|img)", line)


def test_palette_stands_out_from_both_backgrounds() -> None:
    for theme in (0, 1):
        for name, colours in charts.PALETTE.items():
            if name != "rule":
                least = 4.5 if name in {"ink", "quiet", "green", "orange", "blue", "gold"} else 3.0
                assert contrast(colours[theme], charts.BACKGROUND[theme]) >= least, (name, theme)


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_series_without_a_style_of_their_own_differ() -> None:
    looks = charts.styles(["fs", "kvfs", *(f"other {number}" for number in range(12))])
    assert len(set(looks.values())) == len(looks)


def report(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness.report", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_command_writes_both_files_beside_the_records(tmp_path: Path) -> None:
    log = RecordLog(tmp_path)
    for record in made_up_report.accuracy():
        log.append(record)
    done = report("--out", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(tmp_path / "report.html"), str(tmp_path / "report.md")]
    assert "<!doctype html>" in (tmp_path / "report.html").read_text()
    assert "## Accuracy" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (None, 2, "no records.jsonl there; name the --out of a measurement"),
        ("\n", 2, "no record in it; measure something first"),
        ("{}\n", 1, "line 1: lacks arm"),
    ],
    ids=["nothing", "empty", "no record"],
)
def test_command_without_records_says_so_and_writes_nothing(
    tmp_path: Path, content: str | None, status: int, said: str
) -> None:
    if content is not None:
        (tmp_path / "records.jsonl").write_text(content)
    done = report("--out", str(tmp_path), cwd=tmp_path)
    assert done.returncode == status
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("report: ")
    assert said in done.stderr
    assert not list(tmp_path.glob("report.*"))
