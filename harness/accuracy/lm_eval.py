"""Ask a server lm-eval's questions and read the score of every document."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from harness.errors import OutputShapeError, UsageError
from harness.tools import Tool

# RULER tasks that make their own documents and need no hub.
RULER: Final = ("niah_single_1", "ruler_vt", "ruler_cwe", "ruler_fwe")
# Its documents come from a hub, or from a local copy of it.
GSM8K: Final = "gsm8k"
# How many questions are under way at a time.
CONCURRENCY: Final = 4
_ANSWER_TOKENS: Final = 64
# As those who report it ask it.
_GSM8K_EXAMPLES: Final = 25
# RULER's own template is the input alone.
_NUMBERED: Final = "Document {{index}}.\n{{input}}"
# What lm-eval calls the ways to score a task, the one that counts most first.
_ONE_FILTER: Final = ("none",)
_FILTERS: Final = {GSM8K: ("flexible-extract", "strict-match")}


@dataclass(frozen=True)
class Questions:
    """The first documents of a task.

    Attributes:
        task: One of `RULER`, or `GSM8K`.
        sequence_tokens: Length of a document, the most that one may have where the task does not make them.
        documents: How many of them.
        first: The number of the first.
        answer_tokens: After which an answer is cut.
        data_dir: Local copy of the task's data; "" asks the hub.
        numbered: Whether each of RULER's documents begins with its number. No two share a chunk then; without
            it those of `niah_single_1` do, up to where the needle lies.
    """

    task: str
    sequence_tokens: int
    documents: int
    first: int = 0
    answer_tokens: int = _ANSWER_TOKENS
    data_dir: str = ""
    numbered: bool = False

    @property
    def metric(self) -> str:
        """What lm-eval calls the score in a sample."""
        return "exact_match" if self.task == GSM8K else str(self.sequence_tokens)

    @property
    def max_tokens(self) -> int:
        """The longest prompt with its answer; some of RULER's documents are longer than asked for."""
        return self.sequence_tokens + 2 * self.answer_tokens


@dataclass(frozen=True)
class AccuracyResult:
    """The answers to one task.

    Attributes:
        scores: One a document, in the documents' order.
        prompts: A digest of each question.
        answers: What the model said.
        strict_scores: By the stricter of two ways to score, where the task has two.
    """

    scores: Sequence[float]
    prompts: Sequence[str]
    answers: Sequence[str]
    strict_scores: Sequence[float] = ()

    @property
    def documents(self) -> str:
        """A digest of the questions: equal ones can be compared document by document."""
        return hashlib.sha256("\0".join(self.prompts).encode()).hexdigest()[:12]

    def part(self, first: int, count: int) -> "AccuracyResult":
        """Return the result of some of the documents."""
        some = slice(first, first + count)
        return AccuracyResult(
            self.scores[some], self.prompts[some], self.answers[some], self.strict_scores[some]
        )


