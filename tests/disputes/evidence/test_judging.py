"""Who is at fault besides the leaf: records that were not descended from, protests without a ground, bad statements."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.verdicts.leaf.leaves import NumpyEngine, alone, bindings, classifier, lookup, node, opened, shifted

torch = pytest.importorskip("torch")

from research.attacks.training import infinitesimal_update  # noqa: E402
from tallystick.core.errors import UnavailableError  # noqa: E402
from tallystick.core.tensors import (  # noqa: E402
    Tensor,
    TensorSpec,
)
from tallystick.disputes.evidence.doubting import doubter_for  # noqa: E402
from tallystick.disputes.evidence.judging import DisputeJudge  # noqa: E402
from tallystick.disputes.evidence.statement import statement_at  # noqa: E402
from tallystick.disputes.evidence.traces import RecordTrace, torch_engine, trace_of  # noqa: E402
from tallystick.disputes.game.protocols import Descent, DisputeView, Doubt, OpenedLeaves, Trace  # noqa: E402
from tallystick.disputes.game.state import Clocks, Dispute, Phase  # noqa: E402
from tallystick.formats.claims import call_file  # noqa: E402
from tallystick.programs.graph import Graph, Input, Node, Role  # noqa: E402
from tallystick.programs.operators.values import Value  # noqa: E402
from tallystick.verdicts.leaf.request import LeafLimits  # noqa: E402
from tallystick.verdicts.opening.files import OPERATORS  # noqa: E402
from tallystick.verdicts.verdict import Fault  # noqa: E402
from tests.support.attacks.disputes.catalogue import DECEPTIONS  # noqa: E402
from tests.support.attacks.disputes.scene import TRAINED, Scene  # noqa: E402
from tests.support.attacks.disputes.stubborn import StubbornDoubter  # noqa: E402
from tests.support.attacks.disputes.values import contested_call, contested_step  # noqa: E402
from tests.support.attacks.reference import train_by  # noqa: E402
from tests.support.rehearsal import Outcome, Rehearsal  # noqa: E402

WORK = 1.05
"""Executions of the graph that a challenger's choices may cost."""


class Undescending:
    """A prover that reveals a record in the place of its operators."""

    def __init__(self, honest: RecordTrace) -> None:
        self.honest = honest

    def partition(self, dispute: Dispute, places: Sequence[int]) -> OpenedLeaves:
        return self.honest.partition(dispute, places)

    def descend(self, dispute: Dispute) -> Descent | None:
        return None

    def reveal(self, dispute: Dispute) -> OpenedLeaves:
        return self.honest.reveal(dispute)


def play(statement: Path, trace: Trace, board: Path, doubt: Doubt, protest: int = -1) -> Outcome:
    outcome = Rehearsal(statement, board).play(trace, StubbornDoubter(1, protest), DisputeJudge(), doubt)
    assert outcome is not None
    return outcome


def member(outcome: Outcome) -> Fault | None:
    return DisputeJudge(torch_engine()).rule(outcome.answered)[0]


def test_a_step_or_call_that_was_not_descended_from_is_the_provers_fault(scene: Scene, tmp_path: Path) -> None:
    step = Undescending(scene.training_trace(tmp_path / "step"))
    call = Undescending(scene.call_trace(tmp_path / "call"))
    for statement, trace, doubt in ((scene.run, step, contested_step(scene)), (scene.calls, call, contested_call())):
        outcome = play(statement, trace, tmp_path / f"board-{statement.name}", doubt)
        assert (outcome.fault, member(outcome)) == (Fault.PROVER, Fault.PROVER)
        assert "did not open them" in outcome.reason


def test_an_honest_header_is_the_challengers_fault(scene: Scene, tmp_path: Path, board: Path) -> None:
    outcome = play(scene.run, scene.training_trace(tmp_path / "work"), board, Doubt(0, 1, ""))
    assert (outcome.fault, member(outcome)) == (Fault.CHALLENGER, Fault.CHALLENGER)


def test_a_protest_over_an_honest_call_is_the_challengers_fault(scene: Scene, tmp_path: Path, board: Path) -> None:
    outcome = play(scene.calls, scene.call_trace(tmp_path / "work"), board, contested_call(), protest=0)
    assert (outcome.dispute.ground, outcome.fault) == ("structure", Fault.CHALLENGER)


def test_a_protest_over_an_honest_step_takes_a_replay_and_is_the_challengers_fault(
    scene: Scene, tmp_path: Path, board: Path
) -> None:
    outcome = play(scene.run, scene.training_trace(tmp_path / "work"), board, contested_step(scene), protest=0)
    assert (outcome.fault, member(outcome)) == (None, Fault.CHALLENGER)
    assert "that of a replay" in outcome.reason


