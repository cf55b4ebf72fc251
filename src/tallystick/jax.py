"""JAX programs as graphs: `tallystick.jax.capture(function, *arguments)`."""

from __future__ import annotations

from tallystick.engines.jax.capture import CapturedFunction as CapturedFunction, capture as capture
from tallystick.engines.jax.engine import JaxEngine as JaxEngine

__all__ = ["CapturedFunction", "JaxEngine", "capture"]
