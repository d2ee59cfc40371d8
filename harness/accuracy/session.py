"""Run the servers of an accuracy run one after the other, each for the passes that it is started for."""

import dataclasses
import json
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from harness import environment, model, storage
from harness.accuracy import lm_eval, power
from harness.accuracy.asking import ALL_TASKS, Asker, Subject
from harness.accuracy.comparison import Limits
from harness.accuracy.lm_eval import GSM8K
from harness.accuracy.plan import GRADED, OFF, Plan, Stage
from harness.arms import TOKENS_PER_CHUNK
from harness.blocks import scratch
from harness.errors import HarnessError, UsageError
from harness.plan import COLD, DAMAGED
from harness.progress import Progress
from harness.records import RecordLog
from harness.served import ServedOptions
from harness.server import Server, ServerSpec, vllm_spec
from harness.tools import Tool, ToolError

# Offers `/reset_prefix_cache`, with which host memory forgets its chunks: what is asked then comes from disk.
_ENVIRONMENT: Final = {"VLLM_SERVER_DEV_MODE": "1"}
_SECONDS_PREPARE: Final = 30.0
_PREPARE_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, kw_only=True)
class Options(ServedOptions):
    """The same of `accuracy`.

    Attributes:
        plan: What to run.
        limits: The gate's, of which the control takes how much to damage.
    """

    plan: Plan
    limits: Limits


