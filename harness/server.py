"""Run a vLLM server for as long as a block lasts, and leave nothing of it behind."""

import http.client
import itertools
import os
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from harness import arms
from harness.arms import Arm
from harness.errors import HarnessError
from harness.processes import GuardedProcess

MODEL_NAME: Final = "kvfs-bench"
# No telemetry and no look at a hub; 1 GiB of KV cache on the CPU is 20,000 tokens and more.
_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Of two cores vLLM by itself keeps one from a model without a KV connector and none from one that has it,
    # and it binds servers that start side by side to the same core.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
    # Nothing but what is installed may answer `import kvfs`.
    "PYTHONSAFEPATH": "1",
}
_HEALTH_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.25
_LOG_LINES: Final = 30
# vLLM ends within a few seconds when it is idle.
_GRACE_S: Final = 15.0
_numbers = itertools.count(1)


class ServerError(HarnessError):
    """A server did not come up, or ended while it was needed."""


@dataclass(frozen=True)
class ServerSpec:
    """What to start and how to tell that it is up.

    Attributes:
        command: Program and arguments.
        base_url: Where it will answer.
        log_path: Gets what it prints.
        env: Variables beside the inherited ones.
        unlink: Names under /dev/shm that it may leave.
        ready_timeout_s: How long it may take to answer `/health`.
    """

    command: Sequence[str]
    base_url: str
    log_path: Path
    env: Mapping[str, str] = field(default_factory=dict)
    unlink: Sequence[str] = ()
    ready_timeout_s: float = 300.0


def free_port() -> int:
    """Return a port on loopback that nobody uses now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def vllm_spec(  # noqa: PLR0913 - a server has many knobs
    arm: Arm,
    model_dir: Path,
    root_dir: Path,
    n_threads: int,
    *,
    dtype: str,
    cpu_bytes_to_use: int,
    log_path: Path,
    ready_timeout_s: float,
    n_write_threads: int | None = None,
    options: Sequence[str] = (),
) -> ServerSpec:
    """Return how to start vLLM for an arm on a free port.

    Args:
        arm: The arm.
        model_dir: The model.
        root_dir: The disk tier's directory.
        n_threads: The disk tier's read threads.
        dtype: Number format of the model and of its KV cache.
        cpu_bytes_to_use: Size of the primary tier.
        log_path: Gets the server's output.
        ready_timeout_s: How long it may take to start.
        n_write_threads: The disk tier's write threads; None means as many.
        options: More of vLLM's arguments; one that is given twice counts as it stands last.
    """
    port = free_port()
    engine_id = f"kvfs-bench-{os.getpid()}-{next(_numbers)}"
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        f"--model={model_dir}",
        f"--served-model-name={MODEL_NAME}",
        "--host=127.0.0.1",
        f"--port={port}",
        "--enforce-eager",
        f"--dtype={dtype}",
        "--max-model-len=4096",
        # The device's own cache would answer before a tier is asked.
        "--no-enable-prefix-caching",
        "--disable-uvicorn-access-log",
    ]
    offload = arms.kv_transfer_config(arm, root_dir, n_threads, cpu_bytes_to_use, engine_id, n_write_threads)
    if offload is not None:
        command.append(f"--kv-transfer-config={offload}")
    command += options
    return ServerSpec(
        command=command,
        base_url=f"http://127.0.0.1:{port}",
        log_path=log_path,
        env={**_ENVIRONMENT, **arm.environment},
        unlink=[arms.shared_memory_name(engine_id)],
        ready_timeout_s=ready_timeout_s,
    )


class Server:
    """A server that runs for as long as the block lasts; it is not up yet when the block begins.

    Args:
        spec: What to start.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self._spec = spec
        self.base_url = spec.base_url

    def __enter__(self) -> Self:
        """Start it."""
        # vLLM's sockets have paths, which may not be long.
        scratch = Path(tempfile.mkdtemp(prefix="kvfs-"))
        self._process = GuardedProcess(
            self._spec.command,
            log_path=self._spec.log_path,
            env={**os.environ, **self._spec.env, "TMPDIR": str(scratch)},
            cwd=scratch,
            grace_s=_GRACE_S,
            unlink=self._spec.unlink,
            remove=[scratch],
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._process.end()
        else:
            self._process.kill()

    @property
    def log_path(self) -> Path:
        """Where it logs."""
        return self._spec.log_path

    def wait_until_up(self) -> None:
        """Wait until it answers.

        Raises:
            ServerError: It ended or did not answer in time; with the last lines of its log.
        """
        started = time.monotonic()
        while not is_healthy(self.base_url):
            status = self._process.poll()
            if status is not None:
                raise self._error(f"ended with status {status} before it was up")
            waited_s = time.monotonic() - started
            if waited_s > self._spec.ready_timeout_s:
                raise self._error(f"did not answer {self.base_url}/health within {waited_s:.0f} s")
            time.sleep(_POLL_S)

    def check_alive(self) -> None:
        """Raise if it has ended.

        Raises:
            ServerError: With the last lines of its log.
        """
        status = self._process.poll()
        if status is not None:
            raise self._error(f"ended with status {status}")

    def storage_read_bytes(self) -> int:
        """Return the bytes that its processes have had read from storage, the page cache not counted."""
        total = 0
        for process in self._process.tree():
            try:
                total += int(process.io_counters().read_bytes)
            except psutil.Error:
                continue
        return total

    def _error(self, what: str) -> ServerError:
        return ServerError(
            f"the server {what}; the last lines of its log ({self.log_path}):\n"
            f"{self._process.tail(_LOG_LINES)}"
        )


def is_healthy(base_url: str) -> bool:
    """Say whether a server answers `/health` with success."""
    try:
        with urllib.request.urlopen(f"{base_url}/health", timeout=_HEALTH_TIMEOUT_S) as response:
            return bool(response.status == http.HTTPStatus.OK)
    except (urllib.error.URLError, http.client.HTTPException, OSError):
        return False
