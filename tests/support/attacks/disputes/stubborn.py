"""A challenger that is wrong and contests all the same: any path of choices, or a protest without a ground."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.disputes.game.protocols import DisputeView, Doubt, Ground
from tallystick.disputes.game.state import PostedClaim


@dataclass
class StubbornDoubter:
    """Chooses children by a seed, and in round `protest` at the level of operators protests; never doubts by itself."""

    seed: int
    protest: int | None = None
    ground: Ground = "structure"
    _rounds: int = 0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def unseen(self, claim: PostedClaim, statement: Path) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def doubt(self, claim: PostedClaim, statement: Path) -> Doubt | None:
        """Nothing; what it contests it is told."""
        return None

    def choose(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> int | Ground:
        """Any child."""
        if answered.dispute.level == 1:
            self._rounds += 1
            if self._rounds - 1 == self.protest:
                return self.ground
        return self._random.randrange(len(children))
