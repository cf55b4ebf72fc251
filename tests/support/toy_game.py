"""The smallest workload that can be disputed: a counter that adds one, `width` times a step, for `steps` steps.

Record k of a run says what the counter shows after step k, and an operator what it showed before and after one
addition. Provers that cheat add something else at one place and go on honestly from there, as a swapped layer does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallystick.core.canonical_json import Json, decode, encode
from tallystick.core.digests import LeafHashes, leaf_hash, prove_inclusion, tree_root
from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.core.files import read_document
from tallystick.disputes.game.moves import Cut
from tallystick.disputes.game.protocols import Descent, DisputeView, Doubt, Ground, OpenedLeaves
from tallystick.disputes.game.state import Dispute, PostedClaim
from tallystick.verdicts.verdict import Fault

COUNT, RECORDS, OPERATORS, RECORD, OPERATOR = "count.json", "records.json", "operators.json", "record.json", "at.json"
NUMBER_MAX: Final = 1 << 20
PLACES_MAX: Final = 1 << 16


@dataclass(frozen=True)
class Cheat:
    """One addition of a run that adds `1 + by`."""

    step: int
    operator: int
    by: int = 1


@dataclass(frozen=True)
class Counting:
    """What is counted: from `start`, `width` additions in each of `steps` steps; the answers of a prover for it."""

    steps: int = 20
    width: int = 9
    start: int = 0
    cheat: Cheat | None = None

    def after(self, step: int, additions: int) -> int:
        """What the counter shows after so many additions of a step."""
        shown = self.start + step * self.width + additions
        cheat = self.cheat
        return shown + cheat.by if cheat and (step, additions) > (cheat.step, cheat.operator) else shown

    def records(self) -> list[bytes]:
        """The records of the run, one for each step."""
        return [encode({"after": self.after(step, self.width), "step": step}) for step in range(self.steps)]

    def operators(self, step: int) -> list[bytes]:
        """The operators of one step."""
        return [addition(self.after(step, each), self.after(step, each + 1)) for each in range(self.width)]

    def leaves(self, levels: int) -> list[bytes]:
        """The leaves of a claim: records, or in one-round mode all operators of the run."""
        return self.records() if levels == 2 else [each for step in range(self.steps) for each in self.operators(step)]

    def root(self, levels: int = 2) -> str:
        """The root of a claim."""
        return tree_root([leaf_hash(each) for each in self.leaves(levels)]).hex()

    def statement(self, levels: int = 2) -> Mapping[str, bytes]:
        """The files of a claim."""
        plan = encode({"start": self.start, "steps": self.steps, "width": self.width})
        return {COUNT: plan, RECORDS: encode([decode(each, RECORDS) for each in self.leaves(levels)])}


@dataclass(frozen=True)
class CountingTrace:
    """A prover's answers, whatever it counted."""

    counting: Counting
    levels: int = 2

    def partition(self, dispute: Dispute, places: Sequence[int]) -> OpenedLeaves:
        """The leaves at `places`, and the same as files."""
        leaves = self._leaves(dispute)
        files = {f"{place}.json": leaves[place] for place in places}
        return OpenedLeaves(tuple(cut(leaves, place) for place in places), files)

    def descend(self, dispute: Dispute) -> Descent:
        """The operators of the step that is left."""
        records, operators = self.counting.records(), self.counting.operators(dispute.low)
        root = tree_root([leaf_hash(each) for each in operators]).hex()
        listed = encode([decode(each, OPERATORS) for each in operators])
        files = {RECORD: records[dispute.low], OPERATORS: listed}
        return Descent(cut(records, dispute.low), root, len(operators), files)

    def reveal(self, dispute: Dispute) -> OpenedLeaves:
        """The addition that is left."""
        leaves = self._leaves(dispute)
        return OpenedLeaves((cut(leaves, dispute.low),), {OPERATOR: leaves[dispute.low]})

    def _leaves(self, dispute: Dispute) -> list[bytes]:
        if dispute.level == self.levels:
            return self.counting.leaves(self.levels)
        steps = (self.counting.operators(step) for step in range(self.counting.steps))
        return next(each for each in steps if tree_root([leaf_hash(leaf) for leaf in each]).hex() == dispute.root)


