"""Array libraries by name, for tests that run on each of them."""

from __future__ import annotations

from tallystick.frameworks.jax.arrays import JAX
from tallystick.frameworks.torch.arrays import TORCH
from tallystick.operators.arrays import NUMPY, ArrayLibrary


def library(name: str) -> ArrayLibrary:
    """NumPy, PyTorch or JAX; the last two are loaded when they are first used."""
    return {"numpy": NUMPY, "torch": TORCH, "jax": JAX}[name]
