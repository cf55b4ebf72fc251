"""How parties answer their tasks in disputes: prover, challenger, referee, member of committees, and who appeals.

`game_view.PHASES` says who has which task in which phase; `programs` says which of these answers each party gives.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from tallystick.core.errors import MalformedError, ProofError, TallyError, UnavailableError
from tallystick.disputes.game.moves import (
    Appeal,
    Choose,
    Concede,
    Contest,
    Convene,
    Descend,
    Disclose,
    Draw,
    Enlist,
    Evidence,
    Move,
    Partition,
    Pinpoint,
    Protest,
    Prove,
    Reveal,
    Rule,
    Vote,
)
from tallystick.disputes.game.protocols import DisputeView, Doubt, Ground, Judge, Trace
from tallystick.disputes.game.state import Phase, PostedClaim, Status, bounds, cut_places
from tallystick.disputes.game.voting import commitment, next_seats
from tallystick.disputes.parties.auditing import AuditFinding, Auditor, read_doubt
from tallystick.disputes.parties.game_view import BoardCache, GameView, Turn, claim_name
from tallystick.disputes.parties.player import FAILURES, AnswerPending, PartyTask, Workspace, is_nearly_over
from tallystick.disputes.parties.progress import REASON, REASON_MAX
from tallystick.verdicts.verdict import Fault

Compute = Callable[[], Move | None]
Answer = Callable[[Turn], Iterable[PartyTask]]


@dataclass(frozen=True)
class Answering:
    """A role that is a table: its answer to each task of open disputes, and what it does `besides` them."""

    answers: Mapping[str, Answer]
    besides: Callable[[GameView], Iterable[PartyTask]] = lambda view: ()

    def tasks(self, view: GameView) -> Iterator[PartyTask]:
        """The open tasks to which the table has answers."""
        yield from self.besides(view)
        for turn in view.awaited():
            if turn.task in self.answers:
                yield from self.answers[turn.task](turn)


def task_of(
    turn: Turn, compute: Compute, count: int | None = None, single: bool = False, kept: bool = True
) -> PartyTask:
    """A task of a dispute; `count` distinguishes it from the same task in an earlier turn or round."""
    key = f"{turn.task}-{turn.name}" + ("" if count is None else f"-{count}")
    return PartyTask(key, turn.seconds, compute, kept, single)


# The prover answers from its trace.


@dataclass
class Prover:
    """Answers every dispute over claims for which `traces` gives a trace; `traces` itself has to be cheap.

    With `concedes`, it concedes if its own trace contradicts what it claimed. With `leaves_time`, it answers only once
    half of the time for a move is over, as a watchtower does for a prover that is silent.
    """

    cache: BoardCache
    traces: Callable[[PostedClaim], Trace | None]
    concedes: bool = False
    leaves_time: bool = False

    def answers(self, turn: Turn) -> Iterator[PartyTask]:
        """A partition, the descent below a record, or the last leaf."""
        is_due = not self.leaves_time or 2 * turn.seconds <= turn.dispute.clocks.prover
        trace = self.traces(turn.view.claim_of(turn.dispute)) if is_due else None
        if trace is not None:
            yield task_of(turn, partial(self._answer, turn, trace), turn.dispute.turn)

    def _answer(self, turn: Turn, trace: Trace) -> Move:
        view, number, dispute = turn.view, turn.number, turn.dispute
        try:
            if dispute.phase is Phase.PARTITION:
                opened = trace.partition(dispute, cut_places(dispute.low, dispute.high, view.rules.ways))
                data = self.cache.publish(opened.files)
                return Partition(actor=view.party, dispute=number, turn=dispute.turn, cuts=opened.cuts, data=data)
            descent = trace.descend(dispute) if dispute.level > 1 else None
            if descent is None:
                opened = trace.reveal(dispute)
                (cut,), data = opened.cuts, self.cache.publish(opened.files)
                return Reveal(
                    actor=view.party, dispute=number, turn=dispute.turn, leaf=cut.leaf, proof=cut.proof, data=data
                )
        except ProofError:
            if not self.concedes:
                raise
            return Concede(actor=view.party, dispute=number)
        return Descend(
            actor=view.party,
            dispute=number,
            turn=dispute.turn,
            leaf=descent.record.leaf,
            proof=descent.record.proof,
            root=descent.root,
            size=descent.size,
            data=self.cache.publish(descent.files),
        )


# The challenger recomputes claims, contests what differs, and names the child that differs until one leaf is left.


@dataclass
class Challenger:
    """Recomputes every claim once and contests it at most once; `claims` are the numbers to look at, `None` for all.

    If its clock is nearly over and it could not choose, it protests, because a timeout would certainly lose the bond.
    """

    cache: BoardCache
    workspace: Workspace
    auditor: Auditor
    claims: Collection[int] | None = None

    def choices(self, turn: Turn) -> Iterator[PartyTask]:
        """The child that differs, or a protest."""
        yield task_of(turn, partial(self._choice, turn), turn.dispute.turn)

    def contests(self, view: GameView) -> Iterator[PartyTask]:
        """The claims that were not recomputed yet."""
        contested = {dispute.claim for dispute in view.state.disputes if dispute.challenger == view.party}
        claims = enumerate(view.state.claims)
        relevant = (claim for number, claim in claims if claim.deadline > view.time or number in contested)
        self.auditor.keep([claim for claim in relevant if claim.status is Status.OPEN])
        for number, claim in enumerate(view.state.claims):
            left = claim.deadline - view.time
            is_open = claim.status is Status.OPEN and left > 0 and number not in contested
            is_ours = claim.prover != view.party and (self.claims is None or number in self.claims)
            noted = self.workspace.note(_contest_note(claim))
            is_settled = noted is not None and noted.get("doubt") is None
            if is_open and is_ours and not is_settled:
                key = f"contest-{number}-{claim_name(claim)}"
                answer = partial(self._contest, view, number, left)
                yield PartyTask(key, left, answer, True, True, partial(self._is_pending, claim))

    def _is_pending(self, claim: PostedClaim) -> bool:
        return self.auditor.is_pending(claim) and self._noted(claim) is None

    def _contest(self, view: GameView, number: int, left: int) -> Move | None:
        claim = view.state.claims[number]
        doubt = self._noted(claim)
        if doubt is None:
            finding = self._find(claim, is_nearly_over(left, view.rules.challenge_window))
            if finding is None:
                raise AnswerPending
            doubt = finding.doubt
            self.workspace.put_note(_contest_note(claim), finding.to_json())
        if doubt is None:
            return None
        price = view.rules.challenger_bond + view.rules.deposit
        return Contest(actor=view.party, value=price, claim=number, low=doubt.low, high=doubt.high)

    def _noted(self, claim: PostedClaim) -> Doubt | None:
        """The doubt that was found before, if the contest could not be made then."""
        return read_doubt((self.workspace.note(_contest_note(claim)) or {}).get("doubt"))

    def _find(self, claim: PostedClaim, is_nearly_over: bool) -> AuditFinding | None:
        """What to contest: all leaves, if the statement is malformed, or if it is withheld until the window ends."""
        try:
            return self.auditor.find(claim, self.cache.folder_of(claim.statement))
        except (MalformedError, ProofError) as error:
            return AuditFinding(Doubt(0, claim.size, str(error)))
        except UnavailableError as error:
            if is_nearly_over and self.cache.is_missing(claim.statement):
                return AuditFinding(Doubt(0, claim.size, str(error)))
            raise

    def _choice(self, turn: Turn) -> Move:
        """A choice of a child, or a protest; near the end of the clock any failure gives a protest."""
        view, number, dispute = turn.view, turn.number, turn.dispute
        chosen: int | Ground
        try:
            ends = bounds(dispute.low, dispute.high, view.rules.ways)
            chosen = self.auditor.choose(self.cache.answered(view, number), list(pairwise(ends)))
        except (MalformedError, ProofError):
            chosen = "structure"
        except FAILURES:
            if not is_nearly_over(turn.seconds, view.rules.extension):
                raise
            chosen = "structure"
        if isinstance(chosen, int):
            return Choose(actor=view.party, dispute=number, turn=dispute.turn, child=chosen)
        return Protest(actor=view.party, dispute=number, turn=dispute.turn, ground=chosen)


def _contest_note(claim: PostedClaim) -> str:
    return f"claims/{claim_name(claim)}"


# While a dispute waits for a ruling: bring evidence that convicts at once, or concede if the own judge says so.


def no_evidence(answered: DisputeView) -> Evidence | None:
    """Never give evidence."""
    return None


@dataclass
class Pleading:
    """Judges an opened leaf once, for the party on `side`.

    A challenger brings evidence that convicts the prover. A party that finds itself at fault concedes: its bond is lost
    in any case, and it saves the fees of a committee.
    """

    side: Fault
    cache: BoardCache
    workspace: Workspace
    judge: Judge
    evidence: Callable[[DisputeView], Evidence | None] = no_evidence

    def pleas(self, turn: Turn) -> Iterator[PartyTask]:
        """The plea in a dispute of this party that was not judged yet."""
        if self.side in turn.view.roles_in(turn.number) and self.workspace.note(f"pleas/{turn.name}") is None:
            yield task_of(turn, partial(self._answer, turn))

    def _answer(self, turn: Turn) -> Move | None:
        view, number = turn.view, turn.number
        opened = self.cache.answered(view, number)
        evidence = self.evidence(opened) if self.side is Fault.CHALLENGER else None
        if evidence is not None:
            return Prove(actor=view.party, dispute=number, evidence=evidence)
        fault, reason = self.judge.rule(opened)
        if fault is self.side:
            return Concede(actor=view.party, dispute=number)
        self.workspace.put_note(f"pleas/{turn.name}", {"reason": reason})
        return None


@dataclass
class Naming:
    """Names an element once for each opened operator; a referee then judges only this element, a committee also this.

    If no element convicts, that is stored too, because the search runs the whole operator.
    """

    cache: BoardCache
    workspace: Workspace
    naming: Callable[[DisputeView], tuple[int, int] | None]

    def names(self, turn: Turn) -> Iterator[PartyTask]:
        """The element of an operator that this challenger has not searched for one yet."""
        dispute = turn.dispute
        has_elements = dispute.level == 1 and dispute.ground == "leaf" and dispute.element is None
        if has_elements and self.workspace.note(f"names/{turn.name}") is None:
            yield task_of(turn, partial(self._name, turn), single=True)

    def _name(self, turn: Turn) -> Move | None:
        named = self.naming(self.cache.answered(turn.view, turn.number))
        if named is None:
            self.workspace.put_note(f"names/{turn.name}", {"element": None})
            return None
        return Pinpoint(actor=turn.view.party, dispute=turn.number, result=named[0], element=named[1])


# A judge's finding over any files at the board: inconsistent files are the prover's fault.


def find(
    turn: Turn, cache: BoardCache, judge: Judge, is_last_try: bool, nonce: str | None = None
) -> tuple[Fault | None, str]:
    """Who is at fault and why; `None` for undecided.

    Malformed or inconsistent files are the prover's fault, because the prover supplied all of them. Any other failure
    is raised, so that the caller tries again. In the last try, files that are missing from an answering board count as
    withheld by the prover, and any other failure leaves the dispute undecided.
    """
    try:
        return judge.rule(cache.answered(turn.view, turn.number), nonce)
    except (MalformedError, ProofError) as error:
        return Fault.PROVER, str(error)
    except FAILURES as error:
        if not is_last_try:
            raise
        is_withheld = isinstance(error, UnavailableError) and cache.lacks(turn.view, turn.number)
        return (Fault.PROVER if is_withheld else None), str(error)


# The referee: it rules at once if a check decides, and convenes a committee if none does.


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

    def rulings(self, turn: Turn) -> Iterator[PartyTask]:
        """The ruling on a dispute, or the call of a committee."""
        yield task_of(turn, partial(self._rule, turn), kept=False)

    def _rule(self, turn: Turn) -> Move | None:
        view, number, window = turn.view, turn.number, turn.view.rules.referee_window
        if 2 * turn.seconds > window and turn.dispute.element is None and self._waits(turn):
            return None
        fault, reason = find(turn, self.cache, self.judge, is_nearly_over(turn.seconds, window))
        if fault is None:
            return Convene(actor=view.party, dispute=number)
        kept = self.cache.publish({REASON: reason[:REASON_MAX].encode()})
        return Rule(actor=view.party, dispute=number, fault=fault, reason=kept)

    def _waits(self, turn: Turn) -> bool:
        """Whether to wait for the challenger to name an element; not if the files cannot be read."""
        try:
            return self.waits(self.cache.answered(turn.view, turn.number))
        except TallyError:
            return False


# A member of committees: judges the disputes it was drawn for, commits to a stored vote, and discloses it.


@dataclass
class CommitteeMember:
    """Votes for what its judge finds; if the judge does not decide, it votes that nobody is at fault.

    Vote and salt are on disk before the commitment is made. A member that lost them could not disclose its vote, and
    would be fined.
    """

    cache: BoardCache
    workspace: Workspace
    judge: Judge

    def enlistment(self, view: GameView) -> Iterator[PartyTask]:
        """The stake, where the rules list this party and it has none."""
        member = view.state.members.get(view.party)
        if view.party in view.rules.members and (member is None or not member.stake):
            enlist = Enlist(actor=view.party, value=view.rules.stake)
            yield PartyTask("enlist", None, lambda: enlist, kept=True, single=True)

    def votes(self, turn: Turn) -> Iterator[PartyTask]:
        """The commitment to a vote, once."""
        sitting = turn.dispute.rounds[-1]
        has_voted = bool(sitting.commitments[sitting.drawn.index(turn.view.party)])
        if not has_voted and turn.seconds > 0:
            yield task_of(turn, partial(self._commit, turn), len(turn.dispute.rounds), kept=False)

    def disclosures(self, turn: Turn) -> Iterator[PartyTask]:
        """The vote that was committed to, once the rules take it."""
        sitting, stored = turn.dispute.rounds[-1], self._stored_vote(turn)
        seat = sitting.drawn.index(turn.view.party)
        if stored and sitting.commitments[seat] and sitting.votes[seat] is None:
            vote, salt = stored
            move = Disclose(actor=turn.view.party, dispute=turn.number, vote=vote, salt=salt)
            if turn.view.allows(move):
                yield task_of(turn, lambda: move, len(turn.dispute.rounds), kept=False)

    def _commit(self, turn: Turn) -> Move:
        stored = self._stored_vote(turn)
        if stored is None:
            stored = self._judged(turn), secrets.token_hex(32)
            self.workspace.put_note(self._note(turn), {"salt": stored[1], "vote": stored[0].value})
        sitting, party = len(turn.dispute.rounds) - 1, turn.view.party
        hidden = commitment(turn.number, sitting, party, *stored)
        return Vote(actor=party, dispute=turn.number, commitment=hidden)

    def _judged(self, turn: Turn) -> Fault:
        nonces = [entry.move.nonce for entry in turn.view.moves.get(turn.number, ()) if isinstance(entry.move, Draw)]
        is_last_try = is_nearly_over(turn.seconds, turn.view.rules.vote_window)
        return find(turn, self.cache, self.judge, is_last_try, nonces[-1])[0] or Fault.NOBODY

    def _stored_vote(self, turn: Turn) -> tuple[Fault, str] | None:
        """The vote and the salt of its commitment."""
        noted = self.workspace.note(self._note(turn))
        return None if noted is None else (Fault(str(noted.get("vote"))), str(noted.get("salt")))

    def _note(self, turn: Turn) -> str:
        return f"votes/{turn.name}-{len(turn.dispute.rounds)}"


# A party that a committee found at fault appeals to a larger one, while the rules have one.


def appeals(turn: Turn) -> Iterator[PartyTask]:
    """An appeal of a finding against this party; not one that nobody is at fault, which returns the bonds."""
    view, dispute = turn.view, turn.dispute
    price = view.rules.appeal_bond + view.rules.vote_fee * next_seats(dispute)
    move = Appeal(actor=view.party, dispute=turn.number, value=price)
    if view.allows(move):
        yield task_of(turn, lambda: move, len(dispute.rounds), single=True)
