"""The entry point of `vllm.general_plugins`: makes `"type": "kvfs"` known in each vLLM process."""

from __future__ import annotations

import logging

_logger = logging.getLogger("kvfs")

TIER_TYPE = "kvfs"
SPEC_NAME = "KvfsOffloadingSpec"


def register() -> None:
    """Register the tier and the spec, once a process. Never raises: vLLM starts without kvfs too."""
    try:
        _share_log_handlers()
        _register()
    except Exception as error:  # noqa: BLE001 - a plugin that raises stops every vLLM on the machine
        _logger.warning(
            "kvfs could not register its tier with this vLLM (%s: %s); it will refuse configurations with "
            "type 'kvfs'. kvfs needs vLLM 0.31 or newer.",
            type(error).__name__,
            error,
        )


def _register() -> None:
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory  # noqa: PLC0415 - only where vLLM is
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory  # noqa: PLC0415

    # vLLM may load plugins more than once, and a registry refuses a second entry.
    if TIER_TYPE not in SecondaryTierFactory._registry:  # noqa: SLF001 - there is no public question
        SecondaryTierFactory.register_tier(TIER_TYPE, "kvfs.vllm_adapter.tier", "KvfsSecondaryTierManager")
    if SPEC_NAME not in OffloadingSpecFactory._registry:  # noqa: SLF001
        OffloadingSpecFactory.register_spec(SPEC_NAME, "kvfs.vllm_adapter.spec", SPEC_NAME)


def _share_log_handlers() -> None:
    """Let kvfs's lines go where vLLM's go, unless the user has set up a place for them."""
    vllm_logger = logging.getLogger("vllm")
    if _logger.hasHandlers() or not vllm_logger.handlers:
        return
    _logger.handlers = list(vllm_logger.handlers)
    _logger.setLevel(vllm_logger.level)
    _logger.propagate = False
