"""Tallystick makes ML compute verifiable.

A prover commits to a workload while running its own fast code; a verifier replays any part of it and
compares, allowing exactly the numerical drift that honest hardware causes, and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tallystick.answers.client import wrap as wrap
    from tallystick.answers.verification import verify as verify
    from tallystick.recorders.huggingface import TallyCallback as TallyCallback
    from tallystick.recorders.inference import record_inference as record_inference
    from tallystick.recorders.own_loop import record_training as record_training

__all__ = ["TallyCallback", "__version__", "record_inference", "record_training", "verify", "wrap"]
__version__ = "0.1.0"
HOMES = {
    "TallyCallback": "recorders.huggingface",
    "record_inference": "recorders.inference",
    "record_training": "recorders.own_loop",
    "verify": "serving.verification",
    "wrap": "serving.client",
}


def __getattr__(name: str) -> Any:
    """Load a recorder or a verifier, and PyTorch with it, only when somebody asks for it (PEP 562)."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"tallystick.{HOMES[name]}"), name)
