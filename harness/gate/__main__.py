"""`python -m harness.gate`: did head get slower than base? PASS, REGRESSION, INCONCLUSIVE or INVALID.

The exit status is the verdict's (harness/verdicts.py), 1 where nothing could be measured, 2 for a mistake.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from harness import records
from harness.command_line import run_session
from harness.errors import UsageError
from harness.gate import error_rates, sample, text, wheels
from harness.gate.cases import BASE, CASES, HEAD
from harness.gate.comparison import Plan
from harness.gate.judge import Rules, Verdict, judge, judge_stored, read_rules
from harness.gate.series import Series, place
from harness.gate.wheels import WORKING_TREE, Wheel
from harness.records import Record, RecordError
from harness.verdicts import EXIT_STATUS, INVALID, worst

REPORT_NAME: Final = "gate.md"
_PAIRS: Final = 12
_SMOKE_PAIRS: Final = 2
_PERCENT: Final = 100.0


@dataclass(frozen=True)
class Options:
    """What the command line says; `gate --help` explains each."""

    base: str | None
    head: str | None
    base_wheel: Path | None
    head_wheel: Path | None
    aa: bool
    slowdown: float | None
    repeat: int | None
    blocks: int | None
    records: Path | None
    baseline: Path | None
    error_rates: bool
    noise: Path | None
    directory: Path | None
    out: Path
    smoke: bool

    def check(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            UsageError: Says what does, and what to do.
        """
        ways = {
            "--base": self.base,
            "--base-wheel": self.base_wheel,
            "--aa": self.aa,
            "--slowdown": self.slowdown,
            "--records": self.records,
            "--error-rates": self.error_rates,
        }
        chosen = [name for name, value in ways.items() if value]
        if len(chosen) != 1:
            said = " and ".join(chosen) or "nothing"
            raise UsageError(f"name one of {', '.join(ways)} to say what is compared; got {said}")
        if self.head and self.head_wheel:
            raise UsageError("--head and --head-wheel: name one of them")
        if self.slowdown and (self.head or self.head_wheel):
            raise UsageError(
                "--slowdown slows a build of the working tree down; leave --head and --head-wheel out"
            )
        if self.baseline and not self.records:
            raise UsageError("--baseline needs --records: the run that it is compared with")


def _wheels(options: Options, console: Console) -> Mapping[str, Wheel]:
    """Build what is to be compared, and unpack it."""
    into = options.out.resolve() / "wheels"
    # Before anything is built, which takes minutes.
    commits = {name: wheels.commit_of(name) for name in (options.base, options.head) if name is not None}
    for path in (options.base_wheel, options.head_wheel):
        if path is not None and not path.is_file():
            raise UsageError(f"{path} is no file; name a wheel of kvfs")

    shutil.rmtree(into, ignore_errors=True)

    def built(revision: str | None) -> tuple[Path, str]:
        if revision is not None:
            console.print(f"wheel of {revision}", markup=False, highlight=False)
            return wheels.build_revision(revision, commits[revision])
        faults = options.slowdown is not None
        console.print(f"wheel of the {WORKING_TREE}{' with faults' if faults else ''}", highlight=False)
        return wheels.build_tree(wheels.ROOT, faults=faults), WORKING_TREE

    def one(arm: str, wheel: Path | None, revision: str | None) -> Wheel:
        path, name = (wheel, wheel.name) if wheel else built(revision)
        return wheels.unpack(path, into / arm, name)

    head = one(HEAD, options.head_wheel, options.head)
    if options.base or options.base_wheel:
        base = one(BASE, options.base_wheel, options.base)
    else:
        base = replace(head, directory=shutil.copytree(head.directory, into / BASE))
    return {BASE: base, HEAD: head}


def _run(options: Options, console: Console) -> int:
    options.check()
    rules = read_rules()
    if options.error_rates:
        return error_rates.run(options.noise, rules, console)
    if options.records:
        return _judge_only(options, options.records, rules, console)
    last = options.blocks or rules.looks[-1]
    looks = (*(look for look in rules.looks if look < last), last)
    directory = place(options.directory)
    _make(options.out)
    series = Series(
        Plan(
            _wheels(options, console),
            _SMOKE_PAIRS if options.smoke else _PAIRS,
            looks,
            options.slowdown / _PERCENT if options.slowdown else None,
            [case.smaller() for case in CASES] if options.smoke else CASES,
        ),
        rules,
        options.out,
        console,
    )
    if options.repeat is None:
        number = series.run_one(directory)
        return _show(options, console, {number: series.verdict(number)}, series.comparisons, rules)
    series.run(options.repeat, directory)
    return _show(options, console, series.verdicts(), series.comparisons, rules)


