"""Tests of the power calculation: which documents damage hits, and how likely the control fails."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from harness.accuracy import power
from harness.accuracy.comparison import read_limits
from harness.accuracy.power import Document

LIMITS = read_limits()


def apart(documents: int, chunks: int, *, score: float = 1.0, graded: bool = False) -> list[Document]:
    """Return documents of which no two share a chunk."""
    return [
        Document([f"{number}.{chunk}" for chunk in range(chunks)], score, graded)
        for number in range(documents)
    ]


def test_one_chunk_a_document_hits_as_many_documents_as_chunks_are_damaged() -> None:
    found = power.calculate(apart(30, 1), LIMITS)
    assert (found.chunks, found.damaged, found.hit) == (30, 3, (3, 3))
    # Five wrong answers are needed, and there are never more than three.
    assert (found.needed_worse, found.probability) == (5, 0.0)


def test_more_chunks_a_document_make_failure_certain() -> None:
    found = power.calculate(apart(24, 6), LIMITS)
    # 1 - 0.9^6 of 24 documents are hit in the mean.
    assert found.hit[0] <= 24 * (1 - 0.9**6) <= found.hit[1]
    assert found.needed_worse == 5
    assert found.probability > 0.999


def test_a_chunk_that_all_share_hits_all_or_none() -> None:
    shared = [Document(["same"], 1.0, graded=False) for _ in range(24)]
    assert power.calculate(shared, LIMITS).hit == (24, 24)
    mostly = dataclasses.replace(LIMITS, damaged_share=0.05)
    documents = [Document(["same", f"{number}"], 1.0, graded=False) for number in range(24)]
    found = power.calculate(documents, mostly)
    # One chunk of 25: the shared one is it once in 25 times.
    assert found.probability == pytest.approx(1 / 25, abs=0.01)


def test_graded_and_wrong_documents_count_for_their_answers_alone() -> None:
    for documents in (apart(48, 6, graded=True), apart(48, 6, score=0.0)):
        found = power.calculate(documents, LIMITS)
        assert found.needed_worse == 0
        assert found.needed_differing == 15


def test_sentence_says_what_was_calculated() -> None:
    sentence = power.calculate(apart(24, 6), LIMITS).sentence()
    assert "24 documents have 144 different chunks; damage to 14 of them hits " in sentence
    assert "(it takes 9 other answers or 5 wrong ones among those that were right)" in sentence


def test_chunks_are_those_that_vllm_reads(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415 - half a second

    words = Tokenizer(models.WordLevel({str(number): number for number in range(10)}, unk_token="0"))  # noqa: S106  no password
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    prompts = ["1 2 3 4 5", "1 2 3 4", "1 2 9 4 5", "9 2 3 4 5"]
    found = power.documents(prompts, [1.0] * 4, graded=False, tokenizer=tmp_path, tokens_per_chunk=2)
    chunks = [document.chunks for document in found]
    # The chunk that a prompt ends with is not read: its last token is always computed.
    assert [len(names) for names in chunks] == [2, 1, 2, 2]
    assert chunks[0][0] == chunks[1][0] == chunks[2][0]
    # Equal tokens after another beginning are another chunk.
    assert len({names[0] for names in chunks} | {names[1] for names in chunks if len(names) > 1}) == 5
