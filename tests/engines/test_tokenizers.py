from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tallystick.core.errors import UsageError
from tallystick.engines.tokenizers import train_bpe
from tallystick.formats.data.tokenizer import Tokenizer

TOPICS = Path(__file__).parents[2] / "examples" / "data" / "python-topics.txt"
TRAIN = """
import sys
from tallystick.engines.tokenizers import train_bpe
print(train_bpe(open(sys.argv[1], encoding="utf-8").read(), 600).identity)
"""


@pytest.mark.parametrize("threads", ["1", "2"])
def test_training_does_not_depend_on_process_or_threads(threads: str) -> None:
    environment = os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
    run = subprocess.run([sys.executable, "-c", TRAIN, TOPICS], env=environment, capture_output=True, check=True)
    assert run.stdout.decode().strip() == train_bpe(TOPICS.read_text("utf-8"), 600).identity


def test_a_trained_tokenizer_passes_the_strict_door() -> None:
    tokenizer = train_bpe("the thin thing thought " * 20, 264)
    assert Tokenizer.from_bytes(tokenizer.to_bytes(), "tokenizer") == tokenizer
    assert tokenizer.vocabulary == 264
    assert b" th" in tokenizer.tokens


def test_a_text_with_few_pairs_gives_a_smaller_vocabulary() -> None:
    assert train_bpe("abc", 4096).vocabulary == 256


@pytest.mark.parametrize("vocabulary", [255, (1 << 20) + 1])
def test_a_vocabulary_that_no_format_holds_is_refused(vocabulary: int) -> None:
    with pytest.raises(UsageError, match="not within 256"):
        train_bpe("text", vocabulary)
