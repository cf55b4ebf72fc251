"""The judges: a referee, and members of committees; and a party that appeals."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from weakref import finalize

from tallystick.core.errors import MalformedError, ProofError, TallyError, UnavailableError
from tallystick.disputes.coordinators.coordinator import Board, Coordinator
from tallystick.disputes.game.moves import Appeal, Convene, Disclose, Draw, Enlist, Move, Rule, Vote
from tallystick.disputes.game.protocols import DisputeView, Judge
from tallystick.disputes.game.state import Phase
from tallystick.disputes.game.voting import commitment, next_seats
from tallystick.disputes.parties.game_view import BoardCache, GameView
from tallystick.disputes.parties.player import FAILURES, DueMoves, PartyTask, Player, Workspace, is_nearly_over
from tallystick.verdicts.verdict import Fault

# A judge's finding over any files at the board: inconsistent files are the prover's fault.


def find(
    view: GameView, number: int, cache: BoardCache, judge: Judge, is_last_try: bool, nonce: str | None = None
) -> tuple[Fault | None, str]:
    """Who is at fault and why; `None` for undecided.

    Malformed or inconsistent files are the prover's fault, because the prover supplied all of them. Any other failure
    is raised, so that the caller tries again. In the last try, files that are missing from an answering board count as
    withheld by the prover, and any other failure leaves the dispute undecided.
    """
    try:
        return judge.rule(cache.answered(view, number), nonce)
    except (MalformedError, ProofError) as error:
        return Fault.PROVER, str(error)
    except FAILURES as error:
        if not is_last_try:
            raise
        is_withheld = isinstance(error, UnavailableError) and cache.lacks(view, number)
        return (Fault.PROVER if is_withheld else None), str(error)


# The referee: it rules at once if a check decides, and convenes a committee if none does.

REASON = "reason.txt"
REASON_MAX = 4096


def waits_never(answered: DisputeView) -> bool:
    """Never wait for the challenger to name an element."""
    return False


@dataclass
class Referee:
    """Rules what its judge finds; puts its reason at the board, under the digest that the ruling names.

    `waits` selects the disputes in which the challenger has half of the window to name an element first. These are
    disputes over large operators, because judging one element is much less work than judging all.
    """

    cache: BoardCache
    judge: Judge
    waits: Callable[[DisputeView], bool] = waits_never

    def tasks(self, view: GameView) -> Iterator[PartyTask]:
        """The disputes that wait for a ruling."""
        for option in view.options:
            if option.kind == "rule":
                left = view.state.disputes[option.dispute].deadline - view.time
                key = f"rule-{view.name_of(option.dispute)}"
                yield PartyTask(key, max(left, 0), partial(self._rule, view, option.dispute, left))

    def _rule(self, view: GameView, number: int, left: int) -> Move | None:
        if 2 * left > view.rules.referee_window and self._gives_time(view, number):
            return None
        is_last_try = is_nearly_over(left, view.rules.referee_window)
        fault, reason = find(view, number, self.cache, self.judge, is_last_try)
        if fault is None:
            return Convene(actor=view.party, dispute=number)
        kept = self.cache.publish({REASON: reason[:REASON_MAX].encode()})
        return Rule(actor=view.party, dispute=number, fault=fault, reason=kept)

    def _gives_time(self, view: GameView, number: int) -> bool:
        """Whether to wait for the challenger to name an element; not if the files cannot be read."""
        if view.state.disputes[number].element is not None:
            return False
        try:
            return self.waits(self.cache.answered(view, number))
        except TallyError:
            return False


def referee_of(coordinator: Coordinator, board: Board, judge: Judge | None = None) -> Player:
    """The referee's program; `look()` rules on all waiting disputes. Its temporary files are removed at its end."""
    from tallystick.disputes.evidence.judging import DisputeJudge as OpenedJudge

    workspace = Workspace(Path(mkdtemp(prefix="tallystick-referee-")))
    cache = BoardCache(board, workspace.folder / "data")
    own = OpenedJudge()
    role = Referee(cache, judge) if judge else Referee(cache, own, own.is_large)
    player = Player(coordinator, workspace, (role, DueMoves()))
    finalize(player, rmtree, workspace.folder, ignore_errors=True)
    return player


# A member of committees: judges the disputes it was drawn for, commits to a stored vote, and discloses it.


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


# A party that a committee found at fault appeals to a larger one, while the rules have one.


@dataclass(frozen=True)
class AppealRole:
    """Appeals findings against this party, but not a finding that nobody is at fault, which returns the bonds."""

    def tasks(self, view: GameView) -> Iterator[PartyTask]:
        """The findings that can be appealed."""
        for option in view.options:
            dispute = view.state.disputes[option.dispute]
            parties = {Fault.PROVER: view.claim_of(dispute).prover, Fault.CHALLENGER: dispute.challenger}
            is_found_at_fault = dispute.fault is not None and parties.get(dispute.fault) == view.party
            if option.kind == "appeal" and is_found_at_fault:
                yield from _appeal(view, option.dispute)


def _appeal(view: GameView, number: int) -> Iterator[PartyTask]:
    dispute = view.state.disputes[number]
    price = view.rules.appeal_bond + view.rules.vote_fee * next_seats(dispute)
    move = Appeal(actor=view.party, dispute=number, value=price)
    if view.allows(move):
        key = f"appeal-{view.name_of(number)}-{len(dispute.rounds)}"
        yield PartyTask(key, dispute.deadline - view.time, lambda: move, kept=True, single=True)
