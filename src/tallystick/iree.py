"""Graphs compiled by IREE: `tallystick.iree.IreeEngine()`."""

from tallystick.frameworks.iree.engine import IreeEngine, run_compiled

__all__ = ["IreeEngine", "run_compiled"]