@dataclass(frozen=True)
class CountingDoubter:
    """A challenger that counts by itself, in each child from what the prover showed at its beginning."""

    def unseen(self, claim: PostedClaim, statement: Path) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def doubt(self, claim: PostedClaim, statement: Path) -> Doubt | None:
        """Everything, if any record is not what honest counting gives."""
        found = _records(claim, statement)
        expected = _plan(statement).leaves(claim.levels)
        return None if found == expected else Doubt(0, claim.size, "the counter shows something else")

    def choose(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> int | Ground:
        """The first child at whose end the counter does not show what was added since its beginning."""
        leaves = _leaves_under(answered)
        for number, (low, high) in enumerate(children[:-1]):
            place = high - 1
            found = _read(answered.turns[-1] / f"{place}.json")
            if found != leaves[place] or leaf_hash(found).hex() != answered.dispute.cuts[number]:
                return "structure"
            if not _adds_up(answered, leaves, low, high):
                return number
        return len(children) - 1


@dataclass(frozen=True)
class CountingJudge:
    """A referee or member that adds one; one that is blind cannot tell, a bribed one says what it was paid for."""

    is_blind: bool = False
    bribed: Fault | None = None

    def rule(self, answered: DisputeView, nonce: str | None = None) -> tuple[Fault | None, str]:
        """The prover is at fault where its files do not hang together, or its addition does not add one."""
        if self.is_blind or self.bribed:
            return self.bribed, "no addition was looked at"
        dispute = answered.dispute
        try:
            leaves = _leaves_under(answered)
        except (MalformedError, ProofError) as error:
            return Fault.PROVER, str(error)
        if dispute.ground != "leaf":
            return (Fault.CHALLENGER, "everything is consistent") if _shown(answered, leaves) else _broken()
        if leaf_hash(leaves[dispute.low]).hex() != dispute.leaf:
            return _broken()
        is_right = _adds_up(answered, leaves, dispute.low, dispute.high)
        return (Fault.CHALLENGER, "one was added") if is_right else (Fault.PROVER, "something else was added")


def addition(before: int, after: int) -> bytes:
    """The record of one addition."""
    return encode({"after": after, "before": before})


def cut(leaves: Sequence[bytes], place: int) -> Cut:
    """A leaf with the proof of its place."""
    hashes = [leaf_hash(each) for each in leaves]
    proof = prove_inclusion(LeafHashes(hashes), place, len(hashes))
    return Cut(leaf=hashes[place].hex(), proof=tuple(each.hex() for each in proof))


def _leaves_under(answered: DisputeView) -> list[bytes]:
    """The leaves of the tree that is being cut, after checking that they hang together with those above."""
    claim, dispute = answered.claim, answered.dispute
    records = _records(claim, answered.statement)
    if dispute.level == claim.levels:
        return records
    descent = next((each for each in answered.turns if (each / OPERATORS).exists()), None)
    if descent is None:
        raise ProofError("no operators were named")
    operators = [encode(each) for each in _list(descent / OPERATORS)]
    record = _read(descent / RECORD)
    is_tree = tree_root([leaf_hash(each) for each in operators]).hex() == dispute.root
    _require(is_tree and len(operators) == dispute.size, "other operators were named")
    _require(record in records, "another record was opened")
    step = records.index(record)
    shown = [_start(answered, records, step), *(_number(each, "after") for each in operators)]
    begun = [_number(each, "before") for each in operators]
    _require(begun == shown[:-1] and shown[-1] == _number(record, "after"), "the additions do not join")
    return operators


def _adds_up(answered: DisputeView, leaves: Sequence[bytes], low: int, high: int) -> bool:
    """Whether leaves [low, high) add one for each addition to what was shown before them."""
    plan = _plan(answered.statement)
    is_record = answered.dispute.level == 2
    before = _start(answered, leaves, low) if is_record else _number(leaves[low], "before")
    return _number(leaves[high - 1], "after") == before + (high - low) * (plan.width if is_record else 1)


def _start(answered: DisputeView, records: Sequence[bytes], step: int) -> int:
    return _number(records[step - 1], "after") if step else _plan(answered.statement).start


def _shown(answered: DisputeView, leaves: Sequence[bytes]) -> bool:
    """Whether the files of the last partition are the leaves that it named."""
    hashes = {leaf_hash(leaf).hex(): f"{place}.json" for place, leaf in enumerate(leaves)}
    folder = answered.turns[-1]
    return all(
        each in hashes and leaf_hash(_read(folder / hashes[each])).hex() == each for each in answered.dispute.cuts
    )


def _broken() -> tuple[Fault, str]:
    return Fault.PROVER, "what lies at the board is not what was named"


def _records(claim: PostedClaim, statement: Path) -> list[bytes]:
    records = [encode(each) for each in _list(statement / RECORDS)]
    is_tree = tree_root([leaf_hash(each) for each in records]).hex() == claim.root
    _require(is_tree and len(records) == claim.size, "the statement holds other records")
    return records


def _plan(statement: Path) -> Counting:
    data = _read(statement / COUNT)
    steps, width = _number(data, "steps"), _number(data, "width")
    _require(steps * width <= PLACES_MAX, "too much is counted")
    return Counting(steps=steps, width=width, start=_number(data, "start"))


def _list(path: Path) -> list[Json]:
    found = decode(_read(path), path.name)
    if not isinstance(found, list) or not 0 < len(found) <= PLACES_MAX:
        raise MalformedError(f"{path.name}: no list of records")
    return found


def _number(data: bytes, name: str) -> int:
    found = decode(data, name)
    value = found.get(name) if isinstance(found, dict) else None
    if not isinstance(value, int) or not 0 <= value < NUMBER_MAX:
        raise MalformedError(f"{name}: no small number")
    return value


def _read(path: Path) -> bytes:
    """A file that the prover had to put there."""
    try:
        return read_document(path)
    except UnavailableError as error:
        raise ProofError(str(error)) from None


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ProofError(sentence)
