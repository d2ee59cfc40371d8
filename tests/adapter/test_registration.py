"""How vLLM finds the tier: entry point, module path, and what happens where it cannot."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from vllm.v1.kv_offload.factory import OffloadingSpecFactory
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm_parts import CHUNK_BYTES, make_spec

from kvfs.vllm_adapter import plugin
from kvfs.vllm_adapter.spec import KvfsOffloadingSpec
from kvfs.vllm_adapter.tier import KvfsSecondaryTierManager


def test_entry_point_is_installed_and_names_the_plugin() -> None:
    (entry_point,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="kvfs")
    assert entry_point.load() is plugin.register


def test_tier_and_spec_are_known_by_name() -> None:
    assert SecondaryTierFactory.get_tier_class({"type": "kvfs"}) is KvfsSecondaryTierManager
    assert OffloadingSpecFactory.get_spec_cls({"spec_name": "KvfsOffloadingSpec"}) is KvfsOffloadingSpec


def test_tier_is_found_by_module_path_without_the_plugin(tmp_path: Path) -> None:
    view = np.zeros((2, CHUNK_BYTES), dtype=np.int8).data
    config = {
        "type": "KvfsSecondaryTierManager",
        "module_path": "kvfs.vllm_adapter.tier",
        "root_dir": str(tmp_path),
    }
    tier = SecondaryTierFactory.create_secondary_tier(config, view, make_spec())
    assert isinstance(tier, KvfsSecondaryTierManager)
    tier.shutdown()


def test_registering_twice_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    plugin.register()
    plugin.register()
    assert SecondaryTierFactory.get_tier_class({"type": "kvfs"}) is KvfsSecondaryTierManager
    assert caplog.text == ""


def test_registering_without_vllm_warns_and_does_not_raise() -> None:
    program = (
        "import sys; sys.modules['vllm'] = None\n"
        "from kvfs.vllm_adapter import plugin\n"
        "plugin.register(); print('alive')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "alive\n"
    assert "kvfs could not register its tier" in done.stderr
    assert "Traceback" not in done.stderr
