"""The game: one table of who may make which move in which phase, down to the ruling at the leaf."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from tallystick.core.digests import Digest, Hash, check_inclusion, leaf_hash
from tallystick.core.errors import ProofError, RuleError
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor
from tallystick.disputes.game import bisection, context, voting
from tallystick.disputes.game.context import (
    Context,
    allow,
    game_time,
    mover,
    receive,
    settle,
    time_left,
    with_expired_pause_lifted,
)
from tallystick.disputes.game.moves import (
    Convene,
    Evidence,
    Move,
    Pinpoint,
    Prove,
    RecordForm,
    Rule,
    TensorForm,
    ValueWriter,
    value_of,
)
from tallystick.disputes.game.state import Dispute, Phase, Rules, State, Status
from tallystick.disputes.game.voting import appeal_price, seats
from tallystick.formats.records import OperatorRecord
from tallystick.verdicts.verdict import Fault

# Checks of one operator that a contract can make itself: they can convict the prover, but never clear it.
#
# Three kinds of evidence, all about the leaf that the prover opened:
#
# * edge: the operator reads a value with other bytes than its writer gave, or its writer comes later in the order;
# * cast: a number was converted to F32 or F64, and the result is off by more than two units in the last place;
# * product: a product of two F32 numbers is off by more than two units in the last place.
#
# As in the contract, records are rebuilt from their parts into canonical JSON (RFC 8785), and numbers are compared as
# integers. Subnormal numbers, infinities and NaN are left to a committee.

CAST: Final = "aten._to_copy.default"
PRODUCT: Final = "aten.mul.Tensor"
NAME_MAX: Final = 1024
ULPS: Final = 2
"""Units in the last place that are allowed here: more than any bound in `operators` allows."""


class Float(NamedTuple):
    """A normal binary number: (−1)^negative · mantissa · 2^exponent, with a mantissa of full width."""

    negative: bool
    mantissa: int
    exponent: int


class FloatLayout(NamedTuple):
    """Bytes, fraction bits and exponent bias of a binary format (IEEE 754-2019 §3.4)."""

    bytes: int
    fraction: int
    bias: int


LAYOUTS: Final = {"F32": FloatLayout(4, 23, 127), "F64": FloatLayout(8, 52, 1023)}


def convict(dispute: Dispute, evidence: Evidence) -> None:
    """Raise `RuleError` with code `evidence` unless the evidence shows that the opened leaf cannot be honest."""
    _require(_leaf(evidence.record) == dispute.leaf, "this is not the record that was opened")
    is_lean = not evidence.tensors if evidence.ground == "edge" else evidence.writer is None
    _require(is_lean, "the evidence holds parts that this ground does not need")
    shows = {"edge": _is_a_broken_edge, "cast": _is_a_wrong_cast, "product": _is_a_wrong_product}
    _require(shows[evidence.ground](dispute, evidence), "the evidence does not show a fault")


def record_bytes(form: RecordForm) -> bytes:
    """The canonical bytes of a record; raises `RuleError` if a reference needs escaping, is too long or comes twice."""
    for name, _ in (*form.inputs, *form.outputs):
        _require(name.isascii() and name.isprintable() and not {'"', "\\"} & set(name), "a name needs escaping")
        _require(1 <= len(name) <= NAME_MAX, "a name is empty or too long for a reference")
    inputs, outputs = dict(form.inputs), dict(form.outputs)
    _require(len(inputs) == len(form.inputs) and len(outputs) == len(form.outputs), "a name stands twice")
    return OperatorRecord(node=form.node, operator=form.operator, inputs=inputs, outputs=outputs).to_bytes()


def _is_a_broken_edge(dispute: Dispute, evidence: Evidence) -> bool:
    writer = evidence.writer
    _require(writer is not None, "the record of the operator that gave the value is missing")
    assert writer is not None
    _stands(dispute, writer)
    given, read = dict(writer.record.outputs), dict(evidence.record.inputs)
    return any(given[name] != read[name] or writer.index >= dispute.low for name in given.keys() & read.keys())


def _is_a_wrong_cast(dispute: Dispute, evidence: Evidence) -> bool:
    _require(evidence.record.operator == CAST and len(evidence.tensors) == 2, "this is no conversion of one tensor")
    _are_the_values(evidence, evidence.tensors[:1], evidence.tensors[1:])
    source, result = (_number(each, evidence.element) for each in evidence.tensors)
    return _is_far(source, result, LAYOUTS[evidence.tensors[1].dtype])


def _is_a_wrong_product(dispute: Dispute, evidence: Evidence) -> bool:
    _require(evidence.record.operator == PRODUCT and len(evidence.tensors) == 3, "this is no product of two tensors")
    _require(all(each.dtype == "F32" for each in evidence.tensors), "the numbers are not F32")
    _are_the_values(evidence, evidence.tensors[:2], evidence.tensors[2:])
    left, right, result = (_number(each, _place(each, evidence)) for each in evidence.tensors)
    exact = Float(left.negative != right.negative, left.mantissa * right.mantissa, left.exponent + right.exponent)
    return _is_far(exact, result, LAYOUTS["F32"])


def _are_the_values(evidence: Evidence, read: tuple[TensorForm, ...], given: tuple[TensorForm, ...]) -> None:
    """Refuse unless the record names exactly these tensors, in the order of its names."""
    record = evidence.record
    _require(tuple(map(_digest, read)) == tuple(name for _, name in record.inputs), "other values were read")
    _require(tuple(map(_digest, given)) == tuple(name for _, name in record.outputs), "other values were given")


def _place(tensor: TensorForm, evidence: Evidence) -> int:
    """The flat place of the element to compare: the named one, or 0 in a tensor of shape ()."""
    result = evidence.tensors[-1]
    _require(tensor.shape in (result.shape, ()), "the shapes are neither equal nor that of one number")
    return 0 if tensor.shape == () else evidence.element


def _is_far(exact: Float, claimed: Float, layout: FloatLayout) -> bool:
    """Whether `found` differs from `exact` by more than `ULPS` units in its last place."""
    width = exact.mantissa.bit_length() - 1 + exact.exponent
    normal = 1 - layout.bias < width < layout.bias
    _require(normal and abs(exact.exponent - claimed.exponent) <= 128, "the numbers are too far apart for integers")
    if exact.negative != claimed.negative:
        return True
    low = min(exact.exponent, claimed.exponent)
    distance = abs((exact.mantissa << exact.exponent - low) - (claimed.mantissa << claimed.exponent - low))
    return distance > ULPS << claimed.exponent - low


def _number(tensor: TensorForm, element: int) -> Float:
    layout, data = LAYOUTS[tensor.dtype], bytes.fromhex(tensor.data)
    _require((element + 1) * layout.bytes <= len(data), "there is no such element")
    word = int.from_bytes(data[element * layout.bytes : (element + 1) * layout.bytes], "little")
    exponent = word >> layout.fraction & 2 * layout.bias + 1
    _require(0 < exponent < 2 * layout.bias + 1, "the number is zero, subnormal, infinite or NaN")
    mantissa = word & (1 << layout.fraction) - 1 | 1 << layout.fraction
    return Float(bool(word >> 8 * layout.bytes - 1), mantissa, exponent - layout.bias - layout.fraction)


def _digest(form: TensorForm) -> Digest:
    count, data = 1, bytes.fromhex(form.data)
    for side in form.shape:
        count *= side
    _require(count * LAYOUTS[form.dtype].bytes == len(data) > 0, "the bytes are not as many as the shape needs")
    return tensor_digest(Tensor(form.dtype, form.shape, data))


def _stands(dispute: Dispute, writer: ValueWriter) -> None:
    leaf, root = Hash(bytes.fromhex(_leaf(writer.record))), Hash(bytes.fromhex(dispute.root))
    try:
        check_inclusion([Hash(bytes.fromhex(each)) for each in writer.proof], leaf, writer.index, dispute.size, root)
    except ProofError as error:
        raise RuleError("evidence", str(error)) from None


def _leaf(form: RecordForm) -> str:
    return leaf_hash(record_bytes(form)).hex()


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise RuleError("evidence", sentence)


# From the opened leaf to a ruling: the referee, a check that anybody can make, or a committee.


def rule(at: Context, move: Rule) -> State:
    """The referee's ruling ends the dispute; if the referee cannot decide, it convenes a committee instead."""
    return settle(at, move.dispute, move.fault)


