"""The accuracy gate: are answers with a tier, cold and from disk, as right as without one?

`python -m harness.accuracy --help`; the exit status is that of the verdict (`harness/verdicts.py`), 1 when a
measurement could not be made, 2 for a mistake of the user.
"""

from pathlib import Path
from typing import Final

import click
from rich.console import Console

from harness import environment, model, storage
from harness.accuracy import plan, report, verdicts
from harness.accuracy.comparison import read_limits
from harness.accuracy.lm_eval import GSM8K, parse_tasks
from harness.accuracy.session import Options, Session
from harness.arms import ARMS, BASELINE, Arm, parse_arms
from harness.command_line import run_session, served_options, writable
from harness.errors import UsageError
from harness.records import RecordLog
from harness.verdicts import EXIT_STATUS

DEFAULT_OUT: Final = Path("accuracy-out")
_FEW_ARMS: Final = "none,kvfs"
# Each tier once; the fallback serves the same files by the same rules, and costs two more servers.
_BOTH_TIERS: Final = "none,fs,kvfs"


def _arms(text: str) -> list[Arm]:
    """Return the arms that the user named, the baseline first.

    Raises:
        UsageError: There is no tier among them.
    """
    arms = [arm for arm in parse_arms(text) if arm.offloads]
    if not arms:
        raise UsageError(f"--arms {text!r}: name at least one tier beside {BASELINE}, such as kvfs")
    return [ARMS[BASELINE], *arms]


def _gsm8k_dir(directory: Path | None, tasks: list[str]) -> str:
    """Return the local copy of gsm8k, checked, or "".

    Raises:
        UsageError: It is none, or is not asked for.
    """
    if directory is None:
        return ""
    if GSM8K not in tasks:
        raise UsageError(f"--gsm8k-dir {directory}: nothing is read from it without --tasks {GSM8K}")
    if not (directory / "main").is_dir():
        raise UsageError(
            f"--gsm8k-dir {directory}: no folder main in it; name a copy of the data set openai/gsm8k, which "
            "has README.md, main/train-… and main/test-…"
        )
    return str(directory.resolve())


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@click.option("--quick", is_flag=True, help=f"Arms {_FEW_ARMS} and one task, unless others are named.")
@click.option(
    "--arms", help=f"Ways of serving. [default: {_BOTH_TIERS}; --quick, --repeat-control: {_FEW_ARMS}]"
)
@click.option(
    "--tasks", help=f"lm-eval's: {','.join(plan.TASKS)}. [default: all but {GSM8K}; --quick: the first]"
)
@click.option("--gsm8k-dir", type=click.Path(path_type=Path), help=f"Local copy of {GSM8K}'s data set.")
@click.option("--documents", type=click.IntRange(1), help="A task. [default: 20; of graded ones 6 or 7]")
@click.option(
    "--repeat-control", type=click.IntRange(1), default=1, help="How often each warm pass and control."
)
@click.option("--seed", type=click.IntRange(0), default=plan.DEFAULT_SEED, help="Decides what is damaged.")
@served_options(DEFAULT_OUT)
def main(  # noqa: PLR0913, PLR0917 - one argument an option
    quick: bool,
    out: Path,
    arms: str | None,
    tasks: str | None,
    gsm8k_dir: Path | None,
    documents: int | None,
    repeat_control: int,
    seed: int,
    model_dir: Path | None,
    work_dir: Path | None,
    server_timeout_s: float,
    keep: bool,
) -> None:
    """Ask every tier lm-eval's questions, cold and from disk, and compare each answer with that of no tier.

    In every run chunks are damaged on disk, too: the gate must fail where nothing verifies them, and pass
    where checksums do. A run whose control does not do that is INVALID.
    """

    def session(console: Console) -> int:
        limits = read_limits()
        chosen = _tasks(tasks, quick=quick)
        made = plan.make(
            _arms(arms if arms is not None else _FEW_ARMS if quick or repeat_control > 1 else _BOTH_TIERS),
            chosen,
            seed=seed,
            documents=documents,
            repetitions=repeat_control,
            gsm8k_dir=_gsm8k_dir(gsm8k_dir, chosen),
        )
        out_dir = writable(out, "--out")
        options = Options(
            plan=made,
            limits=limits,
            out_dir=out_dir,
            work_dir=writable(work_dir, "--work-dir") if work_dir else out_dir,
            model_dir=model.check(model_dir) if model_dir else None,
            dtype=environment.fast_dtype(),
            server_timeout_s=server_timeout_s,
            keep=keep,
        )
        storage.require_disk(options.work_dir, 0)
        log = RecordLog(out_dir)
        asked = Session(options, console, log)
        asked.run()
        outcome = verdicts.evaluate(log.records, limits)
        path = out_dir / report.FILE_NAME
        path.write_text(
            report.markdown(log.records, outcome, limits, asked.notes, repeat_control), encoding="utf-8"
        )
        report.print_result(console, log.records, outcome, repeat_control)
        console.print(f"records: {log.path}\nreport:  {path}", markup=False, highlight=False, soft_wrap=True)
        return EXIT_STATUS[outcome.verdict]

    run_session("accuracy", session, "all that it had started has ended")


def _tasks(text: str | None, *, quick: bool) -> list[str]:
    """Return the tasks that the user named, or the usual ones.

    Raises:
        UsageError: An unknown one, or none.
    """
    if text is None:
        return list(plan.QUICK_TASKS if quick else plan.DEFAULT_TASKS)
    tasks = parse_tasks(text, plan.TASKS)
    if not tasks:
        raise UsageError(f"--tasks {text!r}: no task is named; choose from {','.join(plan.TASKS)}")
    return tasks


if __name__ == "__main__":
    main()
