"""Graphs compiled by IREE: `tallystick.iree.IreeEngine()`."""

from __future__ import annotations

from tallystick.engines.iree import IreeEngine as IreeEngine, run_compiled as run_compiled

__all__ = ["IreeEngine", "run_compiled"]
