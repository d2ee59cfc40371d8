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
TASKS: Final = ("niah_single_1", "ruler_vt")
# How many questions are under way at a time.
CONCURRENCY: Final = 4
_ANSWER_TOKENS: Final = 64


@dataclass(frozen=True)
class Questions:
    """The first documents of a task.

    Attributes:
        task: One of `TASKS`.
        sequence_tokens: Length of a document.
        documents: How many of them.
        first: The number of the first.
    """

    task: str
    sequence_tokens: int
    documents: int
    first: int = 0


@dataclass(frozen=True)
class AccuracyResult:
    """The scores of one task.

    Attributes:
        scores: One a document, in the documents' order.
        prompts: A digest of each question.
    """

    scores: Sequence[float]
    prompts: Sequence[str]

    @property
    def documents(self) -> str:
        """A digest of the questions: equal ones can be compared document by document."""
        return hashlib.sha256("\0".join(self.prompts).encode()).hexdigest()[:12]

    def part(self, first: int, count: int) -> "AccuracyResult":
        """Return the result of some of the documents."""
        return AccuracyResult(self.scores[first : first + count], self.prompts[first : first + count])


def parse_tasks(text: str) -> list[str]:
    """Return the tasks of a comma-separated list; an empty one asks for none.

    Raises:
        UsageError: An unknown task.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in TASKS:
            raise UsageError(f"--tasks {text!r}: unknown task {name!r}; choose from {','.join(TASKS)}")
    return names


def environment(directory: Path) -> dict[str, str]:
    """Return what lm-eval's process needs in its environment; makes a folder in `directory`.

    RULER looks for a sentence splitter that these tasks do not use, and asks the network for it when it is
    missing. An empty folder of its name is enough.
    """
    nltk_data = directory / "nltk_data"
    (nltk_data / "tokenizers" / "punkt_tab").mkdir(parents=True, exist_ok=True)
    return {"NLTK_DATA": str(nltk_data), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


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
            "max_length": questions.sequence_tokens + 2 * _ANSWER_TOKENS,
        },
        "gen_kwargs": {"temperature": 0.0, "max_gen_toks": _ANSWER_TOKENS},
    }
    tool.run(request, timeout_s)
    return parse(output, questions.sequence_tokens, questions.documents)


def parse(path: Path, sequence_tokens: int, documents: int) -> AccuracyResult:
    """Read the samples that lm-eval logs for one task.

    Raises:
        OutputShapeError: The file is not as lm-eval 0.4.13 writes it, or lacks documents.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        samples = [cast("dict[str, Any]", json.loads(line)) for line in lines]
        samples.sort(key=lambda sample: int(sample["doc_id"]))
        scores = [float(sample[str(sequence_tokens)]) for sample in samples]
        prompts = [str(sample["prompt_hash"]) for sample in samples]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputShapeError(
            f"{path} does not hold samples of lm-eval 0.4.13 with scores for {sequence_tokens} tokens "
            f"({type(error).__name__}: {error}); install the pinned version, or adapt harness/accuracy.py to "
            "the new one"
        ) from error
    if len(scores) != documents or min(scores) < 0:
        raise OutputShapeError(
            f"{path}: expected {documents} scores from 0 on, got {len(scores)}: {scores}; "
            "not all documents were asked"
        )
    return AccuracyResult(scores, prompts)


def _documents(tokenizer: Path, questions: Questions) -> dict[str, object]:
    return {
        "task": questions.task,
        "sequence_tokens": questions.sequence_tokens,
        "tokenizer": str(tokenizer),
    }
