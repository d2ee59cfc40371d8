"""The main benchmark: vLLM with every tier, cold, from host memory and from disk, and its answers.

`python -m harness.bench --help`; the exit status is 0 when every check passed, 1 when one failed or a
measurement could not be made, 2 for a mistake of the user.
"""

import time
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from harness import checks, environment, model, plan, storage
from harness.accuracy import lm_eval
from harness.arms import ARMS, parse_arms
from harness.blocks import Bench, Options, run_target
from harness.command_line import numbers, run_session, served_options, writable
from harness.errors import EXIT_FAILED, EXIT_OK, UsageError
from harness.records import RecordLog
from harness.report import bench_tables
from harness.server import is_healthy

DEFAULT_OUT: Final = Path("bench-out")


def _checked_target(target: str, tokenizer: Path | None) -> tuple[str, Path]:
    """Return the address of the user's server and its tokenizer.

    Raises:
        UsageError: One is missing, or the server does not answer.
    """
    base_url = target.rstrip("/").removesuffix("/v1")
    if tokenizer is None:
        raise UsageError("--target needs --tokenizer DIR: the directory with the served model's tokenizer")
    if not any((tokenizer / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise UsageError(f"--tokenizer {tokenizer}: no tokenizer.json there; name a model's directory")
    if not base_url.startswith(("http://", "https://")):
        raise UsageError(f"--target {target!r}: give an address such as http://127.0.0.1:8000")
    if not is_healthy(base_url):
        raise UsageError(f"--target {target}: nothing answers {base_url}/health; is the server up?")
    return base_url, tokenizer.resolve()


def _finish(log: RecordLog, console: Console) -> int:
    """Write the report, print the tables, and return the exit status."""
    found = checks.evaluate(log.records)
    path = log.path.with_name(bench_tables.FILE_NAME)
    path.write_text(bench_tables.markdown(log.records, found), encoding="utf-8")
    bench_tables.print_result(console, log.records, found)
    console.print(f"records: {log.path}\nreport:  {path}", markup=False, highlight=False, soft_wrap=True)
    return EXIT_OK if all(check.passed for check in found) else EXIT_FAILED


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@click.option("--quick", is_flag=True, help="One thread count, few and short conversations and documents.")
@click.option("--arms", default=",".join(ARMS), help="Which ways of serving to compare.")
@click.option("--target", metavar="URL", help="Measure a server that is running, instead of starting some.")
@click.option("--tokenizer", type=click.Path(path_type=Path), help="Directory of the target's tokenizer.")
@click.option("--tasks", default=",".join(plan.TASKS), help="lm-eval's tasks; empty for none.")
@click.option("--streams", default="1,4", help="Conversations at a time.")
@click.option("--threads", default="", help="Threads of the disk tier. [default: 4,16; with --quick: 4]")
@click.option("--conversations", type=click.IntRange(1), help="A phase. [default: 6; with --quick: 4]")
@click.option("--documents", type=click.IntRange(1), help="A task. [default: 4; with --quick: 2]")
@click.option(
    "--seed", type=click.IntRange(1), help="Decides the prompts. [default: 919; --target: new ones]"
)
@served_options(DEFAULT_OUT)
def main(  # noqa: PLR0913, PLR0917 - one argument an option
    quick: bool,
    out: Path,
    arms: str,
    target: str | None,
    tokenizer: Path | None,
    model_dir: Path | None,
    work_dir: Path | None,
    tasks: str,
    streams: str,
    threads: str,
    conversations: int | None,
    documents: int | None,
    seed: int | None,
    server_timeout_s: float,
    keep: bool,
) -> None:
    """Measure vLLM with each KV cache tier: cold, from host memory, and from disk after a restart.

    The results are records.jsonl, report.md and a table. It fails unless vLLM's own metrics prove that the
    warm phase was served from disk, faster than cold, with answers as right as without a tier.
    """

    def session(console: Console) -> int:
        checked_target = _checked_target(target, tokenizer) if target is not None else None
        # A target may have seen the usual prompts before; then nothing would be cold.
        own_seed = plan.DEFAULT_SEED if checked_target is None else int(time.time()) % 1_000_000
        chosen = plan.make(
            parse_arms(arms),
            quick=quick,
            tasks=lm_eval.parse_tasks(tasks, plan.TASKS),
            seed=seed or own_seed,
            streams=numbers(streams, "--streams") or (1, 4),
            threads=numbers(threads, "--threads"),
            conversations=conversations,
            documents=documents,
            servers_at_once=plan.SERVERS_AT_ONCE if environment.has_memory(plan.TWO_SERVERS_BYTES) else 1,
        )
        out_dir = writable(out, "--out")
        options = Options(
            plan=chosen,
            out_dir=out_dir,
            work_dir=writable(work_dir, "--work-dir") if work_dir else out_dir,
            model_dir=checked_target[1] if checked_target else model.check(model_dir) if model_dir else None,
            dtype=environment.fast_dtype(),
            server_timeout_s=server_timeout_s,
            keep=keep,
        )
        log = RecordLog(out_dir)
        if checked_target:
            run_target(options, checked_target[0], console, log)
        else:
            storage.require_disk(options.work_dir, 0)
            Bench(options, console, log).run()
        return _finish(log, console)

    run_session("bench", session, "all that it had started has ended")


if __name__ == "__main__":
    main()
