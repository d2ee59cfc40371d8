"""Test lm-eval itself with gsm8k from a local copy, asked of a server that answers words."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import completion_server
import pytest

from harness.accuracy import lm_eval
from harness.accuracy.lm_eval import Questions
from harness.tools import Tool, ToolError

ANSWER_TOKENS = 20


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of words, which lm-eval loads to count with."""
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415 - seconds to import
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - seconds to import

    words = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))  # noqa: S106  no password
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    directory = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="?").save_pretrained(directory)  # noqa: S106
    return directory


@pytest.fixture(scope="module")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of the form of openai/gsm8k. The server's last word is the answer to the second question."""
    directory = tmp_path_factory.mktemp("gsm8k")
    files = [{"split": split, "path": f"main/{split}-*"} for split in ("train", "test")]
    config = json.dumps([{"config_name": "main", "data_files": files}])
    (directory / "README.md").write_text(f"---\nconfigs: {config}\n---\n")
    (directory / "main").mkdir()
    for split, count in (("train", 30), ("test", 3)):
        lines = []
        for number in range(count):
            right = ANSWER_TOKENS - 1 if (split, number) == ("test", 1) else 1000 + number
            lines.append({"question": f"{split} {number}?", "answer": f"It is {right}.\n#### {right}"})
        path = directory / "main" / f"{split}-00000-of-00001.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)))
    return directory


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    directory = tmp_path_factory.mktemp("lm-eval")
    environment = {**lm_eval.environment(directory), "HF_HOME": str(directory)}
    with Tool("lm-eval", directory, environment) as loaded:
        yield loaded


@pytest.mark.slow
def test_gsm8k_from_a_local_copy_is_asked_with_25_examples_and_scored_in_two_ways(
    tool: Tool, tokenizer: Path, data_set: Path, tmp_path: Path
) -> None:
    asked = Questions(lm_eval.GSM8K, 4096, documents=3, answer_tokens=ANSWER_TOKENS, data_dir=str(data_set))
    output = tmp_path / "samples.jsonl"
    with completion_server.serving() as address:
        result = lm_eval.run(tool, address, "stand-in", tokenizer, asked, output)
        again = lm_eval.run(tool, address, "stand-in", tokenizer, asked, tmp_path / "again.jsonl")
    # Examples are drawn at random, and yet every server is asked the same.
    assert again == result
    # The last number counts, and strictly only one after "####".
    assert result.scores == [0.0, 1.0, 0.0]
    assert result.strict_scores == [0.0, 0.0, 0.0]
    assert len(result.answers) == 3
    assert result.answers[0].endswith(f" word{ANSWER_TOKENS - 1}")
    prompts = lm_eval.read_prompts(output)
    assert [prompt.count("Question: train ") for prompt in prompts] == [25] * 3
    assert all(prompt.endswith(f"Question: test {number}?\nAnswer:") for number, prompt in enumerate(prompts))


@pytest.mark.slow
def test_numbered_documents_begin_with_their_numbers_and_score_as_before(
    tool: Tool, tokenizer: Path, tmp_path: Path
) -> None:
    output = tmp_path / "samples.jsonl"
    asked = Questions("niah_single_1", 512, documents=2, answer_tokens=4)
    with completion_server.serving() as address:
        plain = lm_eval.run(tool, address, "stand-in", tokenizer, asked, output)
        before = lm_eval.read_prompts(output)
        numbered = dataclasses.replace(asked, numbered=True)
        result = lm_eval.run(tool, address, "stand-in", tokenizer, numbered, output)
    assert lm_eval.read_prompts(output) == [f"Document {n}.\n{prompt}" for n, prompt in enumerate(before)]
    assert result.documents != plain.documents
    assert (result.scores, result.answers) == (plain.scores, plain.answers)


@pytest.mark.slow
def test_documents_too_short_to_have_an_answer_are_refused_before_they_are_asked(
    tool: Tool, tokenizer: Path
) -> None:
    lm_eval.prepare(tool, tokenizer, Questions("ruler_cwe", 256, documents=2))
    with pytest.raises(ToolError, match="ruler_cwe makes documents without an answer for 256 tokens; ask"):
        tool.wait(60)
    lm_eval.prepare(tool, tokenizer, Questions("ruler_cwe", 896, documents=2))
    tool.wait(60)


@pytest.mark.slow
def test_gsm8k_without_its_data_fails_and_lm_eval_goes_on(
    tool: Tool, tokenizer: Path, data_set: Path, tmp_path: Path
) -> None:
    for directory in (tmp_path / "nothing", data_set):
        asked = Questions(lm_eval.GSM8K, 4096, documents=3, data_dir=str(directory))
        lm_eval.prepare(tool, tokenizer, asked)
        if directory == data_set:
            tool.wait(60)
            continue
        with pytest.raises(ToolError, match="lm-eval failed: FileNotFoundError"):
            tool.wait(60)
