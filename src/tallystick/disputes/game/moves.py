"""The moves: every request to a coordinator, as data.

Each move names its actor; moves that pay carry the amount as `value`. Moves inside a bisection carry `turn`, the number
of moves of that dispute so far. So a move that is repeated after a crash or a reorganisation of the chain is refused,
and never applied twice. Hashes are written as 64 hexadecimal digits.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from tallystick.core.canonical_json import decode
from tallystick.core.documents import Count, DigestText, Document, explain
from tallystick.core.errors import MalformedError
from tallystick.disputes.game.state import ELEMENT_MAX, LEAVES_MAX, PROOF_MAX, RESULT_MAX, WAYS_MAX, Money, Party
from tallystick.verdicts.verdict import Fault

MOVE_BYTES_MAX: Final = 1 << 18
HashText = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Proof = Annotated[tuple[HashText, ...], Field(max_length=PROOF_MAX)]
Leaves = Annotated[int, Field(ge=1, le=LEAVES_MAX)]
Place = Annotated[int, Field(ge=0, le=LEAVES_MAX)]
FaultText = Annotated[Fault, Field(strict=False)]


class Act(Document):
    """The base of all moves; `pays` says whether the move carries a `value`."""

    pays: ClassVar[bool] = False
    actor: Party


class DisputeAct(Act):
    """The base of moves inside a dispute, by its number."""

    dispute: Count


class TurnAct(DisputeAct):
    """The base of moves inside a bisection; `turn` counts the moves of the dispute so far."""

    turn: Count


class Cut(Document):
    """The leaf at the end of a child, with the proof of its place in the tree."""

    leaf: HashText
    proof: Proof


class Post(Act):
    """Claim that an honest run gives the tree `root` of `size` leaves: records, or operators if `levels` is 1."""

    pays: ClassVar[bool] = True
    kind: Literal["post"] = "post"
    value: Money
    root: HashText
    size: Leaves
    levels: Literal[1, 2] = 2
    statement: DigestText
    seal: HashText


class Contest(Act):
    """Contest leaves [low, high) of a claim: the parties agree before them and disagree after them."""

    pays: ClassVar[bool] = True
    kind: Literal["contest"] = "contest"
    value: Money
    claim: Count
    low: Place
    high: Place


class Partition(TurnAct):
    """Open the leaves at the ends of all children but the last; `data` holds the values that cross the cuts."""

    kind: Literal["partition"] = "partition"
    cuts: Annotated[tuple[Cut, ...], Field(min_length=1, max_length=WAYS_MAX - 1)]
    data: DigestText


class Choose(TurnAct):
    """Name the first child whose inputs agree and whose outputs leave the tolerance."""

    kind: Literal["choose"] = "choose"
    child: Annotated[int, Field(ge=0, lt=WAYS_MAX)]


class Protest(TurnAct):
    """Object, instead of choosing: the prover's files at the board are inconsistent, or its errors are aligned."""

    kind: Literal["protest"] = "protest"
    ground: Literal["structure", "budget"] = "structure"


class Descend(TurnAct):
    """Open the last record, and name the finer tree of the operators below it."""

    kind: Literal["descend"] = "descend"
    leaf: HashText
    proof: Proof
    root: HashText
    size: Leaves
    data: DigestText


class Reveal(TurnAct):
    """Open the last leaf; `data` holds the operator with the values that it read and gave."""

    kind: Literal["reveal"] = "reveal"
    leaf: HashText
    proof: Proof
    data: DigestText


class Pinpoint(DisputeAct):
    """Name the wrong element of the opened operator; the last one counts, until a committee is drawn.

    `result` is the number of a result of the operator, as in references to results (`n12` is 0, `n12.1` is 1).
    `element` is a flat place in it, in row-major order.
    """

    kind: Literal["pinpoint"] = "pinpoint"
    result: Annotated[int, Field(ge=0, le=RESULT_MAX)]
    element: Annotated[int, Field(ge=0, le=ELEMENT_MAX)]


class Concede(DisputeAct):
    """Give up the dispute and lose it."""

    kind: Literal["concede"] = "concede"


class Timeout(DisputeAct):
    """Report that the party to move has run out of time, or that the nonce of a draw did not come in time."""

    kind: Literal["timeout"] = "timeout"


class Rule(DisputeAct):
    """Rule on the dispute as the referee, with the digest of the reasons."""

    kind: Literal["rule"] = "rule"
    fault: FaultText
    reason: DigestText


class RecordForm(Document):
    """An operator record as its parts, from which its canonical bytes are rebuilt."""

    node: Count
    operator: Annotated[str, Field(pattern=r"^[a-z]+(\.[A-Za-z0-9_]+)+$", max_length=128)]
    inputs: Annotated[tuple[tuple[str, DigestText], ...], Field(max_length=16)]
    outputs: Annotated[tuple[tuple[str, DigestText], ...], Field(max_length=4)]


