"""Tests of reading guidellm's and lm-eval's results: recorded ones, and ones that have changed shape."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import load, plan
from harness.accuracy import lm_eval
from harness.accuracy.lm_eval import Questions
from harness.errors import OutputShapeError, UsageError
from harness.load import LoadError, Workload

TWO_CONVERSATIONS = Workload(
    prefix_tokens=384, prefix_count=32, prompt_tokens=48, output_tokens=8, turns=2, conversations=2
)
VT = Questions("ruler_vt", 896, 3)


def rewritten(source: Path, directory: Path, change: Callable[[Any], None]) -> Path:
    """Return a copy of a JSON file with a change."""
    content = json.loads(source.read_text())
    change(content)
    path = directory / source.name
    path.write_text(json.dumps(content))
    return path


def test_guidellm_result_gives_one_value_a_request_by_turn(data: Path) -> None:
    result = load.parse(data / "guidellm-0.8.1.json", TWO_CONVERSATIONS)
    assert {turn: len(values) for turn, values in result.ttft_ms_by_turn.items()} == {1: 2, 2: 2}
    # A first turn computes its prefix, a second one finds it in host memory.
    assert statistics.median(result.ttft_ms_by_turn[1]) > 2 * statistics.median(result.ttft_ms_by_turn[2])
    duration_s = json.loads((data / "guidellm-0.8.1.json").read_text())["benchmarks"][0]["duration"]
    assert result.requests_per_s == pytest.approx(4 / duration_s)
    assert result.output_tokens_per_s == pytest.approx(4 * 8 / duration_s)
    assert result.total_tokens_per_s == pytest.approx((441 + 498 + 441 + 499) / duration_s)
    assert [round(value) for value in result.request_latency_ms] == [1548, 736, 1748, 1026]
    assert [round(value) for value in result.inter_token_latency_ms] == [60, 60, 84, 93]
    assert result.shared_prefixes == 0


def test_guidellm_result_with_equal_prefixes_counts_them(data: Path, tmp_path: Path) -> None:
    def share(report: Any) -> None:  # noqa: ANN401 - JSON
        requests = report["benchmarks"][0]["requests"]["successful"]
        requests[2]["request_args"] = requests[0]["request_args"]

    path = rewritten(data / "guidellm-0.8.1.json", tmp_path, share)
    assert load.parse(path, TWO_CONVERSATIONS).shared_prefixes == 1


def test_guidellm_digest_tells_other_prompts_apart_and_ignores_their_order(
    data: Path, tmp_path: Path
) -> None:
    def swap(report: Any) -> None:  # noqa: ANN401 - JSON
        report["benchmarks"][0]["requests"]["successful"].reverse()

    def alter(report: Any) -> None:  # noqa: ANN401 - JSON
        report["benchmarks"][0]["requests"]["successful"][0]["request_args"] = '{"body": {"prompt": "other"}}'

    original = load.parse(data / "guidellm-0.8.1.json", TWO_CONVERSATIONS).prompts
    swapped = rewritten(data / "guidellm-0.8.1.json", tmp_path, swap)
    assert load.parse(swapped, TWO_CONVERSATIONS).prompts == original
    altered = rewritten(data / "guidellm-0.8.1.json", tmp_path, alter)
    assert load.parse(altered, TWO_CONVERSATIONS).prompts != original


def test_guidellm_result_without_the_very_last_answer_counts(data: Path, tmp_path: Path) -> None:
    """The tool may end before it has taken the last answer; that must not fail a run of half an hour."""

    def lose(report: Any) -> None:  # noqa: ANN401 - JSON
        report["benchmarks"][0]["requests"]["successful"].pop()

    result = load.parse(rewritten(data / "guidellm-0.8.1.json", tmp_path, lose), TWO_CONVERSATIONS)
    assert [len(values) for values in result.ttft_ms_by_turn.values()] == [2, 1]


def test_guidellm_result_without_a_first_turn_fails(data: Path, tmp_path: Path) -> None:
    def lose(report: Any) -> None:  # noqa: ANN401 - JSON
        report["benchmarks"][0]["requests"]["successful"].pop(0)

    with pytest.raises(LoadError, match="3 of 4 requests succeeded"):
        load.parse(rewritten(data / "guidellm-0.8.1.json", tmp_path, lose), TWO_CONVERSATIONS)


def test_guidellm_result_that_its_time_ended_leaves_out_what_was_under_way(
    data: Path, tmp_path: Path
) -> None:
    def cut(report: Any) -> None:  # noqa: ANN401 - JSON
        requests = report["benchmarks"][0]["requests"]
        requests["incomplete"] = [requests["successful"].pop() for _ in range(2)]

    path = rewritten(data / "guidellm-0.8.1.json", tmp_path, cut)
    timed = dataclasses.replace(TWO_CONVERSATIONS, duration_s=10.0)
    result = load.parse(path, timed)
    assert [len(values) for values in result.ttft_ms_by_turn.values()] == [1, 1]
    assert result.prompts == "what 10 s held"
    # It went on for 10.4 s: with more time than that, nothing but a failure explains what is missing.
    for patient in (TWO_CONVERSATIONS, dataclasses.replace(TWO_CONVERSATIONS, duration_s=60.0)):
        with pytest.raises(LoadError, match="2 of 4 requests succeeded"):
            load.parse(path, patient)


def test_guidellm_result_with_failed_requests_says_why_they_failed(data: Path, tmp_path: Path) -> None:
    def fail(report: Any) -> None:  # noqa: ANN401 - JSON
        requests = report["benchmarks"][0]["requests"]
        requests["errored"] = [requests["successful"].pop() for _ in range(2)]
        for request in requests["errored"]:
            request["info"]["error"] = "connection refused"

    with pytest.raises(LoadError, match=r"2 of 4 requests succeeded .*2 times connection refused"):
        load.parse(rewritten(data / "guidellm-0.8.1.json", tmp_path, fail), TWO_CONVERSATIONS)


@pytest.mark.parametrize(
    "missing",
    [
        "time_to_first_token_ms",
        "info",
        "request_args",
        "output_tokens",
        "total_tokens",
        "request_latency",
        "inter_token_latency_ms",
    ],
)
def test_guidellm_result_of_another_shape_is_refused(data: Path, tmp_path: Path, missing: str) -> None:
    def change(report: Any) -> None:  # noqa: ANN401 - JSON
        del report["benchmarks"][0]["requests"]["successful"][0][missing]

    with pytest.raises(OutputShapeError, match=rf"not a result of guidellm 0.8 .*{missing}.*pinned version"):
        load.parse(rewritten(data / "guidellm-0.8.1.json", tmp_path, change), TWO_CONVERSATIONS)


def test_guidellm_result_that_is_missing_or_cut_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputShapeError, match="FileNotFoundError"):
        load.parse(tmp_path / "missing.json", TWO_CONVERSATIONS)
    cut = tmp_path / "cut.json"
    cut.write_text((data / "guidellm-0.8.1.json").read_text()[:1000])
    with pytest.raises(OutputShapeError, match="JSONDecodeError"):
        load.parse(cut, TWO_CONVERSATIONS)


def test_guidellm_is_told_everything_that_makes_a_run_repeatable() -> None:
    argv = load.command_line(
        "http://127.0.0.1:1", Path("model"), TWO_CONVERSATIONS, 4, 1889, Path("result.json")
    )
    options = dict(zip(argv[1:-1:2], argv[2::2], strict=True))
    assert options["--constraint"] == "kind=max_requests,count=4"
    timed = dataclasses.replace(TWO_CONVERSATIONS, duration_s=700.0)
    assert "kind=max_duration,seconds=700.0" in load.command_line("", Path(), timed, 4, 1, Path())
    assert options["--seed"] == "kind=static,value=1889"
    assert options["--profile"] == "kind=concurrent,streams=4"
    assert options["--data-loader"].startswith("kind=pytorch,samples=2,")
    assert json.loads(options["--backend"])["extras"] == {"body": {"temperature": 0}}
    assert json.loads(options["--data"])["prefix_buckets"][0]["prefix_count"] == 32


def test_lm_eval_samples_give_one_score_a_document_in_their_order(data: Path, tmp_path: Path) -> None:
    result = lm_eval.parse(data / "lm-eval-0.4.13.jsonl", VT)
    assert result.scores == [0.2, 0.2, 0.2]
    lines = (data / "lm-eval-0.4.13.jsonl").read_text().splitlines()
    shuffled = tmp_path / "samples.jsonl"
    shuffled.write_text("\n".join([lines[2], lines[0], lines[1]]))
    assert lm_eval.parse(shuffled, VT) == result


def test_lm_eval_samples_of_another_length_are_refused(data: Path) -> None:
    with pytest.raises(OutputShapeError, match=r"scores of ruler_vt for 1024 tokens \(KeyError: '1024'\)"):
        lm_eval.parse(data / "lm-eval-0.4.13.jsonl", Questions("ruler_vt", 1024, 3))


def test_lm_eval_samples_that_lack_documents_are_refused(data: Path) -> None:
    with pytest.raises(OutputShapeError, match="expected 4 scores"):
        lm_eval.parse(data / "lm-eval-0.4.13.jsonl", Questions("ruler_vt", 896, 4))


def test_lm_eval_samples_of_another_shape_are_refused(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    lines = [json.loads(line) for line in (data / "lm-eval-0.4.13.jsonl").read_text().splitlines()]
    del lines[1]["prompt_hash"]
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(OutputShapeError, match=r"lm-eval 0.4.13 .*prompt_hash"):
        lm_eval.parse(path, VT)


GSM8K = Questions(lm_eval.GSM8K, 4096, 3)


def altered(source: Path, directory: Path, change: Callable[[Any], None]) -> Path:
    """Return a copy of lm-eval's samples with a change to each."""
    samples = [json.loads(line) for line in source.read_text().splitlines()]
    for sample in samples:
        change(sample)
    path = directory / source.name
    path.write_text("\n".join(map(json.dumps, samples)))
    return path