def pinpoint(at: Context, move: Pinpoint) -> State:
    """The challenger names one wrong element of the opened operator; it may replace it by another."""
    dispute = at.dispute(move.dispute)
    allow(_is_operator(dispute), "level", "only an operator that was opened has elements")
    return at.change_dispute(move.dispute, element=(move.result, move.element)).state


def prove(at: Context, move: Prove) -> State:
    """Evidence that convicts the prover ends the dispute; other evidence is refused."""
    dispute = at.dispute(move.dispute)
    allow(_is_operator(dispute), "level", "evidence is about an operator that was opened")
    convict(dispute, move.evidence)
    return settle(at, move.dispute, Fault.PROVER)


def convene(at: Context, move: Convene) -> State:
    """The referee, or anybody after its window, calls a committee; without members the dispute ends undecided."""
    dispute = at.dispute(move.dispute)
    in_time = at.time >= dispute.deadline or move.actor == at.rules.referee
    allow(in_time, "early", "the referee's window is still open")
    seated = seats(at.state, dispute, at.rules.committee)
    if not seated:
        return settle(at, move.dispute, Fault.NOBODY)
    deadline = at.time + at.rules.vote_window
    return at.change_dispute(move.dispute, phase=Phase.DRAWING, seats=seated, deadline=deadline).state