def parse_tasks(text: str, known: Sequence[str]) -> list[str]:
    """Return the tasks of a comma-separated list; an empty one asks for none.

    Raises:
        UsageError: An unknown task.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UsageError(f"--tasks {text!r}: unknown task {name!r}; choose from {','.join(known)}")
    return names


def environment(directory: Path, *, hub: bool = False) -> dict[str, str]:
    """Return what lm-eval's process needs in its environment; makes a folder in `directory`.

    RULER looks for a sentence splitter that these tasks do not use, and asks the network for it when it is
    missing. An empty folder of its name is enough.

    Args:
        directory: Of the tool.
        hub: Whether a hub may be asked for a task's documents.
    """
    nltk_data = directory / "nltk_data"
    (nltk_data / "tokenizers" / "punkt_tab").mkdir(parents=True, exist_ok=True)
    offline = str(int(not hub))
    return {"NLTK_DATA": str(nltk_data), "HF_HUB_OFFLINE": offline, "HF_DATASETS_OFFLINE": offline}


def prepare(tool: Tool, tokenizer: Path, questions: Questions) -> None:
    """Have a task's documents made in the background, before somebody waits for them.

    Raises:
        ToolError: lm-eval has ended.
    """
    tool.submit(_documents(tokenizer, questions))


def run(
    tool: Tool,
    base_url: str,
    model_name: str,
    tokenizer: Path,
    questions: Questions,
    output: Path,
    timeout_s: float = 1200.0,
) -> AccuracyResult:
    """Ask a server.

    Args:
        tool: lm-eval.
        base_url: The server's address.
        model_name: As the server calls the model.
        tokenizer: Directory of the model's tokenizer.
        questions: What to ask.
        output: The samples, as lm-eval logs them, go here.
        timeout_s: After which the run has failed.

    Raises:
        ToolError: lm-eval failed.
        OutputShapeError: Its samples are not as its pinned version writes them.
    """
    request = {
        **_documents(tokenizer, questions),
        "documents": list(range(questions.first, questions.first + questions.documents)),
        "samples_path": str(output),
        "model_args": {
            "model": model_name,
            "base_url": f"{base_url}/v1/completions",
            "tokenizer": str(tokenizer),
            "tokenized_requests": False,
            "num_concurrent": CONCURRENCY,
            "max_length": questions.max_tokens,
        },
        "gen_kwargs": {"temperature": 0.0, "max_gen_toks": questions.answer_tokens},
    }
    tool.run(request, timeout_s)
    return parse(output, questions)


def parse(path: Path, questions: Questions) -> AccuracyResult:
    """Read the samples that lm-eval logs for one task: one a document, or one a document and way to score.

    Raises:
        OutputShapeError: The file is not as lm-eval 0.4.13 writes it, or lacks documents.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        samples = [cast("dict[str, Any]", json.loads(line)) for line in lines]
        samples.sort(key=lambda sample: int(sample["doc_id"]))
        scores: dict[str, list[float]] = {}
        for sample in samples:
            scores.setdefault(str(sample["filter"]), []).append(float(sample[questions.metric]))
        once = [sample for sample in samples if sample["filter"] == samples[0]["filter"]]
        prompts = [str(sample["prompt_hash"]) for sample in once]
        answers = [_only_text(sample["resps"]) for sample in once]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputShapeError(
            f"{path} does not hold samples of lm-eval 0.4.13 with scores of {questions.task} for "
            f"{questions.sequence_tokens} tokens ({type(error).__name__}: {error}); install the pinned "
            "version, or adapt harness/accuracy/lm_eval.py to the new one"
        ) from error
    expected = _FILTERS.get(questions.task, _ONE_FILTER)
    if sorted(scores) != sorted(expected):
        raise OutputShapeError(
            f"{path}: {questions.task} is scored by {', '.join(sorted(scores)) or 'nothing'}, expected "
            f"{', '.join(expected)} as in lm-eval 0.4.13; adapt harness/accuracy/lm_eval.py"
        )
    for found in scores.values():
        if len(found) != questions.documents or min(found) < 0:
            raise OutputShapeError(
                f"{path}: expected {questions.documents} scores from 0 on, got {len(found)}: {found}; "
                "not all documents were asked"
            )
    main, *strict = (scores[name] for name in expected)
    return AccuracyResult(main, prompts, answers, *strict)


def read_prompts(path: Path) -> list[str]:
    """Return the prompts of the samples that lm-eval logs for one task, in the documents' order.

    Raises:
        OutputShapeError: The file is not as lm-eval 0.4.13 writes it.
    """
    try:
        samples = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        prompts = {int(sample["doc_id"]): _only_prompt(sample["arguments"]) for sample in samples}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputShapeError(
            f"{path} does not hold prompts as lm-eval 0.4.13 writes them ({type(error).__name__}: {error}); "
            "install the pinned version, or adapt harness/accuracy/lm_eval.py to the new one"
        ) from error
    return [prompts[number] for number in sorted(prompts)]


def _only_prompt(arguments: object) -> str:
    """Return the prompt of the one request that a document makes.

    Raises:
        ValueError: There are more, or it is no text.
    """
    match arguments:
        case [[str(prompt), *_]]:
            return prompt
        case _:
            raise ValueError(f"one request a document was expected, got {str(arguments)[:100]!r}")


def _only_text(responses: object) -> str:
    """Return the one answer to the one question of a document.

    Raises:
        ValueError: There are more, or it is no text.
    """
    match responses:
        case [[str(text)]]:
            return text
        case _:
            raise ValueError(f"one answer a document was asked for, got {str(responses)[:100]!r}")


def _documents(tokenizer: Path, questions: Questions) -> dict[str, object]:
    is_gsm8k = questions.task == GSM8K
    return {
        "task": questions.task,
        "catalogue": "gsm8k" if is_gsm8k else "ruler",
        "examples": _GSM8K_EXAMPLES if is_gsm8k else 0,
        "data_dir": questions.data_dir,
        "text": _NUMBERED if questions.numbered else "",
        "sequence_tokens": questions.sequence_tokens,
        "tokenizer": str(tokenizer),
    }
