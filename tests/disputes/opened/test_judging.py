"""Who is at fault besides the leaf: records that were not descended from, protests without a ground, bad statements."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tallystick.attacks.disputes import DECEPTIONS, Scene  # noqa: E402
from tallystick.attacks.disputes.scene import TRAINED  # noqa: E402
from tallystick.attacks.disputes.stubborn import StubbornDoubter  # noqa: E402
from tallystick.attacks.disputes.values import contested_call, contested_step  # noqa: E402
from tallystick.attacks.fabricated import forge_tiny_rate  # noqa: E402
from tallystick.attacks.reference import train_by  # noqa: E402
from tallystick.disputes.fault import Fault  # noqa: E402
from tallystick.disputes.opened import Judge, doubter_for, trace_for  # noqa: E402
from tallystick.disputes.opened.rehearsal import Outcome, Rehearsal  # noqa: E402
from tallystick.disputes.opened.traces import RecordTrace, torch_engine  # noqa: E402
from tallystick.disputes.parties import Answered, Descent, Doubt, Opened, Trace  # noqa: E402
from tallystick.disputes.state import Clocks, Dispute, Phase  # noqa: E402
from tallystick.transcripts import call_file  # noqa: E402

WORK = 1.05
"""Executions of the graph that a challenger's choices may cost."""


class Undescending:
    """A prover that reveals a record in the place of its operators."""

    def __init__(self, honest: RecordTrace) -> None:
        self.honest = honest

    def partition(self, dispute: Dispute, places: Sequence[int]) -> Opened:
        return self.honest.partition(dispute, places)

    def descend(self, dispute: Dispute) -> Descent | None:
        return None

    def reveal(self, dispute: Dispute) -> Opened:
        return self.honest.reveal(dispute)


def play(statement: Path, trace: Trace, board: Path, doubt: Doubt, protest: int = -1) -> Outcome:
    outcome = Rehearsal(statement, board).play(trace, StubbornDoubter(1, protest), Judge(), doubt)
    assert outcome is not None
    return outcome


def member(outcome: Outcome) -> Fault | None:
    return Judge(torch_engine()).rule(outcome.answered)[0]


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
    outcome = rehearsal.play(scene.call_trace(tmp_path / "work"), doubter_for(), Judge(), doubt)
    assert outcome is not None
    assert (outcome.fault, outcome.dispute.ground) == (Fault.PROVER, "structure"), outcome.reason


def test_all_records_can_be_contested_and_are_bisected_to_the_wrong_one(scene: Scene, tmp_path: Path) -> None:
    staged = DECEPTIONS["wrong-rate"].stage(scene, tmp_path)
    doubter, rehearsal = doubter_for(contests_all=True), Rehearsal(staged.statement, tmp_path / "board")
    outcome = rehearsal.play(staged.trace, doubter, Judge())
    assert outcome is not None
    assert outcome.fault is Fault.PROVER
    descent = next(move for move in outcome.moves if move.kind == "descend")
    assert descent.leaf == scene_leaf(staged.trace, scene.place)
    assert 0 < doubter.work.operators <= WORK * len(scene.graph.nodes)


def test_a_judge_without_a_budget_leaves_aligned_errors_to_others(scene: Scene, tmp_path: Path, board: Path) -> None:
    outcome = play(scene.calls, scene.call_trace(tmp_path / "work"), board, contested_call(), protest=0)
    answered = replace(outcome.answered, dispute=replace(outcome.dispute, ground="budget"))
    assert Judge().rule(answered)[0] is None


def scene_leaf(trace: object, place: int) -> str:
    assert isinstance(trace, RecordTrace)
    return trace.records.cut(place).leaf


def test_a_second_claim_over_the_same_files_is_looked_at_anew(scene: Scene, board: Path) -> None:
    """The files of a statement may be named by several claims; only those of whose tree they are hang together."""
    first = Rehearsal(scene.calls, board).state.claims[0]
    second = replace(first, root="ab" * 32)
    doubter, judge = doubter_for(), Judge(torch_engine())
    assert doubter.doubt(first, scene.calls) is None
    assert doubter.doubt(second, scene.calls) is not None
    dispute = Dispute(0, "1" * 64, 2, first.root, first.size, 0, 1, Phase.RULING, Clocks(1, 1, 0), 1, 0)
    dispute = replace(dispute, ground="structure")
    for claim, fault in ((first, Fault.CHALLENGER), (second, Fault.PROVER), (first, Fault.CHALLENGER)):
        assert judge.rule(Answered(claim, 0, dispute, scene.calls, (board,)))[0] is fault


@pytest.mark.parametrize("is_honest", [True, False], ids=["honest", "almost not trained"])
def test_a_step_without_operators_is_audited_by_a_member(tmp_path: Path, one_thread: None, is_honest: bool) -> None:
    """A run without a step graph has nothing to bisect further; a referee leaves it to those that can replay."""
    training = TRAINED["training"] | {"dtype": "bf16", "steps": 12}
    record = TRAINED["record"] | {"anchor_stride": 4}
    train_by({**TRAINED, "training": training, "record": record}, tmp_path / "honest")
    run = tmp_path / ("honest" if is_honest else "forged")
    if not is_honest:
        forge_tiny_rate(tmp_path / "honest", run)
    outcome = play(run, trace_for(run, tmp_path / "work"), tmp_path / "board", Doubt(4, 5, ""))
    assert outcome.fault is None
    assert member(outcome) is (Fault.CHALLENGER if is_honest else Fault.PROVER)
