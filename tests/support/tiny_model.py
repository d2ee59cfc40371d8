"""A checkpoint of a model that is small enough for a test, and vLLM's own configuration of it."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

# Quiets what vLLM's imports warn about.
import vllm_parts  # noqa: F401  quiets what vLLM's imports warn about

# isort: split
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor

BLOCK_TOKENS = 32
NUM_BLOCKS = 8
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "dtype": "bfloat16",
}
_engine_ids = itertools.count()


def write_checkpoint(directory: Path, *, seed: int = 1) -> Path:
    """Write a checkpoint whose files have the same names and sizes whatever the seed."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    shapes, end = {}, 0
    for layer in range(2):
        shapes[f"layer.{layer}"] = {"dtype": "BF16", "shape": [64, 64], "data_offsets": [end, end + 8192]}
        end += 8192
    header = json.dumps(shapes).encode()
    content = len(header).to_bytes(8, "little") + header + random.Random(seed).randbytes(end)
    (directory / "model.safetensors").write_bytes(content)
    return directory


def make_config(
    checkpoint: Path,
    root: Path,
    *,
    layout: str = "LBHNC",
    extra: dict[str, Any] | None = None,
    **options: Any,
) -> VllmConfig:
    """Make vLLM's whole configuration with a kvfs tier, as its command line does."""
    tiers = [{"type": "kvfs", "root_dir": str(root), "n_read_threads": 1, "n_write_threads": 1}]
    transfer = KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        engine_id=f"kvfs-identity-{next(_engine_ids)}",
        kv_connector_extra_config={
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": 1 << 20,
            "secondary_tiers": tiers,
            **(extra or {}),
        },
    )
    arguments: dict[str, Any] = {
        "model": str(checkpoint),
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "max_model_len": 256,
        "block_size": BLOCK_TOKENS,
        "enforce_eager": True,
        **options,
    }
    config = EngineArgs(kv_transfer_config=transfer, **arguments).create_engine_config()
    # The engine core asks the workers before it makes the scheduler.
    config.cache_config.kv_cache_layout = layout
    return config


def make_connector(
    config: VllmConfig, *, head_size: int = 32, layers: tuple[str, ...] = ("layer.0", "layer.1")
) -> OffloadingConnector:
    """Make the connector of vLLM's scheduler, with the tier in it."""
    spec = FullAttentionSpec(
        block_size=BLOCK_TOKENS,
        num_kv_heads=2,
        head_size=head_size,
        dtype=config.model_config.dtype,
    )
    page = spec.page_size_bytes
    tensor = KVCacheTensor(
        size=page * len(layers) * NUM_BLOCKS,
        layers=list(layers),
        layer_stride=page * NUM_BLOCKS,
        block_stride=page,
    )
    cache = KVCacheConfig(
        num_blocks=NUM_BLOCKS,
        kv_cache_tensors=[tensor],
        kv_cache_groups=[KVCacheGroupSpec(list(layers), spec)],
    )
    return OffloadingConnector(config, KVConnectorRole.SCHEDULER, cache)
