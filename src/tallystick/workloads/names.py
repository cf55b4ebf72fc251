"""How the values of a step are named: the state it reads and writes, its batch, and the counters in the state."""

from __future__ import annotations

from typing import Final

STATE_PREFIXES: Final = ("weights.", "buffers.", "optimizer.", "position.")
BATCH: Final = "inputs."
POSITION: Final = "position.step"
STEP_SLOT: Final = ".step"
