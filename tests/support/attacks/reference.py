"""The reference run on which the expected answers hold: small enough to be trained and forged in seconds."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tallystick.attacks.attack import Reference
from tallystick.attacks.loop_reference import train_loop
from tallystick.audits.policy import Policy
from tallystick.errors import UnavailableError
from tallystick.frameworks.tokenizers import train_bpe
from tallystick.frameworks.torch.environment import describe_environment
from tallystick.frameworks.torch.training.graph_replayer import GraphReplayer
from tallystick.frameworks.torch.training.replayer import TorchReplayer
from tallystick.frameworks.torch.training.verifier_stack import recipe_graph_root
from tallystick.recorders.training import train
from tallystick.transcripts.recipe import Recipe
from tallystick.workloads.verifier_stack import VerifierStack

TEXT_BYTES = 20_000
STEPS, STRIDE = 24, 6
RECIPE: dict[str, Any] = {
    "data": {"kind": "text", "validation": 8},
    "model": {
        "architecture": "llama",
        "config": {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 64,
            "tie_word_embeddings": True,
        },
    },
    "optimizer": {"learning_rate": 3e-3, "weight_decay": 0.01, "clip_norm": 1.0},
    "schedule": {"kind": "cosine", "warmup_steps": 4},
    "training": {"steps": STEPS, "batch": 4, "sequence": 32, "seed": 7},
    "record": {"anchor_stride": STRIDE},
}
GPT2 = RECIPE | {
    "model": {
        "architecture": "gpt2",
        "config": {
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 2,
            "n_positions": 64,
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
        },
    }
}
HALF = GPT2 | {"training": RECIPE["training"] | {"dtype": "bf16"}}
PAIRS = RECIPE | {"tokenizer": {"kind": "bpe", "vocabulary": 300}}
RECIPES: dict[Reference, dict[str, Any]] = {"recipe": RECIPE, "bpe": PAIRS, "gpt2": GPT2, "gpt2-bf16": HALF}
HITTING = STEPS - STRIDE + 1
"""So many samples that no segment can be missed."""


def train_reference(out: Path, reference: Reference = "recipe") -> None:
    """Train a reference run into `out`, with its step graph but for bfloat16, which is replayed from its recipe."""
    if reference == "loop":
        train_loop(out)
    else:
        train_by(RECIPES[reference], out)


def train_by(recipe: dict[str, Any], out: Path) -> None:
    """Train by a recipe on the reference text."""
    topics = resources.files("tallystick") / "examples" / "data" / "python-topics.txt"
    read = Recipe.from_json(recipe, "reference recipe")
    with TemporaryDirectory() as folder:
        source = Path(folder) / "text.txt"
        source.write_bytes(topics.read_bytes()[:TEXT_BYTES])
        train(read, source, out, capture_with=None if read.training.dtype == "bf16" else _refuse)


def reference_policy(samples: int = HITTING) -> Policy:
    """What every audit of the reference run shares: a window of one segment, and the shipped limits."""
    return Policy(samples=samples, window=STRIDE)


def this_verifier_stack() -> VerifierStack:
    """The auditor's own stack: this process."""
    return VerifierStack(describe_environment("cpu"), TorchReplayer, GraphReplayer, recipe_graph_root, train_bpe)


def _refuse(reason: str) -> None:
    raise UnavailableError(reason)
