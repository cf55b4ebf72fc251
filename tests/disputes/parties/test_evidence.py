"""Evidence is found where a coordinator's own check convicts, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tallystick.core.digests import LeafHashes, digest, leaf_hash, tree_root
from tallystick.core.errors import ProofError
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor
from tallystick.disputes.evidence import convicting as module
from tallystick.disputes.evidence.convicting import find_evidence
from tallystick.disputes.game.game import CAST, PRODUCT
from tallystick.disputes.game.moves import Evidence
from tallystick.disputes.game.protocols import DisputeView
from tallystick.disputes.game.state import Clocks, Dispute, Phase, PostedClaim
from tallystick.formats.records import OperatorRecord
from tallystick.verdicts.leaf.bundling import WholeOpening

Arrays = dict[str, np.ndarray]
NAME = digest("blob", b"")


@dataclass
class Opened:
    """What was opened: operator records, and the values of one of them."""

    records: list[OperatorRecord]
    place: int
    values: dict[str, Tensor]

    @property
    def whole(self) -> WholeOpening:
        lines = tuple(each.to_bytes() for each in self.records)
        return WholeOpening(Path("/nowhere"), None, None, lines)  # type: ignore[arg-type]

    @property
    def operator(self) -> Opened:
        return self

    @property
    def record(self) -> OperatorRecord:
        return self.records[self.place]

    def bundle(self, place: int) -> Opened:
        assert place == self.place
        return self

    def answered(self, ground: str = "leaf", level: int = 1) -> DisputeView:
        leaves = [leaf_hash(each.to_bytes()) for each in self.records]
        root, leaf = tree_root(leaves).hex(), LeafHashes(leaves).leaves[self.place].hex()
        clocks, claim = Clocks(1, 1, 0), PostedClaim("0" * 64, root, len(leaves), 1, NAME, "0" * 64, 9, 1)
        dispute = Dispute(0, "1" * 64, level, root, len(leaves), self.place, self.place + 1, Phase.RULING, clocks, 1, 0)
        return DisputeView(claim, 0, replace(dispute, leaf=leaf, ground=ground), Path("/nowhere"))


def record(node: int, operator: str, inputs: Arrays, outputs: Arrays) -> OperatorRecord:
    def named(arrays: Arrays) -> dict[str, object]:
        return {ref: tensor_digest(Tensor.of(array)) for ref, array in arrays.items()}

    return OperatorRecord(node=node, operator=operator, inputs=named(inputs), outputs=named(outputs))  # type: ignore[arg-type]


def one(operator: str, inputs: Arrays, outputs: Arrays) -> Opened:
    values = {ref: Tensor.of(array) for ref, array in {**inputs, **outputs}.items()}
    return Opened([record(0, operator, inputs, outputs)], 0, values)


def found(opened: Opened, monkeypatch: pytest.MonkeyPatch, **changes: object) -> Evidence | None:
    monkeypatch.setattr(module, "view_of", lambda answered: opened)
    return find_evidence(opened.answered(**changes))  # type: ignore[arg-type]


def floats(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


@pytest.mark.parametrize(("result", "convicts"), [((3.0, 8.0, 16.0), True), ((3.0, 8.0, 15.0), False)])
def test_a_wrong_product(monkeypatch: pytest.MonkeyPatch, result: tuple[float, ...], convicts: bool) -> None:
    opened = one(PRODUCT, {"a": floats(1, 2, 3), "b": floats(3, 4, 5)}, {"c": floats(*result)})
    evidence = found(opened, monkeypatch)
    assert (evidence is not None) is convicts
    if evidence:
        assert (evidence.ground, evidence.element) == ("product", 2)


@pytest.mark.parametrize(("result", "convicts"), [(1.1, False), (1.2, True)])
def test_a_wrong_conversion(monkeypatch: pytest.MonkeyPatch, result: float, convicts: bool) -> None:
    opened = one(CAST, {"a": np.array([1.1])}, {"b": floats(result)})
    assert (found(opened, monkeypatch) is not None) is convicts


@pytest.mark.parametrize(("read", "convicts"), [(2.0, False), (3.0, True)])
def test_a_value_that_was_read_otherwise_than_given(
    monkeypatch: pytest.MonkeyPatch, read: float, convicts: bool
) -> None:
    records = [
        record(0, "aten.neg.default", {"a": floats(-2)}, {"b": floats(2)}),
        record(1, "aten.neg.default", {"b": floats(read)}, {"c": floats(-read)}),
    ]
    evidence = found(Opened(records, 1, {}), monkeypatch)
    assert (evidence is not None) is convicts
    if evidence:
        assert (evidence.ground, evidence.writer is not None) == ("edge", True)


@pytest.mark.parametrize(
    "arrays",
    [
        ({"a": np.ones(2000, np.float32), "b": np.ones(2000, np.float32)}, {"c": np.zeros(2000, np.float32)}),
        ({"a": floats(1e-40), "b": floats(1)}, {"c": floats(5)}),
        ({"a": floats(np.inf), "b": floats(1)}, {"c": floats(5)}),
        ({"a": np.array([1], np.int64), "b": np.array([1], np.int64)}, {"c": np.array([5], np.int64)}),
        ({"a": floats(1)}, {"c": floats(5)}),
    ],
    ids=["large", "subnormal", "infinite", "integers", "one-operand"],
)
def test_what_a_coordinator_does_not_check_is_left_to_a_ruling(
    monkeypatch: pytest.MonkeyPatch, arrays: tuple[Arrays, Arrays]
) -> None:
    assert found(one(PRODUCT, *arrays), monkeypatch) is None


def test_operators_with_more_values_than_a_move_carries_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    many = {f"i{number}": floats(number) for number in range(20)}
    records = [
        record(0, "aten.neg.default", {}, {"i0": floats(9)}),
        record(1, "aten.cat.default", many, {"c": floats(1)}),
    ]
    assert found(Opened(records, 1, {}), monkeypatch) is None


def test_only_the_last_operator_is_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = one(PRODUCT, {"a": floats(2), "b": floats(3)}, {"c": floats(7)})
    assert found(opened, monkeypatch) is not None
    assert found(opened, monkeypatch, ground="structure") is None
    assert found(opened, monkeypatch, level=2) is None


def test_what_cannot_be_read_is_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = one(PRODUCT, {"a": floats(2), "b": floats(3)}, {"c": floats(7)})

    def unreadable(answered: DisputeView) -> None:
        raise ProofError("no operators were opened")

    monkeypatch.setattr(module, "view_of", unreadable)
    assert find_evidence(opened.answered()) is None
