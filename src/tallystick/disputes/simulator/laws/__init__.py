"""Laws that look at what an accepted move has changed, said apart from the rules that let it."""

from tallystick.disputes.simulator.laws.every_move import broken_by
from tallystick.disputes.simulator.laws.money import credited

__all__ = ["broken_by", "credited"]
