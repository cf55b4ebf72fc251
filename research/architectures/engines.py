"""Engines by name."""

from __future__ import annotations

from typing import Final

from tallystick.programs.execution import Engine
from tallystick.programs.graph import Graph

ENGINES: Final = ("torch", "jax", "iree")
"""Those whose runs are judged; the reference is what they are judged by."""


def engine_of(name: str, graph: Graph | None = None) -> Engine:
    """A fresh engine, prepared for `graph` where that is faster; raises `UnavailableError` where it cannot be."""
    if name == "reference":
        from tallystick.programs.execution import Reference

        return Reference()
    if name == "torch":
        from tallystick.engines.torch.engine import TorchEngine

        return TorchEngine()
    if name == "jax":
        from tallystick.engines.jax.engine import JaxEngine

        return JaxEngine()
    from tallystick.engines.iree import IreeEngine

    engine = IreeEngine()
    if graph is not None:
        engine.compile(graph)
    return engine
