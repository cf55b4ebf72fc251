"""A deception as data: what a prover does in a dispute, and how the dispute has to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tallystick.disputes.game.protocols import Doubt, Trace
from tallystick.verdicts.verdict import Fault
from tests.support.attacks.disputes.scene import Scene

Ground = Literal["leaf", "structure", "budget"]


@dataclass(frozen=True)
class Staged:
    """A claim and the prover that defends it; with `doubt` the challenger is told what to contest."""

    statement: Path
    trace: Trace
    doubt: Doubt | None = None


Stage = Callable[[Scene, Path], Staged]


@dataclass(frozen=True)
class Deception:
    """One way to cheat in a dispute, or an honest control.

    `ground` is how the dispute comes to its ruling, `referee` what a referee finds there (`None`: a committee), and
    `member` what a member of a committee finds. `operator` is the one at which it ends, where one is named.
    """

    name: str
    change: str
    stage: Stage
    ground: Ground
    referee: Fault | None
    member: Fault
    operator: str = ""
    is_honest: bool = False