def test_gsm8k_samples_give_two_scores_a_document_and_one_answer(data: Path) -> None:
    path = data / "lm-eval-0.4.13-gsm8k.jsonl"
    result = lm_eval.parse(path, GSM8K)
    assert (result.scores, result.strict_scores) == ([0.0, 1.0, 0.0], [0.0, 0.0, 0.0])
    assert [answer[:6] for answer in result.answers] == [" word0"] * 3
    assert len(set(result.prompts)) == 3
    assert [prompt[-24:] for prompt in lm_eval.read_prompts(path)] == [
        f"Question: test {number}?\nAnswer:"[-24:] for number in range(3)
    ]
    part = result.part(1, 1)
    assert (part.scores, part.strict_scores, len(part.answers)) == ([1.0], [0.0], 1)


def test_samples_scored_in_another_way_are_refused(data: Path, tmp_path: Path) -> None:
    def rename(sample: Any) -> None:  # noqa: ANN401 - JSON
        sample["filter"] = sample["filter"].replace("strict-match", "strictest")

    path = altered(data / "lm-eval-0.4.13-gsm8k.jsonl", tmp_path, rename)
    with pytest.raises(OutputShapeError, match="is scored by flexible-extract, strictest, expected flexible"):
        lm_eval.parse(path, GSM8K)


