"""The workload that training is measured on: a Llama-style model on the shipped text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tallystick.engines.tokenizers import train_bpe
from tallystick.formats.data.preparation import prepare
from tallystick.formats.dataset import DatasetCommitment
from tallystick.formats.recipe import Recipe

TEXT = Path(__file__).parents[1] / "examples" / "data" / "python-topics.txt"
VOCABULARY = 1024
SEQUENCE = 128


def training_recipe(batch: int, hidden: int, layers: int) -> Recipe:
    """AdamW with clipping in fp32; `batch` windows of 128 tokens make one step."""
    settings: dict[str, Any] = {
        "data": {"kind": "text"},
        "tokenizer": {"kind": "bpe", "vocabulary": VOCABULARY},
        "model": {
            "architecture": "llama",
            "config": {
                "hidden_size": hidden,
                "intermediate_size": hidden * 11 // 4,
                "num_hidden_layers": layers,
                "num_attention_heads": hidden // 64,
                "num_key_value_heads": hidden // 64,
                "max_position_embeddings": SEQUENCE,
                "tie_word_embeddings": True,
            },
        },
        "optimizer": {"kind": "adamw", "learning_rate": 1e-4, "clip_norm": 1.0},
        "training": {"steps": 1_000_000, "batch": batch, "sequence": SEQUENCE, "seed": 7},
    }
    return Recipe.from_json(settings, "benchmark recipe")


def prepare_text(folder: Path, vocabulary: int = VOCABULARY) -> DatasetCommitment:
    """The shipped text under `folder`, in at most `vocabulary` tokens."""
    return prepare("text", TEXT, folder, tokenization="bpe", vocabulary=vocabulary, train_bpe=train_bpe)
