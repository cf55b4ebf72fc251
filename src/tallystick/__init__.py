"""Tallystick makes ML compute verifiable.

A prover commits to a workload while running its own fast code; a verifier replays any part of it and
compares, allowing exactly the numerical drift that honest hardware causes, and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tallystick.recorders import record_training as record_training

__all__ = ["__version__", "record_training"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load the recorder, and PyTorch with it, only when somebody asks for it (PEP 562)."""
    if name == "record_training":
        from tallystick.recorders import record_training

        return record_training
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
