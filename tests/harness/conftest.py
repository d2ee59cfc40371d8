"""What the harness's tests share: records made up for a purpose, and where recorded outputs are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Last, so that the installed wheel answers `import kvfs` and the tree only `import harness`.
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

from made_up_run import MadeUpRun  # noqa: E402 - needs ROOT


@pytest.fixture
def run() -> MadeUpRun:
    return MadeUpRun()


@pytest.fixture
def data() -> Path:
    return Path(__file__).with_name("data")


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of bytes: small, made here, and able to say any word."""
    from tokenizers.implementations import ByteLevelBPETokenizer  # noqa: PLC0415 - seconds to import
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    bytes_alone = ByteLevelBPETokenizer()
    bytes_alone.train_from_iterator(["a"], vocab_size=257)
    directory = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=bytes_alone._tokenizer).save_pretrained(directory)
    return directory