class TensorForm(Document):
    """A small tensor as its parts; `data` is one chunk of at most 4,096 bytes, in hexadecimal digits."""

    dtype: Literal["F32", "F64"]
    shape: Annotated[tuple[Count, ...], Field(max_length=8)]
    data: Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$", max_length=8192)]


class ValueWriter(Document):
    """The leaf that gave a value, and its place."""

    record: RecordForm
    index: Place
    proof: Proof


class Evidence(Document):
    """Evidence that anybody can check within a few hundred operations (`cheap`)."""

    ground: Literal["edge", "cast", "product"]
    record: RecordForm
    writer: ValueWriter | None = None
    tensors: Annotated[tuple[TensorForm, ...], Field(max_length=3)] = ()
    element: Count = 0


class Prove(DisputeAct):
    """Convict the prover by evidence that every coordinator checks itself."""

    kind: Literal["prove"] = "prove"
    evidence: Evidence


class Convene(DisputeAct):
    """Call a committee."""

    kind: Literal["convene"] = "convene"


class Draw(DisputeAct):
    """Draw the committee by a nonce that was made after the committee was called."""

    kind: Literal["draw"] = "draw"
    nonce: HashText


class Vote(DisputeAct):
    """Commit to a vote as a member (`committee.commitment`)."""

    kind: Literal["vote"] = "vote"
    commitment: HashText


class Disclose(DisputeAct):
    """Show the vote that was committed to, with its salt."""

    kind: Literal["disclose"] = "disclose"
    vote: FaultText
    salt: HashText


class Tally(DisputeAct):
    """Count the votes."""

    kind: Literal["tally"] = "tally"


class Appeal(DisputeAct):
    """Ask a larger committee; pays its fees, and a bond that is lost if the finding stays the same."""

    pays: ClassVar[bool] = True
    kind: Literal["appeal"] = "appeal"
    value: Money


class Settle(DisputeAct):
    """Let the votes take effect after the time to appeal."""

    kind: Literal["settle"] = "settle"


class Dismiss(DisputeAct):
    """Close a dispute over a claim that another dispute slashed; the challenger gets everything back."""

    kind: Literal["dismiss"] = "dismiss"


class Unseal(DisputeAct):
    """Show, as the planter, that the claim of a dispute was planted, and what the right answer was."""

    kind: Literal["unseal"] = "unseal"
    answer: FaultText
    salt: HashText


class Finalise(Act):
    """Close a claim whose window is over; its bond goes back."""

    kind: Literal["finalise"] = "finalise"
    claim: Count


class Enlist(Act):
    """Stake as a member, to be drawn for committees."""

    pays: ClassVar[bool] = True
    kind: Literal["enlist"] = "enlist"
    value: Money


class Retire(Act):
    """Leave the pool of members, and get the stake back."""

    kind: Literal["retire"] = "retire"


class Withdraw(Act):
    """Take out what is owed, after its delay."""

    kind: Literal["withdraw"] = "withdraw"


class Pause(Act):
    """Stop game time, for at most `pause_max` seconds."""

    kind: Literal["pause"] = "pause"


class Resume(Act):
    """Let game time go on."""

    kind: Literal["resume"] = "resume"


BisectionMove: TypeAlias = Partition | Choose | Protest | Descend | Reveal
Move: TypeAlias = (
    Post
    | Contest
    | Partition
    | Choose
    | Protest
    | Descend
    | Reveal
    | Pinpoint
    | Concede
    | Timeout
    | Rule
    | Prove
    | Convene
    | Draw
    | Vote
    | Disclose
    | Tally
    | Appeal
    | Settle
    | Dismiss
    | Unseal
    | Finalise
    | Enlist
    | Retire
    | Withdraw
    | Pause
    | Resume
)
_MOVE: TypeAdapter[Move] = TypeAdapter(Annotated[Move, Field(discriminator="kind")])


def read_move(line: bytes, what: str = "move") -> Move:
    """Read one canonical move; raises `MalformedError` naming `what` and the field."""
    decode(line, what, bytes_max=MOVE_BYTES_MAX)
    try:
        move = _MOVE.validate_json(line)
    except ValidationError as error:
        raise MalformedError(f"{what}: {explain(error)}") from None
    if move.to_bytes() != line:
        raise MalformedError(f"{what}: not in canonical form (a null or an equivalent spelling)")
    return move


def value_of(move: Move) -> int:
    """The amount that a move pays, 0 for most."""
    return move.value if isinstance(move, Post | Contest | Appeal | Enlist) else 0
