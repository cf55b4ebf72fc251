"""The training runs of the study: two small models, two optimizers, two precisions, some seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tallystick.audits.calibration import Family
from tallystick.transcripts.recipe import Recipe

STEPS = 64
WINDOWS = (1, 8, 32)
CORPUS_FILE = "corpus.txt"
FIRST_LONG_SEED = 100
Model = Literal["llama", "cnn"]
Optimizer = Literal["adamw", "sgd"]
Precision = Literal["fp32", "bf16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
MODELS: dict[Model, dict[str, Any]] = {
    "llama": {
        "architecture": "llama",
        "config": {
            "hidden_size": 96,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            "tie_word_embeddings": True,
        },
    },
    "cnn": {"architecture": "cnn", "config": {"channels": 16}},
}
PARAMETERS: dict[Model, int] = {"llama": 227_808, "cnn": 10_026}
"""The number of weights of these models, on bytes and on digits."""
OPTIMIZERS: dict[Optimizer, dict[str, Any]] = {
    "adamw": {"kind": "adamw", "learning_rate": 2e-3, "weight_decay": 0.01, "clip_norm": 1.0},
    "sgd": {"kind": "sgd", "learning_rate": 5e-2, "momentum": 0.9, "weight_decay": 1e-4, "clip_norm": 1.0},
}


@dataclass(frozen=True)
class Case:
    """One training run of the study."""

    model: Model
    optimizer: Optimizer
    dtype: Precision
    seed: int
    held_out: bool = False
    only_long: bool = False

    @property
    def family(self) -> Family:
        """The family of models for which the run is measured."""
        return "image" if self.model == "cnn" else "language"

    @property
    def parameters(self) -> int:
        """The number of weights of its model."""
        return PARAMETERS[self.model]

    @property
    def name(self) -> str:
        """The name of its run directory."""
        return f"{self.model}-{self.optimizer}-{self.dtype}-{self.seed}"

    def recipe(self) -> Recipe:
        """The recipe: a warm-up from zero, then a cosine; every state is saved."""
        language = self.model == "llama"
        table: dict[str, Any] = {
            "data": {"kind": "text" if language else "digits", "validation": 64},
            "model": MODELS[self.model],
            "optimizer": OPTIMIZERS[self.optimizer],
            "schedule": {"kind": "cosine", "warmup_steps": 10, "final_share": 0.1},
            "training": {
                "steps": STEPS,
                "batch": 8 if language else 32,
                "sequence": 32 if language else 1,
                "dtype": self.dtype,
                "seed": self.seed,
            },
            "record": {"anchor_stride": 1, "loss_decimals": 6},
        }
        return Recipe.from_json(table, self.name)


def cases(seeds: int, long_seeds: int) -> list[Case]:
    """Every model, optimizer and precision with `seeds` seeds to calibrate on, and one more that is held out.

    How much a long segment amplifies rounding depends far more on the segment than on the stack. So `long_seeds` more
    runs are made for their long segments only.
    """
    kinds = [(model, optimizer, dtype) for model in MODELS for optimizer in OPTIMIZERS for dtype in PRECISIONS]
    usual = [Case(*kind, seed, held_out=seed == seeds) for kind in kinds for seed in range(seeds + 1)]
    return usual + [Case(*kind, FIRST_LONG_SEED + seed, only_long=True) for kind in kinds for seed in range(long_seeds)]


def corpus() -> str:
    """The text to train on: the language reference topics that come with CPython (PSF licence)."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))
