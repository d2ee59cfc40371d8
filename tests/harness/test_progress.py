"""Tests of the progress display: plain lines without a terminal, one live line of 100 columns on one."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from harness.progress import Progress

STEPS = [
    "start fs, 16 threads, cold and kvfs, 16 threads, cold",
    "kvfs-fallback, 16 threads: warm [4 streams]",
]


def shown(*, terminal: bool) -> str:
    output = io.StringIO()
    console = Console(file=output, width=100, force_terminal=terminal, color_system=None)
    with Progress(console, [600.0, 400.0]) as display:
        for title in STEPS:
            with display.step(title):
                display.note("a note")
    return output.getvalue()


def test_without_a_terminal_each_step_is_a_line_with_the_times() -> None:
    lines = shown(terminal=False).splitlines()
    assert lines == [
        f"[  1/2] 0:00 passed, about 16:40 left  {STEPS[0]}",
        "a note",
        f"[  2/2] 0:00 passed, about 6:40 left  {STEPS[1]}",
        "a note",
    ]


def test_on_a_terminal_the_line_fits_and_shows_what_is_done() -> None:
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown(terminal=True))
    lines = [line for line in re.split(r"[\r\n]+", text) if line.strip()]
    assert max(map(len, lines)) <= 100
    assert any(line.startswith(f"[  2/2] {STEPS[1]}") and "6:40 left" in line for line in lines)
    assert "a note" in text


def test_time_left_follows_what_the_steps_took(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    display = Progress(Console(file=io.StringIO()), [100.0, 100.0, 50.0])
    with display.step("twice as long as estimated"):
        assert display.left_s() == pytest.approx(250.0)
        now[0] = 200.0
        # Past its estimate, a step counts as nearly done.
        assert display.left_s() == pytest.approx(150.0)
    with display.step("next"):
        assert display.left_s() == pytest.approx(2 * 150.0)
        now[0] = 240.0
        assert display.left_s() == pytest.approx(2 * 150.0 - 40.0)


def test_steps_that_are_skipped_take_no_time_and_are_not_counted() -> None:
    output = io.StringIO()
    with Progress(
        Console(file=output, width=100, color_system=None), [600.0, 400.0, 300.0, 200.0]
    ) as display:
        with display.step("first"):
            pass
        display.skip(2)
        with display.step("last"):
            pass
    assert output.getvalue().splitlines()[-1] == "[  2/2] 0:00 passed, about 3:20 left  last"