def _is_operator(dispute: Dispute) -> bool:
    """Whether the ruling is about a revealed operator, and not about a record or a protest."""
    return dispute.level == 1 and dispute.ground == "leaf"


# The game: one table of who may make which move in which phase, and two functions that read it.
#
# Every rule refuses a move with a code, which is the same on every coordinator. The rules are applied in this order:
# pause, existence, whether the dispute is over or moot, phase, actor, turn, clock, payment; then those of the move.


class Who(Enum):
    """Who may make a move."""

    ANYBODY = "anybody"
    PROVER = "prover"
    CHALLENGER = "challenger"
    PARTY = "party"
    REFEREE = "referee"
    BEACON = "beacon"
    PLANTER = "planter"
    GUARDIAN = "guardian"


@dataclass(frozen=True)
class Transition:
    """One line of the table: who may move, in which phases, and the effect; timed moves need time on the clock."""

    who: Who
    phases: frozenset[Phase]
    happens: Callable[[Context, Any], State]
    is_timed: bool = False


def _in(*phases: Phase) -> frozenset[Phase]:
    return frozenset(phases)


P, BISECTING = Phase, _in(Phase.PARTITION, Phase.CHOOSE, Phase.LEAF)

# fmt: off
DISPUTE_MOVES: Final[dict[str, Transition]] = {
    "partition": Transition(Who.PROVER,     _in(P.PARTITION),                bisection.partition, is_timed=True),
    "choose":    Transition(Who.CHALLENGER, _in(P.CHOOSE),                   bisection.choose,    is_timed=True),
    "protest":   Transition(Who.CHALLENGER, _in(P.CHOOSE),                   bisection.protest,   is_timed=True),
    "descend":   Transition(Who.PROVER,     _in(P.LEAF),                     bisection.descend,   is_timed=True),
    "reveal":    Transition(Who.PROVER,     _in(P.LEAF),                     bisection.reveal,    is_timed=True),
    "pinpoint":  Transition(Who.CHALLENGER, _in(P.RULING, P.DRAWING),        pinpoint),
    "concede":   Transition(Who.PARTY,      BISECTING | _in(P.RULING),       bisection.concede),
    "timeout":   Transition(Who.ANYBODY,    BISECTING | _in(P.DRAWING),      bisection.timeout),
    "rule":      Transition(Who.REFEREE,    _in(P.RULING),                   rule),
    "prove":     Transition(Who.ANYBODY,    _in(P.RULING),                   prove),
    "convene":   Transition(Who.ANYBODY,    _in(P.RULING),                   convene),
    "draw":      Transition(Who.BEACON,     _in(P.DRAWING),                  voting.draw),
    "vote":      Transition(Who.ANYBODY,    _in(P.COMMITTING),               voting.vote),
    "disclose":  Transition(Who.ANYBODY,    _in(P.COMMITTING, P.REVEALING),  voting.disclose),
    "tally":     Transition(Who.ANYBODY,    _in(P.COMMITTING, P.REVEALING),  voting.tally),
    "appeal":    Transition(Who.PARTY,      _in(P.APPEALABLE),               voting.appeal),
    "settle":    Transition(Who.ANYBODY,    _in(P.APPEALABLE),               voting.settle),
}
CLOSING_MOVES: Final[dict[str, Transition]] = {
    "dismiss":   Transition(Who.ANYBODY,    frozenset(Phase) - {P.SETTLED},  context.dismiss),
    "unseal":    Transition(Who.PLANTER,    _in(P.SETTLED),                  voting.unseal),
}
OTHER_MOVES: Final[dict[str, Transition]] = {
    "post":      Transition(Who.ANYBODY,    frozenset(),                     bisection.post),
    "contest":   Transition(Who.ANYBODY,    frozenset(),                     bisection.contest),
    "finalise":  Transition(Who.ANYBODY,    frozenset(),                     bisection.finalise),
    "enlist":    Transition(Who.ANYBODY,    frozenset(),                     voting.enlist),
    "retire":    Transition(Who.ANYBODY,    frozenset(),                     voting.retire),
    "withdraw":  Transition(Who.ANYBODY,    frozenset(),                     context.withdraw),
    "pause":     Transition(Who.GUARDIAN,   frozenset(),                     context.pause),
    "resume":    Transition(Who.GUARDIAN,   frozenset(),                     context.resume),
}
# fmt: on
TRANSITIONS: Final = DISPUTE_MOVES | CLOSING_MOVES | OTHER_MOVES
DURING_PAUSE: Final = frozenset({"withdraw", "resume"})