@pytest.mark.parametrize("file", ["weights.safetensors", "graphs/model.json", call_file(2, "inputs")])
def test_a_statement_that_is_not_whole_is_the_provers_fault(file: str, scene: Scene, tmp_path: Path) -> None:
    broken = tmp_path / "calls"
    shutil.copytree(scene.calls, broken)
    (broken / file).write_bytes((broken / file).read_bytes()[:-1])
    rehearsal = Rehearsal(broken, tmp_path / "board")
    doubt = doubter_for().doubt(rehearsal.state.claims[0], broken)
    assert doubt is not None
    outcome = rehearsal.play(scene.call_trace(tmp_path / "work"), doubter_for(), DisputeJudge(), doubt)
    assert outcome is not None
    assert (outcome.fault, outcome.dispute.ground) == (Fault.PROVER, "structure"), outcome.reason


def test_all_records_can_be_contested_and_are_bisected_to_the_wrong_one(scene: Scene, tmp_path: Path) -> None:
    staged = DECEPTIONS["wrong-rate"].stage(scene, tmp_path)
    doubter, rehearsal = doubter_for(contests_all=True), Rehearsal(staged.statement, tmp_path / "board")
    outcome = rehearsal.play(staged.trace, doubter, DisputeJudge())
    assert outcome is not None
    assert outcome.fault is Fault.PROVER
    descent = next(move for move in outcome.moves if move.kind == "descend")
    assert descent.leaf == scene_leaf(staged.trace, scene.place)
    assert 0 < doubter.work.operators <= WORK * len(scene.graph.nodes)


def test_a_judge_without_a_budget_leaves_aligned_errors_to_others(scene: Scene, tmp_path: Path, board: Path) -> None:
    outcome = play(scene.calls, scene.call_trace(tmp_path / "work"), board, contested_call(), protest=0)
    answered = replace(outcome.answered, dispute=replace(outcome.dispute, ground="budget"))
    assert DisputeJudge().rule(answered)[0] is None


def scene_leaf(trace: object, place: int) -> str:
    assert isinstance(trace, RecordTrace)
    return trace.records.cut(place).leaf


def test_a_second_claim_over_the_same_files_is_looked_at_anew(scene: Scene, board: Path) -> None:
    """The files of a statement may be named by several claims; only those of whose tree they are hang together."""
    first = Rehearsal(scene.calls, board).state.claims[0]
    second = replace(first, root="ab" * 32)
    doubter, judge = doubter_for(), DisputeJudge(torch_engine())
    assert doubter.doubt(first, scene.calls) is None
    assert doubter.doubt(second, scene.calls) is not None
    dispute = Dispute(0, "1" * 64, 2, first.root, first.size, 0, 1, Phase.RULING, Clocks(1, 1, 0), 1, 0)
    dispute = replace(dispute, ground="structure")
    for claim, fault in ((first, Fault.CHALLENGER), (second, Fault.PROVER), (first, Fault.CHALLENGER)):
        assert judge.rule(DisputeView(claim, 0, dispute, scene.calls, (board,)))[0] is fault


@pytest.mark.parametrize("is_honest", [True, False], ids=["honest", "almost not trained"])
def test_a_step_without_operators_is_audited_by_a_member(tmp_path: Path, one_thread: None, is_honest: bool) -> None:
    """A run without a step graph has nothing to bisect further; a referee leaves it to those that can replay."""
    training = TRAINED["training"] | {"dtype": "bf16", "steps": 12}
    record = TRAINED["record"] | {"anchor_stride": 4}
    train_by({**TRAINED, "training": training, "record": record}, tmp_path / "honest")
    run = tmp_path / ("honest" if is_honest else "forged")
    if not is_honest:
        infinitesimal_update(tmp_path / "honest", run)
    outcome = play(run, trace_of(statement_at(run), tmp_path / "work"), tmp_path / "board", Doubt(4, 5, ""))
    assert outcome.fault is None
    assert member(outcome) is (Fault.CHALLENGER if is_honest else Fault.PROVER)


# ---- operators that a member looks at with a kernel of its own


LARGE = LeafLimits(whole_flops=1, whole_bytes=1, elements=8)
NONCES = [bytes([number] * 32).hex() for number in range(20)]


class Refusing(NumpyEngine):
    """An engine whose kernels do not run."""

    def prepare(self, node: Node) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
        def run(_: Mapping[str, Any]) -> tuple[Any, ...]:
            raise UnavailableError(f"{node.operator} does not run here")

        return run


