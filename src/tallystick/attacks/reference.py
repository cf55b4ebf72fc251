"""The reference run on which the expected answers hold: small enough to be trained and forged in seconds."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

from tallystick.audits import Calibration, Policy, Workplace
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
RESIDUALS: Json = {"overall": 1e-4, "worst_tensor": 1e-3, "mismatch_share": 1.0, "element": 1e-2}
LIMITS: Json = {
    "machine": "reference",
    "torch": "any",
    "stacks": [],
    "held_out": [],
    "entries": [
        {
            "family": "language",
            "optimizer": "adamw",
            "dtype": "fp32",
            "window": STRIDE,
            "from_step": 0,
            "weights": RESIDUALS,
            "memory": RESIDUALS,
            "projection": 1e-3,
            "loss_band": 1e-5,
            "honest_segments": 1,
            "held_out_segments": 0,
            "honest_max": {},
            "held_out_max": {},
            "withdrawn": [],
        }
    ],
}
"""Limits set by hand for the reference run, an order of magnitude above the drift of honest stacks in float32.

They keep the expected answers apart from the shipped calibration, which is measured and may change.
"""


def train_reference(out: Path) -> None:
    """Train the reference run into `out`."""
    topics = resources.files("tallystick") / "examples" / "data" / "python-topics.txt"
    with TemporaryDirectory() as folder:
        source = Path(folder) / "text.txt"
        source.write_bytes(topics.read_bytes()[:TEXT_BYTES])
        train(Recipe.from_json(RECIPE, "reference recipe"), source, out)


def reference_policy(samples: int = HITTING) -> Policy:
    """What every audit of the reference run shares; a window of one segment."""
    return Policy(samples=samples, window=STRIDE, calibration=Calibration.from_json(LIMITS, "reference limits"))


def this_workplace() -> Workplace:
    """The auditor's own stack: this process."""
    return Workplace(describe_environment("cpu"), TorchReplayer)
