"""Run the servers of a sweep, measure them in turns, and write down each leg when it is whole."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from rich.console import Console

from harness import completions, environment, load, model, storage
from harness.arms import TOKENS_PER_CHUNK
from harness.blocks import ensure_dir, scratch
from harness.errors import HarnessError
from harness.phases import Subject, observe, traffic_metrics
from harness.plan import WARM
from harness.progress import Progress
from harness.records import Record, RecordLog, Scalar, measured
from harness.served import ServedOptions
from harness.server import MODEL_NAME, Server, vllm_spec
from harness.sweep import resume
from harness.sweep.plan import SECONDS_PREPARE, STAGES, Leg, Step, Study, missing
from harness.sweep.watch import INTERVAL_S, Samples, Watch, device_under
from harness.tools import Tool

_WARM_UP_TOKENS: Final = 4
# guidellm makes its data, and at the end waits for the answers that are under way.
_LOAD_TIMEOUT_S: Final = 1800.0
_RAW: Final = "raw"


@dataclass(frozen=True, kw_only=True)
class Options(ServedOptions):
    """The same of `sweep`.

    Attributes:
        studies: What to measure.
        server_options: More of vLLM's arguments.
        servers_at_once: How many arms run side by side.
    """

    studies: Sequence[Study]
    server_options: Sequence[str]
    servers_at_once: int


class Sweep:
    """One start of a sweep, which measures what earlier ones have not.

    Args:
        options: What to do.
        console: Shows the progress.
        log: Gets the records.
    """

    def __init__(self, options: Options, console: Console, log: RecordLog) -> None:
        self._options = options
        self._console = console
        self._log = log
        machine = environment.machine(options.work_dir)
        self._device = device_under(options.work_dir)
        self._envs = {study.scenario.name: self._env_of(study, machine) for study in options.studies}
        earlier = resume.read_earlier(options.out_dir)
        done = {
            study.scenario.name: resume.done_legs(study, earlier, self._envs[study.scenario.name])
            for study in options.studies
        }
        self._work = [
            (study, group)
            for study in options.studies
            for group in missing(study.groups(options.servers_at_once), done[study.scenario.name])
        ]
        self.records: list[Record] = [
            record for record in earlier if record.case.get("scenario") in self._envs
        ]
        self.skipped = [leg for legs in done.values() for leg in legs]

    def run(self) -> None:
        """Measure every leg that is missing.

        Raises:
            HarnessError: A measurement could not be made; what was whole before is in the records.
        """
        self._say_what_there_is_to_do()
        if not self._work:
            return
        with ExitStack() as stack:
            seconds = (second for study, group in self._work for second in study.seconds(group))
            progress = stack.enter_context(Progress(self._console, [SECONDS_PREPARE, *seconds]))
            with progress.step("load guidellm, make the model"):
                logs = ensure_dir(self._options.out_dir / "logs")
                guidellm = stack.enter_context(Tool(load.TASK, logs, load.ENVIRONMENT))
                model_dir = self._options.model_dir or model.ensure(
                    logs, lambda: progress.note("making the model in the cache, once: half a minute")
                )
                kv_bytes = model.shape(model_dir).kv_bytes_per_token(self._options.dtype)
                chunk_size_bytes = kv_bytes * TOKENS_PER_CHUNK
                at_once = self._options.servers_at_once
                storage.require_disk(
                    self._options.work_dir,
                    max(study.disk_bytes(chunk_size_bytes, at_once) for study, _ in self._work),
                )
                guidellm.version()
            tiers = stack.enter_context(scratch(self._options.work_dir, self._options.keep))
            setting = _Setting(model_dir, chunk_size_bytes, tiers, guidellm, progress)
            for study, group in self._work:
                found = list(self._run_group(study, group, setting))
                self._log.extend(found)
                self.records += found

    def _say_what_there_is_to_do(self) -> None:
        servers = sum(bool(leg.phases(stage)) for _, group in self._work for leg in group for stage in STAGES)
        legs = sum(len(group) for _, group in self._work)
        lines = []
        if self.skipped:
            names = "; ".join(f"{leg.scenario}: {leg.title}" for leg in self.skipped)
            lines.append(f"measured before, and not again: {names}")
        if self._work:
            seconds = sum(sum(study.seconds(group)) for study, group in self._work) + SECONDS_PREPARE
            lines.append(f"to measure: {legs} legs, {servers} servers, about {seconds / 60:.0f} minutes")
            if self._device is None:
                lines.append(f"{self._options.work_dir} is on no block device: its use cannot be sampled")
        else:
            lines.append("nothing is left to measure; name another --out to measure it again")
        for line in lines:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _env_of(self, study: Study, machine: Mapping[str, object]) -> dict[str, object]:
        """Return what all records of a study say; its options are as they would be read from a file."""
        options = self._options
        choices = {
            **study.options(),
            "dtype": options.dtype,
            "model": str(options.model_dir or "SmolLM2-135M-Instruct"),
            "server_options": list(options.server_options),
        }
        return {
            **machine,
            resume.OPTIONS_KEY: json.loads(json.dumps(choices)),
            "workload": json.loads(json.dumps(choices["workload"])),
            "seed": study.seed,
            "dtype": options.dtype,
            "disk_device": self._device or environment.UNKNOWN,
        }

    def _run_group(self, study: Study, group: Sequence[Leg], setting: "_Setting") -> Iterator[Record]:
        """Run a group before and after the restart; yield all its records."""
        for stage in STAGES:
            steps = list(study.steps(group, stage))
            if steps:
                yield from self._run_stage(study, stage, steps, setting)
        for leg in group:
            if not self._options.keep:
                shutil.rmtree(setting.root_dir(leg), ignore_errors=True)

    def _run_stage(
        self, study: Study, stage: str, steps: Sequence[Step], setting: "_Setting"
    ) -> Iterator[Record]:
        """Start the servers of a stage, measure them in turns, and end them."""
        legs = list(dict.fromkeys(step.leg for step in steps))
        titles = f"{study.scenario.name}, {stage}: " + " and ".join(leg.title for leg in legs)
        with ExitStack() as stack:
            with setting.progress.step(f"start {titles}"):
                running = {leg: self._start(study, leg, stage, setting, stack) for leg in legs}
                for server, _ in running.values():
                    server.wait_until_up()
            subjects = {
                leg: self._subject(study, leg, server, setting.root_dir(leg), page_cache)
                for leg, (server, page_cache) in running.items()
            }
            try:
                for step in steps:
                    if step.phase:
                        yield from self._measure(study, step, subjects[step.leg], setting)
                    else:
                        self._warm_up(study, subjects[step.leg], setting)
            except HarnessError:
                for server, _ in running.values():
                    server.check_alive()  # when it has died, its log says more than who noticed
                raise
            with setting.progress.step(f"stop {titles}"):
                stack.close()

    def _start(
        self, study: Study, leg: Leg, stage: str, setting: "_Setting", stack: ExitStack
    ) -> tuple[Server, str]:
        """Start a leg's server; return it, and what is in the page cache of its directory."""
        root_dir = ensure_dir(setting.root_dir(leg))
        page_cache = "nothing to read yet" if leg.arm.offloads else "not used"
        if stage == WARM:
            page_cache = f"evicted before warm, {storage.evict(root_dir):.1%} stayed"
        spec = vllm_spec(
            leg.arm,
            setting.model_dir,
            root_dir,
            leg.threads.read,
            dtype=self._options.dtype,
            cpu_bytes_to_use=study.host_bytes(setting.chunk_size_bytes),
            log_path=self._options.out_dir / "logs" / f"{leg.name}-{stage}.server.log",
            ready_timeout_s=self._options.server_timeout_s,
            n_write_threads=leg.threads.write,
            options=self._options.server_options,
        )
        return stack.enter_context(Server(spec)), page_cache

    def _subject(self, study: Study, leg: Leg, server: Server, root_dir: Path, page_cache: str) -> Subject:
        return Subject(
            arm=leg.arm.name,
            n_threads=leg.threads.read,
            title=f"{study.scenario.name}: {leg.title}",
            name=leg.name,
            base_url=server.base_url,
            model_name=MODEL_NAME,
            has_metrics=True,
            storage_read_bytes=server.storage_read_bytes,
            root_dir=root_dir if leg.arm.offloads else None,
            env={
                **self._envs[study.scenario.name],
                **environment.of_arm(leg.arm, server.log_path),
                "page_cache": page_cache,
            },
        )

    @staticmethod
    def _warm_up(study: Study, subject: Subject, setting: "_Setting") -> None:
        """Have a server do once, on a prompt that nobody asks again, all that a phase will do."""
        with setting.progress.step(f"{subject.title}: warm up"):
            prompt = completions.unseen_prompt(study.workload.prefix_tokens)
            for _ in range(2):
                completions.complete(subject.base_url, subject.model_name, prompt, _WARM_UP_TOKENS)

    def _measure(self, study: Study, step: Step, subject: Subject, setting: "_Setting") -> Iterator[Record]:
        """Hold a phase's conversations; yield records of what requests, server and machine saw."""
        raw = ensure_dir(self._options.out_dir / _RAW) / f"{subject.name}-{step.phase}-s{step.streams}.json"
        workload = study.workload_for(step.streams)
        title = f"{subject.title}: {step.phase}, {step.streams} stream{'' if step.streams == 1 else 's'}"
        with setting.progress.step(title), Watch(self._device, subject.root_dir) as watch:
            result, traffic, read_bytes = observe(
                subject,
                lambda: load.run(
                    setting.guidellm,
                    subject.base_url,
                    setting.model_dir,
                    workload,
                    step.streams,
                    study.seed_for(step.streams),
                    raw,
                    _LOAD_TIMEOUT_S + workload.duration_s,
                ),
            )
        case: dict[str, Scalar] = {
            "scenario": study.scenario.name,
            "scale": study.setup.scale,
            "phase": step.phase,
            "streams": step.streams,
            "threads": step.leg.threads.read,
            "write_threads": step.leg.threads.write,
            "task": load.TASK,
            "inputs": result.prompts,
        }

        def record(metric: str, values: Sequence[float], **more: Scalar) -> Record:
            return measured(resume.SUITE, {**case, **more}, subject.arm, metric, values, subject.env)

        yield record("requests_per_s", [result.requests_per_s])
        yield record("output_tokens_per_s", [result.output_tokens_per_s])
        yield record("total_tokens_per_s", [result.total_tokens_per_s])
        for turn, values in result.ttft_ms_by_turn.items():
            yield record("ttft_ms", values, turn=turn)
        yield record("request_latency_ms", result.request_latency_ms)
        if result.inter_token_latency_ms:
            yield record("inter_token_latency_ms", result.inter_token_latency_ms)
        yield record("shared_prefixes", [result.shared_prefixes])
        for metric, value in traffic_metrics(traffic, read_bytes):
            yield record(metric, [value])
        for metric, samples in _named(watch.samples):
            if samples:
                yield record(metric, samples, interval_s=INTERVAL_S)


@dataclass(frozen=True)
class _Setting:
    """What all groups of a start share."""

    model_dir: Path
    chunk_size_bytes: int
    tiers: Path
    guidellm: Tool
    progress: Progress

    def root_dir(self, leg: Leg) -> Path:
        """Return the directory of a leg's disk tier; its two servers share it."""
        return self.tiers / leg.name


def _named(samples: Samples) -> Iterator[tuple[str, list[float]]]:
    return ((field.name, getattr(samples, field.name)) for field in fields(samples))
