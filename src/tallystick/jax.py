"""JAX programs as graphs: `tallystick.jax.capture(function, *arguments)`."""

from tallystick.frameworks.jax.capture import Captured, capture
from tallystick.frameworks.jax.engine import JaxEngine

__all__ = ["Captured", "JaxEngine", "capture"]
