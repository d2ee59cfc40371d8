"""Tests of the user's mistakes with the accuracy gate: one line, status 2, nothing started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.accuracy import __main__ as command_line
from harness.accuracy import session
from harness.errors import EXIT_USAGE, UsageError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--arms", "none"], "name at least one tier beside none, such as kvfs", id="no-tier"),
        pytest.param(["--arms", "mooncake"], "unknown arm 'mooncake'; choose from none,fs,kvfs", id="arm"),
        pytest.param(
            ["--tasks", "mmlu"], "unknown task 'mmlu'; choose from niah_single_1,ruler_vt", id="task"
        ),
        pytest.param(["--tasks", ","], "--tasks ',': no task is named", id="no-task"),
        pytest.param(["--gsm8k-dir", "."], "nothing is read from it without --tasks gsm8k", id="unused-copy"),
        pytest.param(
            ["--tasks", "gsm8k", "--gsm8k-dir", "."], "no folder main in it; name a copy of", id="no-copy"
        ),
        pytest.param(["--model-dir", "/nonexistent"], "no config.json there", id="model"),
    ],
)
def test_wrong_option_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command_line.main, [*arguments, "--out", str(tmp_path / "out")])
    assert result.exit_code == EXIT_USAGE, result.output
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("accuracy: ")
    assert message in line


def test_model_that_takes_too_short_prompts_is_refused_with_what_is_needed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 2048}))
    with pytest.raises(UsageError, match=r"up to 7,680 tokens, .* takes 2,048 \(25 examples of gsm8k"):
        session.require_context(tmp_path, 7680)
    session.require_context(tmp_path, 2048)
