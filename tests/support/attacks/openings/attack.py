"""An attack on opened operators as data: what it changes, and who sees it by which check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tallystick.tally.attacks.catalogue import Expected
from tests.support.attacks.openings.scene import Scene

Judge = Literal["alone", "own", "kept"]
"""What the verifier holds beside the opening.

alone   nothing
own     the claim and the spec that the prover publishes with it: those of a forger who cheated before publishing
kept    the claim and the spec of the honest run
"""
Forge = Callable[[Scene, Path], None]
JUDGES: tuple[Judge, ...] = get_args(Judge)


@dataclass(frozen=True)
class OpeningAttack:
    """One way to forge an opening, or an honest control.

    `forge(scene, out)` writes a forged opening, and beside it the claim and the spec that the forger publishes.
    With `is_located` an objection names the operator in which the forgery lies.
    """

    name: str
    change: str
    forge: Forge
    alone: Expected
    own: Expected
    kept: Expected
    is_located: bool = False
    is_honest: bool = False

    def expected(self, judge: Judge) -> Expected:
        """What `judge` says."""
        answers = {"alone": self.alone, "own": self.own, "kept": self.kept}
        return answers[judge]