class Lenient(NumpyEngine):
    """An engine that takes every index, and gives the same row for all of them."""

    def prepare(self, node: Node) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
        return lambda _: (Value(np.full((2, 3), self.given, np.float32), "F32"),)

    given = 1.0


def softmax() -> Graph:
    """One operator of 4,096 elements."""
    one = node(0, "_softmax.default", {"self": "inputs.x"}, [["F32", 64, 64]], dim=1, half_to_float=False)
    return alone(one, Input("inputs.x", Role.INPUT, TensorSpec("F32", (64, 64))))


def revealed(folder: Path, board: Path, low: int = 0) -> DisputeView:
    """A dispute over one operator of an opening, up to its ruling."""
    return play(folder, trace_of(statement_at(folder), board / "work"), board, Doubt(low, low + 1, "")).answered


@pytest.mark.parametrize("kernel", [NumpyEngine(), Refusing()], ids=["a kernel", "no kernel"])
@pytest.mark.parametrize("is_honest", [True, False], ids=["honest", "one element off"])
def test_a_member_finds_the_one_wrong_element_of_a_large_operator(
    tmp_path: Path, is_honest: bool, kernel: NumpyEngine
) -> None:
    """A few drawn elements miss it; a member without a kernel for the operator judges all of it by the reference."""
    given = {"inputs.x": Tensor.of(np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32))}
    opened(tmp_path / "calls", {} if is_honest else {0: shifted(1e-4, place=777)}, softmax(), given)
    answered = revealed(tmp_path / "calls", tmp_path / "board")
    drawn = [DisputeJudge(limits=LARGE).rule(answered, nonce)[0] for nonce in NONCES]
    assert drawn.count(Fault.CHALLENGER) > 15
    found = {DisputeJudge(kernel, limits=LARGE).rule(answered, nonce)[0] for nonce in NONCES}
    assert found == {Fault.CHALLENGER if is_honest else Fault.PROVER}


def test_operands_that_neither_definition_nor_kernel_takes_are_the_provers_fault(tmp_path: Path) -> None:
    table = Tensor.of(np.arange(12, dtype=np.float32).reshape(4, 3))
    given = {"inputs.x": Tensor.of(np.array([0, 9])), "weights.w": table}
    opened(tmp_path / "wrong", graph=lookup(), given=given, engine=Lenient())
    wrong = revealed(tmp_path / "wrong", tmp_path / "a")
    for limits in (LeafLimits(), LARGE):
        assert DisputeJudge(limits=limits).rule(wrong, NONCES[0])[0] is None
        assert DisputeJudge(torch_engine(), limits=limits).rule(wrong, NONCES[0])[0] is Fault.PROVER
    opened(tmp_path / "right", graph=lookup(), given=given | {"inputs.x": Tensor.of(np.array([0, 3]))})
    right = revealed(tmp_path / "right", tmp_path / "b")
    assert DisputeJudge(torch_engine()).rule(right, NONCES[0])[0] is Fault.CHALLENGER


def test_operands_that_only_a_kernel_takes_convict_nobody_whose_results_are_its(tmp_path: Path) -> None:
    """The definition may be too narrow; what no kernel gives either is wrong."""
    given = {"inputs.x": Tensor.of(np.array([0, 9])), "weights.w": Tensor.of(np.ones((4, 3), np.float32))}
    opened(tmp_path / "calls", graph=lookup(), given=given, engine=Lenient())
    answered, other = revealed(tmp_path / "calls", tmp_path / "board"), Lenient()
    other.given = 5.0
    assert DisputeJudge(Lenient()).rule(answered, NONCES[0])[0] is None
    assert DisputeJudge(other).rule(answered, NONCES[0])[0] is Fault.PROVER


@pytest.mark.parametrize("is_short", [False, True], ids=["whole", "cut short"])
def test_records_that_are_not_those_of_the_posted_tree_are_the_provers_fault(tmp_path: Path, is_short: bool) -> None:
    opened(tmp_path / "calls", graph=classifier(), given=bindings())
    answered = revealed(tmp_path / "calls", tmp_path / "board", low=11)
    shutil.copytree(tmp_path / "calls", tmp_path / "again")
    lines = (tmp_path / "again" / OPERATORS).read_bytes().splitlines(keepends=True)
    (tmp_path / "again" / OPERATORS).write_bytes(b"".join(lines[: 3 if is_short else None]))
    fault, reason = DisputeJudge().rule(replace(answered, statement=tmp_path / "again"))
    assert fault is (Fault.PROVER if is_short else Fault.CHALLENGER), reason
