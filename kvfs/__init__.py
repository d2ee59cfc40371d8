"""kvfs: a directory as a fast, trustworthy tier of KV cache for vLLM.

`ChunkEngine` stores, loads and looks up chunks by key; `kvfs.vllm_adapter` makes it a secondary tier of
vLLM. Nothing here needs more than the standard library.
"""

from kvfs.config import TierConfig
from kvfs.engine import ChunkEngine
from kvfs.paths import Namespace

__all__ = ["ChunkEngine", "Namespace", "TierConfig"]
