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

DEEPER_THAN_ANY_PYTHON_READS = 20_000

_NO_CHUNKS = {
    "capital-digits",
    "group-too-large",
    "group-with-zeros",
    "long-key",
    "no-utf-8",
    "short-key",
    "temporary",
    "usual-key",
    "wrong-directory",
}
_BAD_SEALS = {"checksum-longer", "none-required", "tag-empty", "tag-longer", "wrong", "wrong-required"}
# What each target does not take for what it stands for; all other inputs it does. A seed that is refused
# without standing here has rotted: a fuzzer that starts from it gets no further than the refusal.
REFUSED = {
    "identity-content": {"field-twice", "no-numbers"},
    "identity-file": {"field-twice", "no-numbers", "of-a-newer-kvfs"},
    "config-file": {"another-configuration", "cut-short"},
    "options": {"misspelt", "seconds-that-no-float-holds"},
    "scanned-names": _NO_CHUNKS,
    "whole-mark": {"not-whole"},
    "seal": _BAD_SEALS,
}
# Of whole engines, by the kind of their inputs: where the user has no chunk.
WITHOUT_CHUNK = {"names": _NO_CHUNKS, "seal": _BAD_SEALS, "snapshot": set[str](), "space": set[str]()}


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
    # A target asserts more than this, and lets through what it must not have raised.
    _, target = TARGETS[name]
    assert target(path.read_bytes(), tmp_path) == (path.name not in REFUSED[name])


@pytest.mark.parametrize(("kind", "path", "io"), _engine_replays())
def test_input_breaks_no_engine(kind: str, path: Path, io: str, tmp_path: Path) -> None:
    module: types.ModuleType = IMPLEMENTATIONS[io]
    # As above.
    has_chunk = ENGINE_TARGETS[kind](path.read_bytes(), tmp_path, module)
    assert has_chunk == (path.name not in WITHOUT_CHUNK[kind])


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
        taken = False
        for depth in (*range(880, 1000, step), DEEPER_THAN_ANY_PYTHON_READS):
            taken = target(_with_value(kind, "[" * depth + "]" * depth), tmp_path / name)
        assert not taken


def _with_value(kind: str, value: str) -> bytes:
    text = {
        "config": '{"model_name": %s}',
        "identity": '{"chunk_size_bytes": 64, "layout": "files", "layout_version": 1, "kv_cache_dtype": %s}',
        "options": '{"root_dir": %s}',
    }[kind]
    return (text % value).encode()
