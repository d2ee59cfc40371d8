"""`python -m harness.micro`: measure store and load of chunks, without a model, and show what it means."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from harness import storage
from harness.command_line import run_session
from harness.errors import EXIT_FAILED, EXIT_OK
from harness.micro import gates, lookup_plots, lookup_summary, plots, summary
from harness.micro.lookup_session import LookupSession
from harness.micro.options import DECLARED, Options
from harness.micro.session import Outcome, Session, Step
from harness.micro.summary import Line
from harness.records import RecordLog
from harness.verdicts import PASS

_RUNS_FOR_A_VERDICT: Final = 7
# Memory, or a file system on top of another one whose costs are not a disk's.
_NO_DISK: Final = storage.MEMORY_FILESYSTEMS | {"overlay"}
# Seldom, since drawing takes CPU time from what is measured.
_DRAWN_PER_S: Final = 2.0
_SPEED_PERIOD_S: Final = 300.0
_REPORT_NAME: Final = "micro.md"
_HELP: Final = """Measure what it costs to move chunks to disk and back, and to look them up.

Arms are fs (vLLM's own tier on its C extension), kvfs, kvfs-fallback, and fio as the disk's limit; they run
interleaved, a process per run. OUT gets records.jsonl with the raw values, micro.md with the tables, and
plots.
"""


def main(**values: object) -> None:
    """Measure, and end with the status of how it went."""
    run_session(
        "micro",
        lambda console: _run(console, Options(**values)),  # type: ignore[arg-type]  # click has converted each
        "the cases that were done are in the records",
    )


def _run(console: Console, options: Options) -> int:
    plan, lookups = options.plan(), options.lookup_plan()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    directory = (options.directory or out).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    mount = storage.mount_of(directory)
    if mount.filesystem in _NO_DISK:
        _warn(console, f"{directory} is on {mount.filesystem}: what is measured there is no figure of a disk")
    if plan.runs < _RUNS_FOR_A_VERDICT and not options.smoke:
        _warn(console, f"{plan.runs} runs are too few for a verdict; {_RUNS_FOR_A_VERDICT} is the least")
    log = RecordLog(out)
    progress = _Progress(console, log)
    sessions: list[Session | LookupSession] = []
    if plan.cases:
        sessions.append(Session(plan, directory, out, log, progress.begin))
    if lookups.cases or lookups.scale:
        sessions.append(LookupSession(lookups, directory, out, log, progress.begin))
    outcome = progress.run(sessions)
    lines = summary.lines_of(log.records)
    _show(console, lines, out, f"{mount.filesystem} on {mount.device}, {plan.runs} runs of each arm")
    _show_outcome(console, outcome)
    passed = options.smoke or _show_verdicts(console, lines, outcome, out, strict=options.gate)
    return EXIT_FAILED if outcome.failures or (options.gate and not passed) else EXIT_OK


class _Progress:
    """A progress bar over the steps of sessions; a terminal or a log gets a line for each case, too."""

    def __init__(self, console: Console, log: RecordLog) -> None:
        columns = (
            TextColumn("[progress.percentage]{task.percentage:>3.0f}%"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            TextColumn("{task.description}", markup=False),
        )
        self._progress = Progress(
            *columns,
            console=console,
            transient=True,
            refresh_per_second=_DRAWN_PER_S,
            speed_estimate_period=_SPEED_PERIOD_S,
        )
        self._task = self._progress.add_task("starting", total=None)
        self._log = log
        self._sessions: Sequence[Session | LookupSession] = ()
        self._begun: Step | None = None
        self._shown_records = 0
        self._shown_cases = 0

    def run(self, sessions: Sequence[Session | LookupSession]) -> Outcome:
        """Run sessions, one after the other, and return what they could not do."""
        self._sessions = sessions
        outcome = Outcome()
        with self._progress:
            for session in sessions:
                outcome.add(session.run(self._show_case))
        return outcome

    def begin(self, step: Step) -> None:
        """Take note of a step; the one before is over."""
        if self._begun is not None:
            self._progress.advance(self._task, self._begun.weight)
        self._begun = step
        total = sum(session.weight for session in self._sessions)
        self._progress.update(self._task, description=step.text, total=total)

    def _show_case(self, case: object) -> None:
        done = self._log.records[self._shown_records :]
        self._shown_records = len(self._log.records)
        self._shown_cases += 1
        left_s = self._progress.tasks[0].time_remaining
        left = f", {left_s / 60:.0f} min left" if left_s else ""
        cases = sum(len(session.cases) for session in self._sessions)
        lines = summary.lines_of(done)
        text = "; ".join(filter(None, (summary.brief(lines), lookup_summary.brief(lines))))
        self._progress.console.print(
            f"[{self._shown_cases}/{cases}{left}] {case}: {text}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def _show(console: Console, lines: Sequence[Line], out: Path, where: str) -> None:
    grids = [*summary.grids(lines), *lookup_summary.grids(lines)]
    for grid in grids:
        grid.print(console)
    report = out / _REPORT_NAME
    parts = [f"# Micro benchmark, {where}"]
    for grid in grids:
        parts += [f"## {grid.title}", grid.markdown()]
    report.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    pictures = [*plots.draw_all(lines, out, where), *lookup_plots.draw_all(lines, out, where)]
    for path in [out / "records.jsonl", report, *pictures]:
        console.print(str(path), markup=False, highlight=False, soft_wrap=True)


def _show_verdicts(
    console: Console, lines: Sequence[Line], outcome: Outcome, out: Path, *, strict: bool
) -> bool:
    """Judge what was measured, with `strict` also what was not; return whether all passed."""
    demands = gates.read(suite=gates.suite_of(lines))
    if not strict:
        demands = gates.only_measured(demands, lines)
        if not demands:
            console.print("no gate makes a demand on what was measured", highlight=False)
            return True
    verdicts = gates.judge(demands, lines, outcome.unproven)
    grid = gates.grid(verdicts)
    grid.print(console)
    with (out / _REPORT_NAME).open("a", encoding="utf-8") as report:
        report.write(f"\n## {grid.title}\n\n{grid.markdown()}\n")
    passed = sum(verdict.answer == PASS for verdict in verdicts)
    console.print(f"{passed} of {len(verdicts)} cases pass their gates", highlight=False)
    return passed == len(verdicts)


def _show_outcome(console: Console, outcome: Outcome) -> None:
    for title, texts, style in (
        ("not measured", outcome.missing, "yellow"),
        ("no proof that the disk was used", outcome.unproven, "yellow"),
        ("directories were slow to make, wait some minutes", outcome.slow_directories, "yellow"),
        ("FAILED", outcome.failures, "red"),
    ):
        for text in texts:
            console.print(f"{title}: {text}", style=style, markup=False, highlight=False, soft_wrap=True)


def _warn(console: Console, text: str) -> None:
    console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)


COMMAND: Final = click.Command(
    "micro",
    callback=main,
    params=cast("list[click.Parameter]", list(DECLARED)),
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

if __name__ == "__main__":
    COMMAND(prog_name="python -m harness.micro")
