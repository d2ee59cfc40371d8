"""What changes a chunk's bytes or their meaning and is missing in the digest of vLLM's namespace."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm.config import VllmConfig
from vllm.platforms import current_platform

from kvfs.vllm_adapter import weights

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import OffloadingSpec

# From here up to the connector that has vLLM's whole configuration there are about ten.
_FRAMES_MAX: Final = 32
_WHOLE: Final = "none"

_logger = logging.getLogger("kvfs")


def traits_of(offloading_spec: OffloadingSpec) -> dict[str, str]:
    """Return what is known of the chunks beyond vLLM's digest, text by name; docs/identity.md lists it.

    Blocks: reads some MiB of a local checkpoint. Never raises: what cannot be had is missing.
    """
    readers: dict[str, Callable[[], str | None]] = {
        "kv_cache_layout": lambda: _kv_cache_layout(offloading_spec)
    }
    vllm_config = find_vllm_config(offloading_spec)
    if vllm_config is None:
        readers["weights"] = lambda: _weights_by_name(offloading_spec.config.model.name)
    else:
        readers |= {
            "weights": lambda: _weights(vllm_config),
            "draft_weights": lambda: _draft_weights(vllm_config),
            "model_dtype": lambda: str(vllm_config.model_config.dtype).removeprefix("torch."),
            "quantization": lambda: _quantization(vllm_config),
            "hf_overrides": lambda: _hf_overrides(vllm_config),
            "rotary_embedding": lambda: _rotary_embedding(vllm_config),
            "platform": lambda: _platform(vllm_config),
        }
    traits = {}
    for name, read in readers.items():
        value = _try(name, read)
        if value is not None:
            traits[name] = value
    return traits


def find_vllm_config(offloading_spec: OffloadingSpec) -> VllmConfig | None:
    """Return the configuration that a spec was made from, None where it cannot be had.

    vLLM gives a tier only the part that its own tiers need, without revision and quantisation. The connector
    that builds the tier has all of it, as an argument: it is one of our callers. Whether it is the spec's
    shows in the options, which are the same object.
    """
    here = inspect.currentframe()
    # Not our own, whose locals would keep all the others alive.
    frame = here and here.f_back
    for _ in range(_FRAMES_MAX):
        if frame is None:
            break
        found = frame.f_locals.get("vllm_config")
        if isinstance(found, VllmConfig):
            transfer = found.kv_transfer_config
            if transfer is not None and transfer.kv_connector_extra_config is offloading_spec.extra_config:
                return found
        frame = frame.f_back
    return None


def _try(name: str, read: Callable[[], str | None]) -> str | None:
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - a release that lacks a field must start all the same
        # A cache without the rest is what everybody had before; without the weights it is worth a line.
        level = logging.WARNING if name == "weights" else logging.DEBUG
        _logger.log(
            level,
            "kvfs cannot tell the %s of this engine (%s: %s); that they are those of the chunks in its "
            "namespace is not checked",
            name,
            type(error).__name__,
            error,
        )
        return None


def _weights(vllm_config: VllmConfig) -> str:
    return weights.of_model(vllm_config.model_config, str(vllm_config.load_config.load_format))


def _weights_by_name(model: str) -> str:
    path = Path(model)
    if not path.exists():
        raise LookupError(f"vLLM does not say which revision of {model} it has")
    return weights.of_files(path)


def _kv_cache_layout(offloading_spec: OffloadingSpec) -> str | None:
    config = offloading_spec.config
    # The canonical layout is the same whatever the workers' is, and vLLM's digest has its name.
    return None if config.canonical_layout else config.kv_cache_layout


def _draft_weights(vllm_config: VllmConfig) -> str | None:
    speculative = vllm_config.speculative_config
    draft = None if speculative is None else speculative.draft_model_config
    # Only a draft with layers of its own in the cache has a part in the bytes; vLLM's digest has their names.
    if draft is None or draft.model == vllm_config.model_config.model:
        return None
    return weights.of_model(draft, str(vllm_config.load_config.load_format))


def _quantization(vllm_config: VllmConfig) -> str:
    model_config = vllm_config.model_config
    # What is quantised on disk has that in its fingerprint, and each GPU has another name for its kernel.
    if getattr(model_config.hf_config, "quantization_config", None) is not None:
        return "checkpoint"
    return model_config.quantization or _WHOLE


def _hf_overrides(vllm_config: VllmConfig) -> str | None:
    overrides = vllm_config.model_config.hf_overrides
    if not overrides:
        return _WHOLE
    if not isinstance(overrides, Mapping):
        raise LookupError("a function makes them")  # noqa: TRY004 - no mistake, just not known
    canonical = json.dumps(overrides, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:40]


def _rotary_embedding(vllm_config: VllmConfig) -> str | None:
    """Tell which factors a LongRoPE model uses: the longest possible context decides for all keys."""
    config = vllm_config.model_config.hf_text_config
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if parameters.get("rope_type", parameters.get("type")) != "longrope":
        return None
    original = parameters.get("original_max_position_embeddings") or config.original_max_position_embeddings
    return "longrope-long" if vllm_config.model_config.max_model_len > original else "longrope-short"


def _platform(vllm_config: VllmConfig) -> str:
    if not current_platform.is_cpu():
        # "rocm" is another device than "cuda", with another 8-bit float.
        return str(current_platform.device_name)
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa  # noqa: PLC0415 - only where it is used

    model_config, cache_config = vllm_config.model_config, vllm_config.cache_config
    # Keys are packed for the processor's instructions: another machine reads another order.
    isa = _get_attn_isa(
        model_config.dtype, cache_config.block_size, model_config.get_head_size(), cache_config.cache_dtype
    )
    return f"cpu-{isa}"