def _make(directory: Path) -> None:
    """Make a directory for results.

    Raises:
        UsageError: It cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--out {directory}: cannot write there ({error.strerror}); name another directory"
        ) from error


def _judge_only(options: Options, path: Path, rules: Rules, console: Console) -> int:
    """Judge records that lie there; what is no record is no evidence either."""
    try:
        found = sample.comparisons(records.read(path))
        if options.baseline:
            stored = sample.comparisons(records.read(options.baseline))
            baseline, newest = (some[max(some)] if some else [] for some in (stored, found))
            verdict = judge_stored(baseline, newest, rules)
            return _show(options, console, {1: verdict}, {1: newest}, rules, baseline)
    except RecordError as error:
        if not all(each.is_file() for each in (path, options.baseline or path)):
            raise UsageError(f"{error}") from error
        return _show(
            options, console, {1: Verdict(INVALID, 0, (), (str(error),), final=True)}, {1: []}, rules
        )
    verdicts = {number: judge(some, rules) for number, some in sorted(found.items())}
    if not verdicts:
        found = {1: []}
        verdicts = {1: judge([], rules)}
    return _show(options, console, verdicts, found, rules)


def _show(
    options: Options,
    console: Console,
    verdicts: Mapping[int, Verdict],
    found: Mapping[int, list[Record]],
    rules: Rules,
    baseline: list[Record] | None = None,
) -> int:
    """Print the verdicts, write gate.md, and return the exit status."""
    parts = []
    for number, verdict in verdicts.items():
        judged = rules.planned_in(found[number])
        paragraph = text.paragraph(found[number], verdict, judged, baseline or ())
        table = text.grid(verdict, judged)
        title = (
            f"## Comparison {number}: {verdict.answer}" if len(verdicts) > 1 else f"# Gate: {verdict.answer}"
        )
        parts += [title, paragraph, *([table.markdown()] if table.rows else [])]
        if len(verdicts) == 1:
            if table.rows:
                table.print(console)
            console.print(paragraph, markup=False, highlight=False)
    if len(verdicts) > 1:
        tally = text.tally(verdicts)
        tally.print(console)
        parts = [f"# Gate, {len(verdicts)} comparisons", tally.markdown(), *parts]
    _make(options.out)
    report = options.out / REPORT_NAME
    report.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    console.print(str(report), markup=False, highlight=False, soft_wrap=True)
    return EXIT_STATUS[worst(verdict.answer for verdict in verdicts.values())]


def main(**values: object) -> None:
    """Compare, and end with the status of the verdict."""
    run_session(
        "gate",
        lambda console: _run(Options(**values), console),  # type: ignore[arg-type]  # click has converted each
        "whole blocks are in the records, --repeat goes on from there",
    )


_FILE: Final = click.Path(path_type=Path, dir_okay=False)
_DIRECTORY: Final = click.Path(path_type=Path, file_okay=False)
COMMAND: Final = click.Command(
    "gate",
    callback=main,
    params=[
        click.Option(["--base"], metavar="REV", help="Build this revision and compare with it."),
        click.Option(["--head"], metavar="REV", help="The one that is judged. [default: the working tree]"),
        click.Option(["--base-wheel"], type=_FILE, help="Compare with this wheel, of any repository."),
        click.Option(["--head-wheel"], type=_FILE, help="The wheel that is judged."),
        click.Option(["--aa"], is_flag=True, help="Compare head with itself: a REGRESSION would be wrong."),
        click.Option(
            ["--slowdown"],
            type=click.FloatRange(0.0, 1000.0, min_open=True),
            metavar="PERCENT",
            help="Compare the working tree with itself, slowed down: REGRESSION is right.",
        ),
        click.Option(
            ["--repeat"], type=click.IntRange(1), help="Until OUT has so many comparisons; shows the tally."
        ),
        click.Option(
            ["--blocks"], type=click.IntRange(3, 1000), help="Of the longest run. [default: in gates.toml]"
        ),
        click.Option(["--records"], type=_FILE, help="Judge these records again; nothing is measured."),
        click.Option(["--baseline"], type=_FILE, help="Judge `head` of --records against `head` of these."),
        click.Option(
            ["--error-rates"], is_flag=True, help="How often the rules are wrong, on simulated comparisons."
        ),
        click.Option(
            ["--noise"], type=_FILE, help="For --error-rates: records of --aa. [default: recorded ones]"
        ),
        click.Option(
            ["--dir", "directory"], type=_DIRECTORY, help="Where chunks lie. [default: memory, /dev/shm]"
        ),
        click.Option(
            ["--out"], type=_DIRECTORY, default=Path("bench-out/gate"), show_default=True, help="For results."
        ),
        click.Option(["--smoke"], is_flag=True, help="Small bursts: shows that it works, and no more."),
    ],
    help=(
        "Say whether kvfs got slower: two wheels store, load and look up chunks in turns on this machine.\n\n"
        "The exit status is 0 for PASS, 10 for REGRESSION, 11 for INCONCLUSIVE, 12 for INVALID."
    ),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

if __name__ == "__main__":
    COMMAND(prog_name="python -m harness.gate")
