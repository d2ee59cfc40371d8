"""The arms of a comparison: what each one tells vLLM, and the environment that it runs in."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from harness.errors import UsageError

TOKENS_PER_CHUNK: Final = 128
# The arm whose answers and speed the others are compared with: nothing is offloaded.
BASELINE: Final = "none"
# The arm of vLLM's own disk tier.
STOCK: Final = "fs"
# A server that the user started; whatever it offloads to is not ours to configure.
TARGET: Final = "target"


@dataclass(frozen=True)
class Arm:
    """One way to serve the same requests.

    Attributes:
        name: As in records and on the command line.
        tier_type: The secondary tier's `type` in vLLM's configuration; None offloads nothing.
        environment: Variables that this arm's server gets beside the common ones.
        engine: Which of kvfs's engines the arm stands for, "" where kvfs does no I/O.
        host_only: Whether it offloads to host memory and no further.
        tier_options: Options of the secondary tier beside those that all arms have.
    """

    name: str
    tier_type: str | None
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    engine: str = ""
    host_only: bool = False
    tier_options: Mapping[str, object] = field(default_factory=dict, hash=False)

    @property
    def offloads(self) -> bool:
        """Whether the arm has a disk tier."""
        return self.tier_type is not None


ARMS: Final = {
    arm.name: arm
    for arm in (
        Arm(BASELINE, None),
        Arm(STOCK, "fs"),
        Arm("kvfs", "kvfs", {"KVFS_DISABLE_EXT": "0"}, "extension"),
        Arm("kvfs-fallback", "kvfs", {"KVFS_DISABLE_EXT": "1"}, "fallback"),
    )
}
# Host memory alone: what a sweep tells a disk tier's share apart with.
DRAM: Final = Arm("dram", None, host_only=True)


def parse_arms(text: str, known: Mapping[str, Arm] = ARMS) -> list[Arm]:
    """Return the arms of a comma-separated list, in the order of `known`.

    Raises:
        UsageError: An unknown name, or none at all.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        what = f"unknown arm {unknown[0]!r}" if unknown else "no arm is named"
        raise UsageError(f"--arms {text!r}: {what}; choose from {','.join(known)}")
    return [arm for arm in known.values() if arm.name in names]


def kv_transfer_config(
    arm: Arm,
    root_dir: Path,
    n_threads: int,
    cpu_bytes_to_use: int,
    engine_id: str,
    n_write_threads: int | None = None,
) -> str | None:
    """Return vLLM's `--kv-transfer-config` for an arm, or None where nothing is offloaded.

    Args:
        arm: The arm.
        root_dir: The disk tier's directory.
        n_threads: For reads.
        cpu_bytes_to_use: Size of the primary tier.
        engine_id: vLLM names the primary tier's shared memory after it.
        n_write_threads: For writes; None means as many as for reads.
    """
    if not arm.offloads and not arm.host_only:
        return None
    tier = {
        "type": arm.tier_type,
        "root_dir": str(root_dir),
        "n_read_threads": n_threads,
        "n_write_threads": n_threads if n_write_threads is None else n_write_threads,
        **arm.tier_options,
    }
    return json.dumps(
        {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "engine_id": engine_id,
            "kv_connector_extra_config": {
                # vLLM's own spec refuses the CPU platform; this one adds the copy to host memory there.
                "spec_name": "KvfsOffloadingSpec",
                "spec_module_path": "kvfs.vllm_adapter.spec",
                "cpu_bytes_to_use": cpu_bytes_to_use,
                "block_size": TOKENS_PER_CHUNK,
                "secondary_tiers": [tier] if arm.offloads else [],
            },
        }
    )


def shared_memory_name(engine_id: str) -> str:
    """Return the file under /dev/shm that vLLM keeps the primary tier in."""
    return f"vllm_offload_{engine_id}.mmap"
