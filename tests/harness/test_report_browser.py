"""Tests of the report in a real browser: light and dark, on a desk and on a phone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import made_up_report
import pytest
from browser import Browser
from made_up_run import MadeUpRun

from harness.report import page
from harness.sessions import sysdeps

pytestmark = pytest.mark.skipif(
    sysdeps.browser() is None,
    reason="no Chromium on PATH; `python3 -m harness.sessions.sysdeps` installs one as root",
)
# Text of a plot that lies outside of it is cut.
CUT_TEXTS = """[...document.querySelectorAll('.panel svg')].flatMap(svg => {
  const box = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text')].filter(text => {
    const own = text.getBoundingClientRect();
    return own.left < box.left - 1 || own.right > box.right + 1 ||
      own.top < box.top - 1 || own.bottom > box.bottom + 1;
  }).map(text => text.textContent);
})"""
# Neighbours on one axis that lie over each other cannot be read.
OVERLAPPING_TEXTS = """[...document.querySelectorAll('.panel svg')].flatMap(svg => {
  const texts = [...svg.querySelectorAll('text')];
  const boxes = texts.map(text => [text.textContent, text.getBoundingClientRect()]);
  return boxes.flatMap(([one, a], index) => boxes.slice(index + 1).filter(([_, b]) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2).map(([other]) => one + ' / ' + other));
})"""
WIDER_THAN_THE_PAGE = """[...document.querySelectorAll('body *')].filter(element =>
  !element.closest('.scroll') &&
  element.getBoundingClientRect().right > document.documentElement.clientWidth + 1
).map(element => element.outerHTML.slice(0, 80))"""
LEAST_TEXT_PX = """Math.min(...[...document.querySelectorAll('.panel svg text')].map(text => {
  const svg = text.closest('svg');
  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  return parseFloat(getComputedStyle(text).fontSize) * scale;
}))"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page with every section, a failing verdict and a hostile name among them."""
    hostile = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    run = MadeUpRun()
    run.change("tier_hit_tokens", [0], arm="kvfs", phase="warm", streams=1)
    named = [
        dataclasses.replace(record, arm=hostile)
        for record in made_up_report.accuracy()
        if record.arm == "kvfs"
    ]
    records = [*made_up_report.everything(), *run.records, *named]
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page.html(page.sections([page.readable(record) for record in records]), "A report"))
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390], ids=["wide", "narrow"])
def test_report_in_a_browser_is_readable_and_asks_for_nothing(
    browser: Browser, report: Path, width: int, dark: bool
) -> None:
    browser.open(report, width=width, dark=dark)
    assert browser.complaints == []
    assert browser.requests == [report.as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(WIDER_THAN_THE_PAGE) == []
    headings = browser.evaluate("[...document.querySelectorAll('h2')].map(heading => heading.textContent)")
    assert headings[:3] == ["Summary", "Verdicts", "Throughput and time to first token"]
    assert browser.evaluate("document.querySelectorAll('.panel svg').length") > 40
    assert browser.evaluate(CUT_TEXTS) == []
    assert browser.evaluate(OVERLAPPING_TEXTS) == []
    assert browser.evaluate(LEAST_TEXT_PX) >= 9
    assert browser.evaluate("document.querySelectorAll('script, img').length") == 0
    back = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(23, 24, 27)" if dark else "rgb(255, 255, 255)")
    ink = browser.evaluate("getComputedStyle(document.querySelector('.panel svg text')).fill")
    assert ink == ("rgb(232, 232, 234)" if dark else "rgb(27, 27, 31)")


def test_report_in_a_browser_opens_its_tables(browser: Browser, report: Path) -> None:
    browser.open(report, width=390, dark=False)
    browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    assert browser.evaluate("document.querySelectorAll('details table tbody tr').length") > 200


def test_browser_that_sees_a_script_fail_complains(browser: Browser, tmp_path: Path) -> None:
    # What the tests above rely on: that the browser would have told.
    path = tmp_path / "page.html"
    path.write_text("<!doctype html><script>undefined_name</script><img src='http://127.0.0.1:9/x.png'>")
    browser.open(path, width=390, dark=False)
    assert any("undefined_name" in complaint for complaint in browser.complaints)
    assert "http://127.0.0.1:9/x.png" in browser.requests
