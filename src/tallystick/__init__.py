"""Tallystick makes ML compute verifiable.

A prover commits to a workload while running its own fast code; a verifier replays any part of it and
compares, allowing exactly the numerical drift that honest hardware causes, and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.lazy import lazy

if TYPE_CHECKING:
    from tallystick.answers.client import wrap as wrap
    from tallystick.answers.verification import verify as verify
    from tallystick.recorders.huggingface import TallyCallback as TallyCallback
    from tallystick.recorders.inference import record_inference as record_inference
    from tallystick.recorders.lightning import BatchHooks as BatchHooks
    from tallystick.recorders.own_loop import record_training as record_training

HOMES = {
    "BatchHooks": "tallystick.recorders.lightning",
    "TallyCallback": "tallystick.recorders.huggingface",
    "record_inference": "tallystick.recorders.inference",
    "record_training": "tallystick.recorders.own_loop",
    "verify": "tallystick.answers.verification",
    "wrap": "tallystick.answers.client",
}
__version__ = "0.1.0"
__all__ = ["__version__", *HOMES]
__getattr__, __dir__ = lazy(__name__, HOMES)
