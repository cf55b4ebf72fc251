"""All primitives on balls, as one algebra."""

from __future__ import annotations

from tallystick.operators.balls.accumulation import Accumulation
from tallystick.operators.balls.elementwise import Elementwise
from tallystick.operators.balls.movement import Movement


class Balls(Elementwise, Accumulation, Movement):
    """The algebra of balls over one array library, for devices of one precision and one table of library figures."""
