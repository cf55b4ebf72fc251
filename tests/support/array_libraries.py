"""Array libraries by name, for tests that run on each of them."""

from __future__ import annotations

from tallystick.engines.jax.engine import JAX
from tallystick.engines.torch.kernels import TORCH
from tallystick.programs.operators.arrays import NUMPY, ArrayLibrary


def library(name: str) -> ArrayLibrary:
    """NumPy, PyTorch or JAX; the last two are loaded when they are first used."""
    return {"numpy": NUMPY, "torch": TORCH, "jax": JAX}[name]
