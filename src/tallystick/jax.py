"""JAX programs as graphs: `tallystick.jax.capture(function, *arguments)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.core.lazy import lazy

if TYPE_CHECKING:
    from tallystick.engines.jax.capture import CapturedFunction as CapturedFunction, capture as capture
    from tallystick.engines.jax.engine import JaxEngine as JaxEngine

__getattr__, __dir__ = lazy(__name__)
