"""The reference run on which the expected answers hold: small enough to be trained and forged in seconds."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

from tallystick.audits import Policy, Workplace
from tallystick.commitments import Json
from tallystick.frameworks.torch.environment import describe_environment
from tallystick.frameworks.torch.replayer import TorchReplayer
from tallystick.recorders import train
from tallystick.transcripts import Recipe

TEXT_BYTES = 20_000
STEPS, STRIDE = 24, 6
RECIPE: Json = {
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
HITTING = STEPS - STRIDE + 1
"""So many samples that no segment can be missed."""


def train_reference(out: Path) -> None:
    """Train the reference run into `out`."""
    topics = resources.files("tallystick") / "examples" / "data" / "python-topics.txt"
    with TemporaryDirectory() as folder:
        source = Path(folder) / "text.txt"
        source.write_bytes(topics.read_bytes()[:TEXT_BYTES])
        train(Recipe.from_json(RECIPE, "reference recipe"), source, out)


def reference_policy(samples: int = HITTING) -> Policy:
    """What every audit of the reference run shares: a window of one segment, and the shipped limits."""
    return Policy(samples=samples, window=STRIDE)


def this_workplace() -> Workplace:
    """The auditor's own stack: this process."""
    return Workplace(describe_environment("cpu"), TorchReplayer)
