"""Say how likely the negative control is to fail: which documents does damage to some of the chunks hit?

Documents share chunks where they begin alike, so no formula is used: chunks are drawn as the control draws
them, many times, and the documents that one of them belongs to are counted.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from harness.accuracy import comparison
from harness.accuracy.comparison import Comparison, Limits
from harness.verdicts import REGRESSION

_DRAWS: Final = 10_000
_SEED: Final = 57912


@dataclass(frozen=True)
class Document:
    """A document as the tier sees it.

    Attributes:
        chunks: What identifies each of its whole chunks, in order.
        score: Of its answer without a tier.
        graded: Whether that may lie between 0 and 1.
    """

    chunks: Sequence[str]
    score: float
    graded: bool

    @property
    def is_right(self) -> bool:
        """Whether damage turns a right answer into a wrong one."""
        return not self.graded and self.score == 1.0


@dataclass(frozen=True)
class Power:
    """What damage to some of the chunks does to the documents.

    Attributes:
        documents: How many.
        chunks: Different ones that they have.
        damaged: How many are damaged.
        hit: How many documents have a damaged one: the bounds of 98 in 100 draws.
        needed_differing: Of all documents, how many other answers fail the gate; 0 where no number does.
        needed_worse: Of those that are right, how many wrong answers fail it; 0 where no number does.
        probability: Of the gate's failing.
    """

    documents: int
    chunks: int
    damaged: int
    hit: tuple[int, int]
    needed_differing: int
    needed_worse: int
    probability: float

    def sentence(self) -> str:
        """Return the calculation."""
        needs = [
            f"{count} {what}"
            for count, what in (
                (self.needed_differing, "other answers"),
                (self.needed_worse, "wrong ones among those that were right"),
            )
            if count
        ]
        return (
            f"Power: {self.documents} documents have {self.chunks} different chunks; damage to "
            f"{self.damaged} of them hits {self.hit[0]} to {self.hit[1]} documents in 98 of 100 draws. If "
            "each of those answers another text, and wrong, the gate fails with probability "
            f"{self.probability:.4f} (it takes {' or '.join(needs) or 'more documents than there are'})."
        )


def documents(
    prompts: Sequence[str], scores: Sequence[float], *, graded: bool, tokenizer: Path, tokens_per_chunk: int
) -> list[Document]:
    """Return the documents with their chunks.

    Args:
        prompts: The texts, as the server is asked.
        scores: Theirs, without a tier.
        graded: Whether a score may lie between 0 and 1.
        tokenizer: Directory of the model's tokenizer.
        tokens_per_chunk: What a chunk holds.
    """
    # Half a second to import, which nobody pays who is told of a mistake.
    from tokenizers import Tokenizer  # noqa: PLC0415

    encoder = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    found = []
    for prompt, score in zip(prompts, scores, strict=True):
        ids = np.asarray(encoder.encode(prompt).ids, dtype=np.int64)
        digest = hashlib.sha256()
        chunks = []
        # The last token is always computed, so that a chunk that ends with it is never read.
        for start in range(0, len(ids) - tokens_per_chunk, tokens_per_chunk):
            digest.update(ids[start : start + tokens_per_chunk].tobytes())
            chunks.append(digest.hexdigest())
        found.append(Document(chunks, score, graded))
    return found


def calculate(asked: Sequence[Document], limits: Limits) -> Power:
    """Return how likely the gate is to fail when some of the chunks are damaged.

    Graded scores are left out: what they add is not counted on.
    """
    names = sorted({name for document in asked for name in document.chunks})
    belongs = np.array([[name in document.chunks for name in names] for document in asked])
    damaged = min(len(names), max(1, round(limits.damaged_share * len(names))))
    generator = np.random.default_rng(_SEED)
    # The chunks with the smallest of random numbers are a draw without replacement.
    order = generator.random((_DRAWS, len(names))).argpartition(damaged - 1, axis=1)[:, :damaged]
    drawn = np.zeros((_DRAWS, len(names)), dtype=np.int64)
    np.put_along_axis(drawn, order, 1, axis=1)
    is_hit = drawn @ belongs.T.astype(np.int64) > 0
    hits = is_hit.sum(axis=1)
    right = np.array([document.is_right for document in asked])
    # The right ones first, so that they are what gets worse.
    before = sorted((document.score for document in asked if not document.graded), reverse=True)
    differing = _fewest(
        len(asked),
        lambda count: comparison.answers("", [0.0] * count + [1.0] * (len(asked) - count), limits),
    )
    worse = _fewest(
        int(right.sum()),
        lambda count: comparison.right_or_wrong("", before, [0.0] * count + before[count:], limits),
    )
    fails = np.zeros(_DRAWS, dtype=bool)
    if differing:
        fails |= hits >= differing
    if worse:
        fails |= is_hit[:, right].sum(axis=1) >= worse
    low, high = np.quantile(hits, [0.01, 0.99])
    return Power(
        len(asked), len(names), damaged, (int(low), int(high)), differing, worse, float(fails.mean())
    )


def _fewest(most: int, compare: Callable[[int], Comparison]) -> int:
    """Return the smallest number that is a REGRESSION, 0 where there is none."""
    return next((count for count in range(1, most + 1) if compare(count).verdict == REGRESSION), 0)
