"""Graphs compiled by IREE: `tallystick.iree.IreeEngine()`."""

from tallystick.frameworks.iree.engine import IreeEngine

__all__ = ["IreeEngine"]
