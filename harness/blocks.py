"""Run the servers of a plan one after the other, or one that the user started, and measure each."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from rich.console import Console

from harness import completions, environment, load, model, storage, vllm_metrics
from harness.accuracy import lm_eval
from harness.arms import TARGET, TOKENS_PER_CHUNK
from harness.errors import HarnessError
from harness.phases import Phases, Subject, Tools
from harness.plan import COLD, DAMAGED, HOST, WARM, Block, Plan, Step
from harness.progress import Progress
from harness.records import RecordLog
from harness.served import ServedOptions
from harness.server import MODEL_NAME, Server, vllm_spec
from harness.tools import Tool

_SECONDS_PREPARE: Final = 40.0
_PREPARE_TIMEOUT_S: Final = 300.0
_SCRATCH_PREFIX: Final = "kvfs-bench-"
# A server that is not restarted is asked everything once, and the load a second time.
_TARGET_PHASES: Final = (COLD, HOST)


@dataclass(frozen=True, kw_only=True)
class Options(ServedOptions):
    """The same of `bench`.

    Attributes:
        plan: What to run.
    """

    plan: Plan


class Bench:
    """One run over all servers of a plan."""

    def __init__(self, options: Options, console: Console, log: RecordLog) -> None:
        self._options = options
        self._console = console
        self._log = log
        self._machine = environment.machine(options.work_dir)

    def run(self) -> None:
        """Measure every server of the plan.

        Raises:
            HarnessError: A measurement could not be made.
        """
        options = self._options
        groups = options.plan.groups()
        with ExitStack() as stack:
            seconds = (second for group in groups for second in options.plan.group_seconds(group))
            progress = stack.enter_context(Progress(self._console, [_SECONDS_PREPARE, *seconds]))
            with progress.step("load the tools, make the model and the documents"):
                model_dir = options.model_dir or model.ensure(
                    ensure_dir(options.out_dir / "logs"),
                    lambda: progress.note("making the model in the cache, once: half a minute"),
                )
                chunk_size_bytes = model.shape(model_dir).kv_bytes_per_token(options.dtype) * TOKENS_PER_CHUNK
                storage.require_disk(options.work_dir, options.plan.disk_bytes(chunk_size_bytes))
                tools = _load_tools(stack, options, model_dir)
            tiers = stack.enter_context(scratch(options.work_dir, options.keep))
            setting = _Setting(model_dir, chunk_size_bytes, tiers, tools, progress)
            for group in groups:
                self._run_group(group, setting)

    def _run_group(self, group: Sequence[Block], setting: "_Setting") -> None:
        """Start a group's servers, measure them in turns, and end them."""
        titles = " and ".join(block.title for block in group)
        with ExitStack() as stack:
            with setting.progress.step(f"start {titles}"):
                running = {block.name: self._start(block, setting, stack) for block in group}
                for server, _ in running.values():
                    server.wait_until_up()
            phases = {
                block.name: Phases(
                    self._subject(block, setting.root_dir(block), *running[block.name]),
                    self._options.plan,
                    setting.tools,
                    self._log,
                    setting.progress,
                )
                for block in group
            }
            try:
                for step in self._options.plan.steps(group):
                    _measure(phases[step.block.name], step)
            except HarnessError:
                for server, _ in running.values():
                    server.check_alive()  # when it has died, its log says more than who noticed
                raise
            with setting.progress.step(f"stop {titles}"):
                stack.close()
        for block in group:
            if block.stage == WARM and not self._options.keep:
                shutil.rmtree(setting.root_dir(block))

    def _start(self, block: Block, setting: "_Setting", stack: ExitStack) -> tuple[Server, str]:
        """Start a block's server; return it, and what is in the page cache of its directory."""
        options = self._options
        root_dir = ensure_dir(setting.root_dir(block))
        page_cache = "nothing to read yet" if block.arm.offloads else "not used"
        if block.stage == WARM:
            page_cache = f"evicted before warm, {storage.evict(root_dir):.1%} stayed"
        spec = vllm_spec(
            block.arm,
            setting.model_dir,
            root_dir,
            block.n_threads,
            dtype=options.dtype,
            cpu_bytes_to_use=options.plan.cpu_bytes_to_use(setting.chunk_size_bytes),
            log_path=options.out_dir / "logs" / f"{block.name}.server.log",
            ready_timeout_s=options.server_timeout_s,
        )
        return stack.enter_context(Server(spec)), page_cache

    def _subject(self, block: Block, root_dir: Path, server: Server, page_cache: str) -> Subject:
        return Subject(
            arm=block.arm.name,
            n_threads=block.n_threads,
            title=block.title,
            name=block.name,
            base_url=server.base_url,
            model_name=MODEL_NAME,
            has_metrics=True,
            storage_read_bytes=server.storage_read_bytes,
            root_dir=root_dir,
            env={
                **self._machine,
                **self._options.plan.describe(),
                **environment.of_arm(block.arm, server.log_path),
                "dtype": self._options.dtype,
                "page_cache": page_cache,
            },
        )


