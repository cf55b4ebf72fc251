"""JAX programs as graphs: `tallystick.jax.capture(function, *arguments)`."""

from tallystick.frameworks.jax.capture import CapturedFunction, capture
from tallystick.frameworks.jax.engine import JaxEngine

__all__ = ["CapturedFunction", "JaxEngine", "capture"]
