"""The reference run on which the expected answers hold: small enough to be trained and forged in seconds."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from research.attacks.loops import DROPOUT, train_loop
from tallystick.audits.policy import Policy
from tallystick.core.errors import UnavailableError
from tallystick.engines.tokenizers import TokenizerFile, check_made_again, train_bpe
from tallystick.engines.torch.environment import describe_environment
from tallystick.engines.torch.training.verifier_stack import GraphReplayer, TorchReplayer, recipe_graph_root
from tallystick.formats.recipe import Recipe
from tallystick.formats.store.directories import open_origin
from tallystick.recording.rows import write_rows
from tallystick.recording.training import Config, train
from tallystick.tally.attacks.catalogue import Reference
from tallystick.verdicts.replayer import VerifierStack
from tests.support.chat_scene import record_rows, write_conversations, write_model_directory

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
SHARDS = RECIPE | {"data": {"kind": "corpus", "validation": 8}}
RECIPES: dict[Reference, dict[str, Any]] = {
    "recipe": RECIPE,
    "bpe": PAIRS,
    "corpus": SHARDS,
    "gpt2": GPT2,
    "gpt2-bf16": HALF,
}
HITTING = STEPS - STRIDE + 1
"""So many samples that no segment can be missed."""


def train_reference(out: Path, reference: Reference = "recipe") -> None:
    """Train a reference run into `out`, with its step graph but for bfloat16, which is replayed from its recipe."""
    if reference == "loop":
        train_loop(out)
    elif reference == "dropout":
        train_loop(out, dropout=DROPOUT)
    elif reference == "checkpoint":
        train_loop(out, initial=checkpoint_of(out))
    elif reference == "rows":
        train_on_rows(out)
    else:
        train_by(RECIPES[reference], out)


def train_on_rows(out: Path) -> None:
    """Train a loop on packed rows; the corpus and the directory of tokenizer, template and weights stay beside it."""
    corpus, model = write_conversations(corpus_of(out), 30), write_model_directory(checkpoint_of(out))
    with TemporaryDirectory() as folder:
        rows = Path(folder) / "rows"
        write_rows(corpus, model, rows, length=48, packing="apart")
        record_rows(out, rows, initial=model, size=2, epochs=5, stride=STRIDE)


def train_by(recipe: dict[str, Any], out: Path) -> None:
    """Train by a recipe on the reference text."""
    topics = resources.files("tallystick") / "examples" / "data" / "python-topics.txt"
    read = Recipe.from_json(recipe, "reference recipe")
    with TemporaryDirectory() as folder:
        text = topics.read_bytes()[:TEXT_BYTES]
        source = Path(folder) / "text.txt"
        source.write_bytes(text)
        if read.data.kind == "corpus":
            source = write_shards(text.decode(), corpus_of(out))
        train(Config(read, source), out, capture_with=None if read.training.dtype == "bf16" else _refuse)


def reference_policy(samples: int = HITTING) -> Policy:
    """What every audit of the reference run shares: a window of one segment, and the shipped limits."""
    return Policy(samples=samples, window=STRIDE)


def corpus_of(run: Path) -> Path:
    """Where the shards of a reference run on a corpus are: beside the run."""
    return run.with_name(f"{run.name}-shards")


def checkpoint_of(run: Path) -> Path:
    """Where the first weights of a reference run from a checkpoint are: beside the run."""
    return run.with_name(f"{run.name}-checkpoint")


def stack_for(run: Path, reference: Reference) -> VerifierStack:
    """The auditor's own stack, with what an auditor of such a run has."""
    has_origin, has_corpus = reference in ("checkpoint", "rows"), reference in ("corpus", "rows")
    origin = open_origin(checkpoint_of(run)) if has_origin else None
    stack = replace(this_verifier_stack(corpus_of(run) if has_corpus else None), origin=origin)
    if reference != "rows":
        return stack
    return replace(stack, made_again=partial(check_made_again, corpus=corpus_of(run), model=checkpoint_of(run)))


def write_shards(text: str, folder: Path) -> Path:
    """The paragraphs of a text as documents in three shards of JSONL."""
    folder.mkdir(parents=True)
    lines = [json.dumps({"text": part}) + "\n" for part in text.split("\n\n")]
    for index in range(3):
        (folder / f"shard-{index}.jsonl").write_text("".join(lines[index::3]))
    return folder


def this_verifier_stack(corpus: Path | None = None) -> VerifierStack:
    """The auditor's own stack: this process, and the shards of a run on a corpus."""
    environment = describe_environment("cpu")
    made = VerifierStack(environment, TorchReplayer, GraphReplayer, recipe_graph_root, train_bpe, TokenizerFile)
    return replace(made, corpus=corpus)


def _refuse(reason: str) -> None:
    raise UnavailableError(reason)