@dataclass(frozen=True)
class _Setting:
    """What all groups of a run share."""

    model_dir: Path
    chunk_size_bytes: int
    tiers: Path
    tools: Tools
    progress: Progress

    def root_dir(self, block: Block) -> Path:
        """Return the directory of a block's disk tier; the cold and the warm block share it."""
        return self.tiers / f"{block.arm.name}-t{block.n_threads}"


def _measure(phases: Phases, step: Step) -> None:
    if step.phase == "":
        phases.warm_up()
    elif step.asked is None:
        phases.load(step.phase, step.streams)
    elif step.phase == DAMAGED:
        phases.control(step.asked)
    else:
        phases.accuracy(step.phase, step.asked)


def run_target(options: Options, base_url: str, console: Console, log: RecordLog) -> None:
    """Measure a server that the user started.

    Raises:
        HarnessError: A measurement could not be made.
    """
    plan_, tokenizer = options.plan, options.model_dir
    assert tokenizer is not None
    try:
        vllm_metrics.scrape(base_url)
        has_metrics = True
    except vllm_metrics.MetricsError as error:
        console.print(f"no token counts: {error}", markup=False, highlight=False)
        has_metrics = False
    subject = Subject(
        arm=TARGET,
        n_threads=0,
        title=TARGET,
        name=TARGET,
        base_url=base_url,
        model_name=completions.served_model(base_url),
        has_metrics=has_metrics,
        storage_read_bytes=None,
        root_dir=None,
        env={
            **environment.machine(options.work_dir),
            **plan_.describe(),
            "order": [],
            "engine": environment.UNKNOWN,
            "io_backend": environment.UNKNOWN,
            "o_direct": environment.UNKNOWN,
            "page_cache": environment.UNKNOWN,
            "dtype": environment.UNKNOWN,
        },
    )
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(console, [_SECONDS_PREPARE, *_target_seconds(plan_)]))
        with progress.step("prepare the load and the documents"):
            tools = _load_tools(stack, options, tokenizer)
        phases = Phases(subject, plan_, tools, log, progress)
        for phase in _TARGET_PHASES:
            for streams in plan_.streams:
                phases.load(phase, streams)
        for asked in plan_.questions:
            phases.accuracy(COLD, asked)


def _target_seconds(plan_: Plan) -> Iterator[float]:
    for phase in _TARGET_PHASES:
        yield from (plan_.load_seconds(phase, offloads=True) for _ in plan_.streams)
    yield from (plan_.accuracy_seconds(asked, COLD) for asked in plan_.questions)


def _load_tools(stack: ExitStack, options: Options, tokenizer: Path) -> Tools:
    """Load the tools and make the documents, so that no measurement waits for either."""
    tools_dir = ensure_dir(options.out_dir / "logs")
    guidellm = stack.enter_context(Tool("guidellm", tools_dir, load.ENVIRONMENT))
    asking = None
    if options.plan.questions:
        asking = stack.enter_context(Tool("lm-eval", tools_dir, lm_eval.environment(tools_dir)))
        for asked in options.plan.questions:
            lm_eval.prepare(asking, tokenizer, asked)
        asking.wait(_PREPARE_TIMEOUT_S)
    guidellm.version()
    return Tools(guidellm, asking, tokenizer, ensure_dir(options.out_dir / "raw"))


def ensure_dir(path: Path) -> Path:
    """Make a directory, if it is not there, and return it."""
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def scratch(work_dir: Path, keep: bool) -> Iterator[Path]:
    """Make a directory for the tiers that goes at the end.

    When the end is a SIGKILL, it goes at the start of the next run in the same place.
    """
    for leftover in work_dir.glob(f"{_SCRATCH_PREFIX}*-*"):
        owner = leftover.name.removeprefix(_SCRATCH_PREFIX).partition("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(leftover, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(dir=work_dir, prefix=f"{_SCRATCH_PREFIX}{os.getpid()}-"))
    try:
        yield directory
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
