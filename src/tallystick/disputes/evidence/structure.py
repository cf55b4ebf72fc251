"""Whether the prover's last answer is consistent and belongs to its claim: the ground of a protest.

The records of a partition have to be those under its leaves. The operators have to follow from one another under the
posted root, and to belong to the opened record and to the statement of the claim. Everything that had to be opened has
to be there.
"""

from __future__ import annotations

from tallystick.commitments.tree import leaf_hash
from tallystick.disputes.evidence.claim_statement import ClaimStatement, OpenQuestion
from tallystick.disputes.evidence.records import record_file
from tallystick.disputes.evidence.view import OpeningView, places_of, supplied, view_of
from tallystick.disputes.game.protocols import DisputeView
from tallystick.documents.files import read_document
from tallystick.judging.findings import require


def check_turn(answered: DisputeView, statement: ClaimStatement) -> tuple[OpenQuestion, ...]:
    """Raise `ProofError` unless the last answer is consistent; returns what only a replay can decide.

    Raises `UnavailableError` if no limits are known for the comparison of states.
    """
    if answered.dispute.level > 1:
        check_records(answered)
        return statement.questions_of_records
    view = view_of(answered)
    questions = check_descent(answered, statement, view)
    view.check_ends()
    view.check_cuts(answered.dispute)
    return questions


def check_descent(answered: DisputeView, statement: ClaimStatement, view: OpeningView) -> tuple[OpenQuestion, ...]:
    """As `check_turn`, but only for the operators as a whole; that values are opened is seen, and their bytes not read.

    Who runs children reads each value before using it, and `check_turn` says who is at fault if its bytes are others.
    """
    view.check(answered.dispute)
    if answered.descended is not None:
        leaf = leaf_hash(view.opening.record.encode()).hex()
        require(leaf == answered.descended.leaf, "the opening is about another record than was opened")
    view.require_ends()
    return statement.check(view)


def check_records(answered: DisputeView) -> None:
    """Raise `ProofError` unless the records of the last partition are there, under the posted leaves."""
    dispute = answered.dispute
    require(bool(answered.turns), "no records were opened")
    for place, leaf in zip(places_of(dispute), dispute.cuts, strict=True):
        with supplied():
            line = read_document(answered.turns[-1] / record_file(place))
        require(leaf_hash(line).hex() == leaf, f"record {place} is not the one under the posted leaf")
