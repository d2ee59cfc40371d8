"""The disk's own limit: fio on one file of the same directory, past the page cache, 16 requests deep.

A request is a chunk, but at most 1 MiB: the kernel splits larger ones anyway, at a size that depends on the
disk, and 1 MiB divides the file. The order is random, as the order of chunks is, and each block is written
before it is measured, so that writes find real extents and reads find data.
"""

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from harness.errors import HarnessError
from harness.micro.cases import LOAD
from harness.processes import GuardedProcess, wait_for_exit

DEPTH: Final = 16
_BLOCK_BYTES_MAX: Final = 1 << 20
_TIMEOUT_S: Final = 120.0
_ENGINES: Final = ("io_uring", "libaio")


class FioError(HarnessError):
    """fio did not measure."""


@dataclass(frozen=True)
class FioRun:
    """What one run of fio measured.

    Attributes:
        wall_s: Time of the transfers.
        cpu_s: User and system time of fio's process.
        moved_bytes: Bytes of the transfers.
    """

    wall_s: float
    cpu_s: float
    moved_bytes: int


def block_bytes(chunk_bytes: int) -> int:
    """Return the size of fio's requests for a chunk size."""
    return min(chunk_bytes, _BLOCK_BYTES_MAX)


def _version() -> str:
    if shutil.which("fio") is None:
        raise FioError(
            "fio is not installed (Debian: apt-get install fio); there is no limit to compare with"
        )
    return subprocess.run(["fio", "--version"], capture_output=True, text=True, check=True).stdout.strip()


class Fio:
    """fio with one file, written in full when this is made.

    Args:
        directory: Gets the file and fio's output.
        log_dir: Gets fio's log.
        file_bytes: Size of the file, a multiple of 1 MiB.
        runtime_s: How long a run goes on, over and over the file; 0 ends after one pass.

    Raises:
        FioError: fio is not installed, or cannot write the file with any engine.
    """

    def __init__(self, directory: Path, log_dir: Path, file_bytes: int, runtime_s: float) -> None:
        self._version = _version()
        self._directory = directory
        self._log_dir = log_dir
        self._file = directory / "limit.dat"
        self._file_bytes = file_bytes
        self._runtime_s = runtime_s
        self.engine = ""
        problems = []
        for engine in _ENGINES:
            self.engine = engine
            try:
                self._run("write", _BLOCK_BYTES_MAX, 0)
            except FioError as error:
                problems.append(str(error))
            else:
                return
        raise FioError("; ".join(problems))

    def measure(self, op: str, chunk_bytes: int) -> FioRun:
        """Read the file (to load) or write it (to store) in requests of the chunk's size.

        Raises:
            FioError: fio failed.
        """
        kind = "randread" if op == LOAD else "randwrite"
        return self._run(kind, block_bytes(chunk_bytes), self._runtime_s)

    def facts(self, chunk_bytes: int) -> dict[str, object]:
        """Return what records say about a run for this chunk size."""
        return {
            "engine": "fio",
            "o_direct": True,
            "fio": {
                "version": self._version,
                "ioengine": self.engine,
                "iodepth": DEPTH,
                "block_bytes": block_bytes(chunk_bytes),
                "order": "random",
                "file_bytes": self._file_bytes,
            },
            "page_cache": {"state": "bypassed: direct=1"},
        }

    def _run(self, kind: str, size_bytes: int, runtime_s: float) -> FioRun:
        output = self._directory / "fio.json"
        command = [
            "fio",
            "--name=limit",
            f"--filename={self._file}",
            f"--rw={kind}",
            f"--ioengine={self.engine}",
            "--direct=1",
            f"--bs={size_bytes}",
            f"--iodepth={DEPTH}",
            f"--size={self._file_bytes}",
            "--thread",
            "--output-format=json",
            f"--output={output}",
        ]
        if runtime_s:
            command += ["--time_based", f"--runtime={round(runtime_s * 1000)}ms"]
        log_path = self._log_dir / "fio.log"
        with GuardedProcess(command, log_path=log_path, env=os.environ, cwd=self._directory) as process:
            status = wait_for_exit(process, _TIMEOUT_S)
        if status != 0:
            raise FioError(f"fio with {self.engine} ended with status {status}: {process.tail(3)}")
        text = output.read_text()
        output.unlink()
        return parse_output(text, "read" if "read" in kind else "write")


def parse_output(text: str, direction: str) -> FioRun:
    """Return the run of fio's JSON output.

    Raises:
        FioError: It is not fio's output, or nothing was moved.
    """
    # fio may print notes before its JSON.
    start = re.search(r"^\{", text, re.MULTILINE)
    try:
        job = json.loads(text[start.start() if start else 0 :])["jobs"][0]
        moved = job[direction]
        wall_s = moved["runtime"] / 1000
        cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
        run = FioRun(wall_s, cpu_s, cast("int", moved["io_bytes"]))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise FioError(f"fio's output is not what version 3 writes ({error!r}): {text[:200]!r}") from error
    if job["error"] or run.moved_bytes == 0 or run.wall_s == 0:
        raise FioError(f"fio moved {run.moved_bytes} bytes in {wall_s} s, error {job['error']}")
    return run