def test_samples_with_more_than_one_answer_are_refused(data: Path, tmp_path: Path) -> None:
    def answer_twice(sample: Any) -> None:  # noqa: ANN401 - JSON
        sample["resps"][0].append("another")

    path = altered(data / "lm-eval-0.4.13-gsm8k.jsonl", tmp_path, answer_twice)
    with pytest.raises(OutputShapeError, match="one answer a document was asked for"):
        lm_eval.parse(path, GSM8K)


@pytest.mark.parametrize("arguments", ["a prompt", [], [["one", {}], ["two", {}]], {"gen_args_0": "one"}])
def test_samples_with_prompts_of_another_shape_are_refused(
    data: Path, tmp_path: Path, arguments: object
) -> None:
    path = altered(
        data / "lm-eval-0.4.13-gsm8k.jsonl", tmp_path, lambda sample: sample.update(arguments=arguments)
    )
    with pytest.raises(OutputShapeError, match=r"does not hold prompts as lm-eval 0.4.13 .*pinned version"):
        lm_eval.read_prompts(path)


def test_tasks_are_parsed_and_unknown_ones_named() -> None:
    assert lm_eval.parse_tasks("ruler_vt, niah_single_1", plan.TASKS) == ["ruler_vt", "niah_single_1"]
    assert lm_eval.parse_tasks("", plan.TASKS) == []
    with pytest.raises(UsageError, match=r"unknown task 'gsm8k'; choose from niah_single_1,ruler_vt"):
        lm_eval.parse_tasks("gsm8k", plan.TASKS)
