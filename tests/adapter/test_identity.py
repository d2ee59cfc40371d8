"""What kvfs learns of vLLM's real configuration, and which change of it is another namespace or a refusal."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_model import make_config, make_connector, write_checkpoint
from vllm.v1.kv_offload.config import OffloadingCacheConfig, OffloadingGroupConfig, OffloadingModelConfig
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec
from vllm_parts import Tier, make_spec

from kvfs.paths import Namespace
from kvfs.vllm_adapter import traits, translate

Start = Callable[..., Namespace]

HUB = """
import os, pickle, sys
from pathlib import Path

import vllm_parts
from tiny_model import CONFIG
from vllm.config import ModelConfig
import json

from kvfs.vllm_adapter import weights

repository = Path(os.environ["HF_HOME"], "hub", "models--org--tiny")
(repository / "refs").mkdir(parents=True)
for reference, commit in {"main": "a" * 40, "v2": "b" * 40}.items():
    (repository / "refs" / reference).write_text(commit)
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(CONFIG))
for revision in (None, "main", "v2", "b" * 40):
    config = ModelConfig("org/tiny", revision=revision, skip_tokenizer_init=True)
    # As it comes into the process of the engine core.
    config = pickle.loads(pickle.dumps(config))
    print(weights.of_model(config, "auto"))
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint")


