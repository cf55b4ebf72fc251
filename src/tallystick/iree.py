"""Graphs compiled by IREE: `tallystick.iree.IreeEngine()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.core.lazy import lazy

if TYPE_CHECKING:
    from tallystick.engines.iree import IreeEngine as IreeEngine, run_compiled as run_compiled

__getattr__, __dir__ = lazy(__name__)
