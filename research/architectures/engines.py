"""Engines by name."""

from __future__ import annotations

from typing import Final

from tallystick.graphs.engine import Engine
from tallystick.graphs.graph import Graph

ENGINES: Final = ("torch", "jax", "iree")
"""Those whose runs are judged; the reference is what they are judged by."""


def engine_of(name: str, graph: Graph | None = None) -> Engine:
    """A fresh engine, prepared for `graph` where that is faster; raises `UnavailableError` where it cannot be."""
    if name == "reference":
        from tallystick.graphs.reference import Reference

        return Reference()
    if name == "torch":
        from tallystick.frameworks.torch.engine import TorchEngine

        return TorchEngine()
    if name == "jax":
        from tallystick.frameworks.jax.engine import JaxEngine

        return JaxEngine()
    from tallystick.frameworks.iree.engine import IreeEngine

    engine = IreeEngine()
    if graph is not None:
        engine.compile(graph)
    return engine