@pytest.fixture
def start(checkpoint: Path, tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts vLLM's connector with a kvfs tier and returns the tier's namespace."""
    connectors = []

    def start_one(
        *, change: Callable[[Any], None] = lambda _: None, cache: dict[str, Any] | None = None, **options: Any
    ) -> Namespace:
        config = make_config(checkpoint, tmp_path / "root", **options)
        change(config)
        connector = make_connector(config, **(cache or {}))
        connectors.append(connector)
        (tier,) = connector.scheduler.manager.secondary_tiers
        return tier._engine.namespace

    yield start_one
    for connector in connectors:
        connector.shutdown()


def test_connector_of_vllm_lets_the_tier_know_all_traits(start: Start) -> None:
    namespace = start()
    weights, platform = namespace.traits["weights"], namespace.traits["platform"]
    assert weights.startswith("files:")
    assert platform.startswith("cpu-")
    assert dict(namespace.traits) == {
        "kv_cache_layout": "LBHNC",
        "weights": weights,
        "model_dtype": "bfloat16",
        "quantization": "none",
        "hf_overrides": "none",
        "platform": platform,
    }
    chunk_size_bytes = 2 * 2 * 32 * 32 * 2 * 2
    assert json.loads(Path(namespace.identity_path).read_bytes()) == {
        "layout": "files",
        "layout_version": 1,
        "chunk_size_bytes": chunk_size_bytes,
        **namespace.traits,
    }


def test_two_identical_configurations_share(start: Start) -> None:
    first, second = start(), start()
    assert first.base_path == second.base_path
    assert first.traits == second.traits


def quantise(config: Any) -> None:
    config.model_config.quantization = "fp8"


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        pytest.param({"layout": "BLHNC"}, "kv_cache_layout: 'LBHNC' there, 'BLHNC' here", id="layout"),
        pytest.param({"load_format": "dummy"}, "weights: 'files:.*' there, 'dummy' here", id="dummy-weights"),
        pytest.param(
            {"hf_overrides": {"rms_norm_eps": 0.5}},
            "hf_overrides: 'none' there, '[0-9a-f]{40}' here",
            id="config",
        ),
        pytest.param({"change": quantise}, "quantization: 'none' there, 'fp8' here", id="quantization"),
        pytest.param(
            {"cache": {"head_size": 64}}, "chunk_size_bytes: 16384 there, 32768 here", id="chunk-size"
        ),
    ],
)
def test_what_vllms_digest_leaves_out_is_refused_with_the_field(
    start: Start, options: dict[str, Any], difference: str
) -> None:
    start()
    with pytest.raises(ValueError, match=f"other chunks .{difference}"):
        start(**options)


def test_other_weights_under_the_same_path_are_refused(start: Start, checkpoint: Path) -> None:
    start()
    write_checkpoint(checkpoint, seed=2)
    with pytest.raises(
        ValueError, match=r"other chunks .weights: 'files:\w+' there, 'files:\w+' here\); use an"
    ):
        start()


def test_model_dtype_that_the_caches_dtype_hides_is_refused(start: Start) -> None:
    start(kv_cache_dtype="bfloat16")
    with pytest.raises(ValueError, match="model_dtype: 'bfloat16' there, 'float32' here"):
        start(kv_cache_dtype="bfloat16", dtype="float32")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"dtype": "float32"}, id="dtype"),
        pytest.param({"extra": {"block_size": 64}}, id="tokens-per-chunk"),
        pytest.param({"cache": {"layers": ("layer.0", "layer.1", "layer.2")}}, id="layers"),
    ],
)
def test_what_vllms_digest_has_is_another_namespace(start: Start, options: dict[str, Any]) -> None:
    assert start().config_dir != start(**options).config_dir


def other_model(config: Any) -> dict[str, Any]:
    return {"model": OffloadingModelConfig(name="org/other", dtype="bfloat16")}


def other_dtype(config: Any) -> dict[str, Any]:
    return {"model": OffloadingModelConfig(name="org/model", dtype="fp8_e4m3")}


def other_hash(config: Any) -> dict[str, Any]:
    return {"cache": OffloadingCacheConfig(tokens_per_hash=8, blocks_per_chunk=1)}


def other_chunk(config: Any) -> dict[str, Any]:
    return {"cache": OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=2)}


def more_groups(config: Any) -> dict[str, Any]:
    extra = OffloadingGroupConfig(tokens_per_block=16, layer_names=("layer.1",), group_id=1)
    return {"groups": (*config.groups, extra)}


def other_group(config: Any) -> dict[str, Any]:
    return {"groups": (dataclasses.replace(config.groups[0], tokens_per_block=32),)}


def more_ranks(config: Any) -> dict[str, Any]:
    parallel = dataclasses.replace(config.parallel, tp_size=2, world_size=2, is_parallelism_agnostic=False)
    return {"parallel": parallel}


@pytest.mark.parametrize(
    "change", [other_model, other_dtype, other_hash, other_chunk, more_groups, other_group, more_ranks]
)
def test_field_of_the_specs_configuration_is_another_namespace(
    tmp_path: Path, change: Callable[[Any], dict[str, Any]]
) -> None:
    spec = make_spec()
    changed = TieringOffloadingSpec(dataclasses.replace(spec.config, **change(spec.config)))
    one, same, other = (translate.namespace_of(str(tmp_path), each) for each in (spec, make_spec(), changed))
    assert one.config_dir == same.config_dir != other.config_dir


def test_canonical_layout_is_named_by_vllm_alone(tmp_path: Path) -> None:
    config = dataclasses.replace(make_spec().config, kv_cache_layout="LBHNC", canonical_layout=True)
    assert "kv_cache_layout" not in traits.traits_of(TieringOffloadingSpec(config))


@pytest.mark.parametrize(
    ("length", "factors"), [(64, "longrope-short"), (65, "longrope-long"), (256, "longrope-long")]
)
def test_longrope_factors_follow_the_longest_context(
    checkpoint: Path, tmp_path: Path, length: int, factors: str
) -> None:
    config = make_config(checkpoint, tmp_path, max_model_len=length)
    assert traits._rotary_embedding(config) is None
    config.model_config.hf_text_config.rope_parameters = {
        "rope_type": "longrope",
        "original_max_position_embeddings": 64,
    }
    assert traits._rotary_embedding(config) == factors


def test_draft_model_has_a_fingerprint_of_its_own(checkpoint: Path, tmp_path: Path) -> None:
    draft = write_checkpoint(tmp_path / "draft", seed=3)
    config = make_config(checkpoint, tmp_path)
    assert traits._draft_weights(config) is None
    speculative = {"model": str(draft), "method": "draft_model", "num_speculative_tokens": 1}
    config = make_config(checkpoint, tmp_path, speculative_config=speculative)
    found = traits._draft_weights(config)
    assert found is not None
    assert found.startswith("files:")
    assert found != traits._weights(config)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_model_of_the_hub_is_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    support = Path(__file__).parents[1] / "support"
    script = f"import sys; sys.path.append({str(support)!r})\n{HUB}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    commits = [f"commit:{digit * 40}" for digit in "aabb"]
    assert done.stdout.split()[-4:] == commits


def test_spec_without_vllms_configuration_takes_the_weights_of_a_local_model(
    checkpoint: Path, tmp_path: Path
) -> None:
    spec = make_spec(model=str(checkpoint))
    assert traits.find_vllm_config(spec) is None
    assert traits.traits_of(spec)["weights"].startswith("files:")


def test_configuration_of_another_engine_among_the_callers_is_not_taken(
    checkpoint: Path, tmp_path: Path
) -> None:
    vllm_config = make_config(checkpoint, tmp_path)
    other = make_config(checkpoint, tmp_path)
    spec = make_spec()
    spec.extra_config = other.kv_transfer_config.kv_connector_extra_config
    assert traits.find_vllm_config(spec) is None
    spec.extra_config = vllm_config.kv_transfer_config.kv_connector_extra_config
    assert traits.find_vllm_config(spec) is vllm_config


@pytest.mark.parametrize("model", ["org/model", "empty"])
def test_weights_that_cannot_be_told_are_one_warning_and_unknown(
    make_tier: Callable[..., Tier], tmp_path: Path, caplog: pytest.LogCaptureFixture, model: str
) -> None:
    (tmp_path / "empty").mkdir()
    name = str(tmp_path / model) if model == "empty" else model
    tier = make_tier(spec_options={"model": name})
    namespace = tier.manager._engine.namespace
    assert "weights" not in namespace.traits
    assert json.loads(Path(namespace.identity_path).read_bytes())["weights"] is None
    (warning,) = [
        record.getMessage() for record in caplog.records if "cannot tell the weights" in record.message
    ]
    assert "is not checked" in warning
