"""While a dispute waits for a ruling or a draw: the challenger names the one element that convicts, if there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from tallystick.disputes.game.moves import Move, Pinpoint
from tallystick.disputes.game.protocols import DisputeView
from tallystick.disputes.game.state import Dispute, Phase, Status
from tallystick.disputes.parties.board_cache import BoardCache
from tallystick.disputes.parties.game_view import GameView
from tallystick.disputes.parties.task import PartyTask
from tallystick.disputes.parties.workspace import Workspace

NAMEABLE: Final = (Phase.RULING, Phase.DRAWING)


@dataclass
class PinpointRole:
    """Names an element once for each opened operator; a referee then judges only this element, a committee also this.

    If no element convicts, that is stored too, because the search runs the whole operator.
    """

    cache: BoardCache
    workspace: Workspace
    naming: Callable[[DisputeView], tuple[int, int] | None]

    def tasks(self, view: GameView) -> Iterator[PartyTask]:
        """The opened operators that this challenger has not searched for a wrong element yet."""
        for number, dispute in enumerate(view.state.disputes):
            is_open = view.state.claims[dispute.claim].status is Status.OPEN and _has_elements(dispute)
            is_new = self.workspace.note(_note(view, number)) is None
            if is_open and is_new and dispute.challenger == view.party:
                left = max(dispute.deadline - view.time, 0)
                key = f"name-{view.name_of(number)}"
                yield PartyTask(key, left, partial(self._name, view, number), kept=True, single=True)

    def _name(self, view: GameView, number: int) -> Move | None:
        named = self.naming(self.cache.answered(view, number))
        if named is None:
            self.workspace.put_note(_note(view, number), {"element": None})
            return None
        return Pinpoint(actor=view.party, dispute=number, result=named[0], element=named[1])


def _note(view: GameView, number: int) -> str:
    return f"names/{view.name_of(number)}"


def _has_elements(dispute: Dispute) -> bool:
    """Whether an operator was opened, and an element of it can be named but was not."""
    is_operator = dispute.level == 1 and dispute.ground == "leaf"
    return is_operator and dispute.phase in NAMEABLE and dispute.element is None
