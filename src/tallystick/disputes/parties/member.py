"""A member of committees: judges the disputes it was drawn for, commits to a stored vote, and discloses it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from tallystick.disputes.game.committee import commitment
from tallystick.disputes.game.moves import Disclose, Draw, Enlist, Move, Vote
from tallystick.disputes.game.protocols import Judge
from tallystick.disputes.game.state import Phase
from tallystick.disputes.parties.board_cache import BoardCache
from tallystick.disputes.parties.game_view import GameView
from tallystick.disputes.parties.ruling import find
from tallystick.disputes.parties.task import PartyTask, is_nearly_over
from tallystick.disputes.parties.workspace import Workspace
from tallystick.judging.fault import Fault


@dataclass(frozen=True)
class SaltedVote:
    """A vote, and the salt of its commitment."""

    vote: Fault
    salt: str


@dataclass
class CommitteeMember:
    """Votes for what its judge finds; if the judge does not decide, it votes that nobody is at fault.

    Vote and salt are on disk before the commitment is made. A member that lost them could not disclose its vote, and
    would be fined.
    """

    cache: BoardCache
    workspace: Workspace
    judge: Judge
    enlists: bool = True

    def tasks(self, view: GameView) -> Iterator[PartyTask]:
        """To enlist, to commit to votes, and to disclose them."""
        member = view.state.members.get(view.party)
        if self.enlists and view.party in view.rules.members and (member is None or not member.stake):
            enlist = Enlist(actor=view.party, value=view.rules.stake)
            yield PartyTask("enlist", None, lambda: enlist, kept=True, single=True)
        for number in dict.fromkeys(option.dispute for option in view.options if option.kind == "disclose"):
            yield from self._sitting(view, number)

    def _sitting(self, view: GameView, number: int) -> Iterator[PartyTask]:
        """The next vote or disclosure in a committee of which this party is a member."""
        dispute = view.state.disputes[number]
        sitting, left = dispute.rounds[-1], dispute.deadline - view.time
        if view.party not in sitting.drawn:
            return
        seat = sitting.drawn.index(view.party)
        if not sitting.commitments[seat] and dispute.phase is Phase.COMMITTING and left > 0:
            key = f"vote-{view.name_of(number)}-{len(dispute.rounds)}"
            yield PartyTask(key, left, partial(self._commit, view, number, left))
        stored = self._stored_vote(view, number)
        if stored and sitting.commitments[seat] and sitting.votes[seat] is None:
            move = Disclose(actor=view.party, dispute=number, vote=stored.vote, salt=stored.salt)
            if view.allows(move):
                yield PartyTask(f"disclose-{view.name_of(number)}-{len(dispute.rounds)}", max(left, 0), lambda: move)

    def _commit(self, view: GameView, number: int, left: int) -> Move:
        stored = self._stored_vote(view, number)
        if stored is None:
            stored = SaltedVote(self._found(view, number, left), secrets.token_hex(32))
            self.workspace.put_note(self._note(view, number), {"salt": stored.salt, "vote": stored.vote.value})
        sitting = len(view.state.disputes[number].rounds) - 1
        hidden = commitment(number, sitting, view.party, stored.vote, stored.salt)
        return Vote(actor=view.party, dispute=number, commitment=hidden)

    def _found(self, view: GameView, number: int, left: int) -> Fault:
        nonces = [entry.move.nonce for entry in view.moves.get(number, ()) if isinstance(entry.move, Draw)]
        is_last_try = is_nearly_over(left, view.rules.vote_window)
        return find(view, number, self.cache, self.judge, is_last_try, nonces[-1])[0] or Fault.NOBODY

    def _stored_vote(self, view: GameView, number: int) -> SaltedVote | None:
        noted = self.workspace.note(self._note(view, number))
        if noted is None:
            return None
        return SaltedVote(Fault(str(noted.get("vote"))), str(noted.get("salt")))

    def _note(self, view: GameView, number: int) -> str:
        return f"votes/{view.name_of(number)}-{len(view.state.disputes[number].rounds)}"