def apply(state: State, move: Move, now: int) -> State:
    """The state after `move` at real time `now`, in seconds; raises `RuleError` and changes nothing."""
    state = with_expired_pause_lifted(state, now)
    running = state.pausing.since is None or move.kind in DURING_PAUSE
    allow(running, "paused", "the coordinator is paused; clocks stand still")
    at = Context(state, now, game_time(state, now))
    transition = TRANSITIONS[move.kind]
    if move.kind in OTHER_MOVES:
        _is_made_by(at, transition.who, move, None)
    else:
        _fits_the_dispute(at, transition, move)
    _pays_exactly(at, move)
    return transition.happens(at.with_state(receive(at.state, value_of(move))), move)


def next_moves(state: State, party: str, now: int) -> tuple[MoveOption, ...]:
    """The moves inside open disputes that `party` may make at `now`, each with the seconds that are left for it.

    Moves that wait for the end of a window (`convene`, `tally`, `settle`) are listed before it ends too.
    """
    state = with_expired_pause_lifted(state, now)
    if state.pausing.since is not None:
        return ()
    at = Context(state, now, game_time(state, now))
    numbers = [i for i, dispute in enumerate(state.disputes) if dispute.phase is not Phase.SETTLED]
    return tuple(option for number in numbers for option in _options(at, number, party))


@dataclass(frozen=True)
class MoveOption:
    """A kind of move that a party may make in a dispute; `seconds` are left for it, `None` if no clock runs."""

    kind: str
    dispute: int
    seconds: int | None


def _options(at: Context, number: int, party: str) -> Iterator[MoveOption]:
    dispute = at.state.disputes[number]
    claim = at.claim(dispute.claim)
    if claim.status is not Status.OPEN:
        yield MoveOption("dismiss", number, None)
        return
    left = None if mover(claim, dispute) is None else time_left(dispute, at.time)
    is_late = at.time >= dispute.deadline if left is None else left <= 0
    for kind, transition in DISPUTE_MOVES.items():
        in_time = is_late if kind == "timeout" else not (is_late and transition.is_timed)
        if dispute.phase in transition.phases and in_time and _is_one(at, transition.who, party, dispute):
            yield MoveOption(kind, number, left if transition.is_timed else None)


def _fits_the_dispute(at: Context, transition: Transition, move: Any) -> None:
    dispute = at.dispute(move.dispute)
    is_moot = at.claim(dispute.claim).status is not Status.OPEN
    if move.kind != "unseal":
        allow(dispute.phase is not Phase.SETTLED, "settled", "the dispute is over")
    if move.kind == "dismiss":
        allow(is_moot, "open", "the claim is not slashed, and the dispute goes on")
    elif move.kind != "unseal":
        allow(not is_moot, "moot", "the claim was slashed by another dispute; this one can be dismissed")
    allow(dispute.phase in transition.phases, "phase", f"no {move.kind} while the dispute is at {dispute.phase}")
    _is_made_by(at, transition.who, move, dispute)
    if transition.is_timed:
        allow(move.turn == dispute.turn, "turn", f"the dispute is at turn {dispute.turn}, not {move.turn}")
        allow(time_left(dispute, at.time) > 0, "late", "the clock of the party to move has run out")


def _is_made_by(at: Context, who: Who, move: Move, dispute: Dispute | None) -> None:
    allow(_is_one(at, who, move.actor, dispute), "actor", f"this move is for the {who.value}")


def _is_one(at: Context, who: Who, actor: str, dispute: Dispute | None) -> bool:
    """Whether `actor` is a `who`; if the rules name no beacon, anybody may bring the nonce."""
    rules = at.rules
    if who is Who.ANYBODY or (who is Who.BEACON and rules.beacon is None):
        return True
    if who in (Who.REFEREE, Who.BEACON, Who.PLANTER, Who.GUARDIAN):
        return bool(actor == getattr(rules, who.value))
    assert dispute is not None  # only moves inside a dispute are for its parties
    parties = {Who.PROVER: at.claim(dispute.claim).prover, Who.CHALLENGER: dispute.challenger}
    return actor in parties.values() if who is Who.PARTY else actor == parties[who]


def _pays_exactly(at: Context, move: Move) -> None:
    price = _price(at, move)
    allow(value_of(move) == price, "value", f"this move pays {price}, and {value_of(move)} came with it")


def _price(at: Context, move: Any) -> int:
    rules: Rules = at.rules
    prices = {"post": rules.prover_bond, "contest": rules.challenger_bond + rules.deposit, "enlist": rules.stake}
    return appeal_price(at, at.dispute(move.dispute)) if move.kind == "appeal" else prices.get(move.kind, 0)