class Session:
    """One run over all servers of a plan.

    Args:
        options: What to run.
        console: Is told how far it is.
        log: Gets the records.
    """

    def __init__(self, options: Options, console: Console, log: RecordLog) -> None:
        self._options = options
        self._plan = options.plan
        self._console = console
        self._log = log
        self._machine = environment.machine(options.work_dir)
        # What a report says about the run beside its records.
        self.notes: list[str] = []

    def run(self) -> None:
        """Ask every server of the plan.

        Raises:
            HarnessError: A measurement could not be made.
        """
        options, plan = self._options, self._plan
        logs, raw = (options.out_dir / name for name in ("logs", "raw"))
        for directory in (logs, raw):
            directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            estimates = [_SECONDS_PREPARE, *plan.seconds()]
            progress = stack.enter_context(Progress(self._console, estimates))
            with progress.step("load lm-eval, make the model and the documents"):
                model_dir = options.model_dir or model.ensure(
                    logs, lambda: progress.note("making the model in the cache, once: half a minute")
                )
                require_context(model_dir, plan.max_model_len)
                chunk_size_bytes = model.shape(model_dir).kv_bytes_per_token(options.dtype) * TOKENS_PER_CHUNK
                storage.require_disk(options.work_dir, plan.disk_bytes(chunk_size_bytes))
                tool = self._load_tool(stack, logs, model_dir)
            tiers = stack.enter_context(scratch(options.work_dir, options.keep))
            asker = Asker(plan, options.limits.damaged_share, tool, model_dir, raw, self._log)
            for stage in plan.stages():
                root_dir = tiers / stage.arm.name
                # The directory of an earlier arm, which nothing needs any more.
                for other in tiers.iterdir():
                    if other != root_dir and not options.keep:
                        shutil.rmtree(other)
                root_dir.mkdir(exist_ok=True)
                spec = self._spec(stage, model_dir, root_dir, plan.host_bytes(chunk_size_bytes))
                self._run_stage(stage, spec, root_dir, asker, progress)

    def _load_tool(self, stack: ExitStack, logs: Path, model_dir: Path) -> Tool:
        """Load lm-eval and have it make the documents, those of RULER while the first server starts.

        Raises:
            UsageError: Those of gsm8k cannot be had.
            ToolError: lm-eval failed.
        """
        asks_hub = any(asked.task == GSM8K and not asked.data_dir for asked in self._plan.questions)
        tool = stack.enter_context(Tool("lm-eval", logs, lm_eval.environment(logs, hub=asks_hub)))
        tool.version()
        for asked in sorted(self._plan.questions, key=lambda asked: asked.task != GSM8K):
            lm_eval.prepare(tool, model_dir, asked)
            if asked.task == GSM8K:
                _await_gsm8k(tool, asked.data_dir)
        return tool

    def _spec(self, stage: Stage, model_dir: Path, root_dir: Path, host_bytes: int) -> ServerSpec:
        arm = stage.arm
        return vllm_spec(
            dataclasses.replace(
                arm,
                environment={**arm.environment, **_ENVIRONMENT},
                tier_options={"checksum": "off"} if arm.engine and stage.checksums == OFF else {},
            ),
            model_dir,
            root_dir,
            self._plan.n_threads,
            dtype=self._options.dtype,
            cpu_bytes_to_use=host_bytes,
            log_path=self._options.out_dir / "logs" / f"{stage.name}.server.log",
            ready_timeout_s=self._options.server_timeout_s,
            options=[f"--max-model-len={self._plan.max_model_len}"],
        )

    def _run_stage(
        self, stage: Stage, spec: ServerSpec, root_dir: Path, asker: Asker, progress: Progress
    ) -> None:
        """Start a server, ask it, and end it."""
        page_cache = "nothing to read yet" if stage.arm.offloads else "not used"
        if stage.passes[0].phase != COLD:
            page_cache = f"evicted before the start, {storage.evict(root_dir):.1%} stayed"
        with ExitStack() as stack:
            with progress.step(f"start {stage.title} for {stage.phases}"):
                server = stack.enter_context(Server(spec))
                server.wait_until_up()
            env = {
                **self._machine,
                **self._plan.describe(),
                **environment.of_arm(stage.arm, server.log_path),
                "dtype": self._options.dtype,
                "page_cache": page_cache,
            }
            subject = Subject(stage, server.base_url, root_dir, env)
            try:
                for number, each in enumerate(stage.passes):
                    count = f" {each.repetition + 1}" if self._plan.repetitions > 1 else ""
                    with progress.step(f"{stage.title}: {each.phase}{count}"):
                        asker.ask(subject, each, forget=number > 0)
            except HarnessError:
                server.check_alive()  # when it has died, its log says more than who noticed
                raise
            if not stage.arm.offloads:
                self.notes.append(self._record_power(asker, subject).sentence())
                progress.note(self.notes[-1])
            with progress.step(f"stop {stage.title}"):
                stack.close()

    def _record_power(self, asker: Asker, subject: Subject) -> power.Power:
        """Say how likely the control is to fail, now that the documents are known."""
        documents = [
            document
            for asked in self._plan.questions
            for document in power.documents(
                asker.prompts[asked.task],
                asker.baseline[asked.task].scores,
                graded=asked.task in GRADED,
                tokenizer=asker.tokenizer,
                tokens_per_chunk=TOKENS_PER_CHUNK,
            )
        ]
        found = power.calculate(documents, self._options.limits)
        asker.record(subject, {"phase": DAMAGED, "task": ALL_TASKS}, "control_power", [found.probability])
        return found


def _await_gsm8k(tool: Tool, data_dir: str) -> None:
    """Wait until its documents are loaded.

    Raises:
        UsageError: They cannot be had.
    """
    try:
        tool.wait(_PREPARE_TIMEOUT_S)
    except ToolError as error:
        where = f"from {data_dir}" if data_dir else "from a hub"
        raise UsageError(
            f"the documents of gsm8k cannot be loaded {where}; name a copy of the data set openai/gsm8k "
            "(README.md and main/) with --gsm8k-dir, or leave the task out; the cause is in "
            f"{tool.log_path}"
        ) from error


def require_context(model_dir: Path, max_model_len: int) -> None:
    """Refuse a model that takes shorter prompts than the documents are.

    Raises:
        UsageError: It does.
    """
    config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    most = config.get("max_position_embeddings")
    if isinstance(most, int) and most < max_model_len:
        raise UsageError(
            f"documents and answers take up to {max_model_len:,} tokens, and the model in {model_dir} takes "
            f"{most:,} (25 examples of gsm8k take about 4,500); leave gsm8k out of --tasks, or name another "
            "model with --model-dir"
        )
