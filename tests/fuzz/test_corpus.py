"""All seeds and all inputs that once broke something, through every fuzz target, without a fuzzer."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

import kvfs_ext
from harness.fuzz import inputs
from harness.fuzz.engine_targets import ENGINE_TARGETS
from harness.fuzz.python_targets import TARGETS
from kvfs import fallback

IMPLEMENTATIONS = {"extension": kvfs_ext, "fallback": fallback}


def _replays() -> list[object]:
    return [
        pytest.param(name, path, id=f"{name}-{path.name}")
        for name, (kind, _) in TARGETS.items()
        for path in inputs.paths_of(kind)
    ]


def _engine_replays() -> list[object]:
    return [
        pytest.param(kind, path, io, id=f"{io}-{kind}-{path.name}")
        for kind in ENGINE_TARGETS
        for path in inputs.paths_of(kind)
        for io in IMPLEMENTATIONS
    ]


@pytest.mark.parametrize(("name", "path"), _replays())
def test_input_breaks_nothing_in_the_python_code(name: str, path: Path, tmp_path: Path) -> None:
    # A target asserts, and lets through what it must not have raised.
    _, target = TARGETS[name]
    target(path.read_bytes(), tmp_path)


@pytest.mark.parametrize(("kind", "path", "io"), _engine_replays())
def test_input_breaks_no_engine(kind: str, path: Path, io: str, tmp_path: Path) -> None:
    module: types.ModuleType = IMPLEMENTATIONS[io]
    # As above: it asserts what an engine must hold over these bytes.
    ENGINE_TARGETS[kind](path.read_bytes(), tmp_path, module)


def test_every_kind_of_input_has_seeds_and_a_target() -> None:
    kinds = {kind for kind, _ in TARGETS.values()} | set(ENGINE_TARGETS)
    assert kinds == set(inputs.SIZE_MAX_BYTES) == {path.name for path in inputs.CORPUS.iterdir()}
    assert all(len(list(inputs.paths_of(kind))) > 1 for kind in kinds)
    sizes = [path.stat().st_size for kind in kinds for path in inputs.paths_of(kind)]
    assert sum(sizes) < 200_000, "seeds are small"


@pytest.mark.parametrize(("kind", "step"), [("config", 30), ("identity", 200), ("options", 1)])
def test_nesting_up_to_what_python_allows_breaks_nothing(kind: str, step: int, tmp_path: Path) -> None:
    """A value just nested enough to be read raised RecursionError when a message was to quote it."""
    for name, (target_kind, target) in TARGETS.items():
        if target_kind != kind:
            continue
        (tmp_path / name).mkdir()
        for depth in range(880, 1000, step):
            nested = "[" * depth + "]" * depth
            target(_with_value(kind, nested), tmp_path / name)


def _with_value(kind: str, value: str) -> bytes:
    text = {
        "config": '{"model_name": %s}',
        "identity": '{"chunk_size_bytes": 64, "layout": "files", "layout_version": 1, "kv_cache_dtype": %s}',
        "options": '{"root_dir": %s}',
    }[kind]
    return (text % value).encode()
