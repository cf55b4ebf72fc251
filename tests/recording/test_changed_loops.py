"""Loops that change midway: what is data is judged before and after, and else only the steps concerned are open."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.formats.records import StepRecord, read_record
from tallystick.formats.store.log import read_lines
from tests.recording import loops

torch = pytest.importorskip("torch")

Audit = Callable[[Path], Any]
NETWORK = loops.network


@pytest.fixture
def audit(one_thread: None) -> Audit:
    return lambda run: tallystick.audit(run, tallystick.Policy(full=True)).report.verdict


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draw that is worst for an honest loop: the first step is checked, and the last one before each anchor."""
    drawn = "tallystick.recording.loop.self_check.SelfCheck.is_due"
    monkeypatch.setattr(drawn, lambda check, index: index == 1 or index % check._stride == 0)


def said(out: Path, **loop: Any) -> list[str]:
    """The lines that a recorder warns with while a loop takes all its steps."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert loops.fit(out, **loop) == loops.STEPS
    return [str(each.message) for each in caught if each.category is RuntimeWarning]


def steps_of(run: Path) -> list[StepRecord]:
    records = (read_record(line, "record") for line in read_lines(run / "transcript.jsonl"))
    return [record for record in records if isinstance(record, StepRecord)]


def decays_more(step: int, _model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.1 * (step + 1)


def descends() -> tuple[Any, Any]:
    model, _ = NETWORK()
    return model, torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def thaws(step: int, model: Any, _optimizer: Any) -> None:
    model[0].weight.requires_grad_(step >= 4)


def fuses(step: int, _model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["fused"] = step in {4, 5}


@pytest.mark.parametrize(
    ("change", "line", "graphs"),
    [
        (loops.decays_less, "weight_decay of parameter group 0 is 0.0, and 0.1 before", 2),
        (loops.forgets_faster, "betas of parameter group 0 is (0.5, 0.6), and (0.9, 0.999) before", 2),
        (loops.freezes, "why 0.weight has no gradient in step 5, unlike the first", 2),
        (
            decays_more,
            "why 7 steps have other settings of the optimizer than the spec, from step 2 on: weight_decay",
            1,
        ),
    ],
)
def test_settings_that_change_midway_are_recorded_and_all_steps_replayed(
    tmp_path: Path, audit: Audit, change: Any, line: str, graphs: int
) -> None:
    assert said(tmp_path / "run", change=change) == []
    verdict = audit(tmp_path / "run")
    assert (verdict.outcome, verdict.coverage.done) == ("accepted", loops.STEPS)
    assert any(line in each for each in verdict.not_checked)
    assert len({step.graph for step in steps_of(tmp_path / "run")}) == graphs


@pytest.mark.parametrize("graph", [True, False])
def test_layers_that_begin_to_train_later_are_replayed_with_their_slots(
    tmp_path: Path, audit: Audit, graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "network", descends)
    (line,) = said(tmp_path / "run", change=thaws, graph=graph)
    assert "0.weight trains, and the first graph has no gradient to compare" in line
    verdict = audit(tmp_path / "run")
    assert (verdict.outcome, verdict.coverage.done) == ("inconclusive", loops.STEPS)
    assert "why 0.weight has a gradient in step 5, unlike the first" in verdict.not_checked


def test_steps_whose_settings_no_graph_can_hold_are_recorded_without_one(
    tmp_path: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "network", descends)
    (line,) = said(tmp_path / "run", change=fuses)
    assert line == "step 5 cannot be replayed, nor any other of its kind: SGD with fused=True cannot be captured"
    reasons = [step.no_graph for step in steps_of(tmp_path / "run")]
    assert [index for index, reason in enumerate(reasons, 1) if reason] == [5, 6]
    verdict = audit(tmp_path / "run")
    assert (verdict.outcome, verdict.objections) == ("inconclusive", ())


def test_an_optimizer_that_counts_later_layers_on_their_own_leaves_the_steps_before_judged(
    tmp_path: Path, audit: Audit
) -> None:
    (line,) = said(tmp_path / "run", change=thaws)
    assert "parameters that begin to train later count their steps on their own" in line
    verdict = audit(tmp_path / "run")
    assert (verdict.outcome, verdict.objections, verdict.coverage.done) == ("inconclusive", (), 4)


def test_a_step_said_to_have_other_settings_than_it_was_taken_with_is_rejected(
    tmp_path: Path, audit: Audit, rewrite: Callable[..., None]
) -> None:
    said(tmp_path / "run", change=loops.decays_less)

    def decays_as_stated(records: list[dict[str, Any]]) -> None:
        """Steps that were taken without weight decay are said to be as the spec states."""
        for record in records:
            record.pop("optimizer", None)

    rewrite(tmp_path / "run", decays_as_stated)
    objection = audit(tmp_path / "run").objections[0]
    assert (objection.name, "is updated otherwise" in objection.detail) == ("step graph", True)


def test_a_number_of_other_settings_is_that_of_the_replay_or_rejected(
    tmp_path: Path, audit: Audit, rewrite: Callable[..., None]
) -> None:
    said(tmp_path / "run", change=decays_more)

    def decays_less(records: list[dict[str, Any]]) -> None:
        record = next(each for each in records if each.get("optimizer"))
        record["optimizer"][0]["weight_decay"] = 5.0

    rewrite(tmp_path / "run", decays_less)
    verdict = audit(tmp_path / "run")
    assert (verdict.outcome, verdict.objections[0].where[:6]) == ("rejected", "step 2")


def edits(step: int, model: Any, _optimizer: Any) -> None:
    if step == 4:
        model[0].weight.data.mul_(0.5)


@pytest.mark.parametrize("graph", [True, False])
def test_weights_that_are_edited_once_through_data_are_noticed_at_that_step(
    tmp_path: Path, audit: Audit, graph: bool
) -> None:
    (line,) = said(tmp_path / "run", change=edits, graph=graph)
    assert line.startswith("step 5 cannot be replayed, nor any other of its kind: weights were changed outside of")
    verdict = audit(tmp_path / "run")
    assert (verdict.outcome, verdict.objections, verdict.coverage.done) == ("inconclusive", (), 6)


def test_weights_that_are_edited_between_a_step_and_its_anchor_are_noticed(tmp_path: Path, audit: Audit) -> None:
    def told(step: int, loss: Any, batch: Any) -> Any:
        if step == 5:
            held[0][0].weight.data.mul_(0.5)
        return loss, batch

    held: list[Any] = []
    (line,) = said(tmp_path / "run", told=told, records=lambda model, wrapped: held.append(model) or model)
    assert "call `recorder.step` right after `optimizer.step()`" in line
    verdict = audit(tmp_path / "run")
    assert (verdict.outcome, verdict.objections, verdict.coverage.done) == ("inconclusive", (), 7)


def test_an_edit_that_is_taken_back_before_the_next_step_is_accepted(tmp_path: Path, audit: Audit) -> None:
    def there_and_back(step: int, model: Any, _optimizer: Any) -> None:
        held = model[0].weight.data.clone()
        model[0].weight.data.zero_()
        model[0].weight.data.copy_(held)

    assert said(tmp_path / "run", change=there_and_back) == []
    assert audit(tmp_path / "run").outcome == "accepted"


@pytest.mark.parametrize(("graph", "done"), [(True, 5), (False, 3)])
def test_a_number_of_the_loss_that_changes_is_noticed_at_the_next_anchor(
    tmp_path: Path, audit: Audit, graph: bool, done: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss_of, weight = loops.loss_of, [1.0]
    monkeypatch.setattr(loops, "loss_of", lambda model, batch: loss_of(model, batch) * weight[0])

    def anneals(step: int, _model: Any, _optimizer: Any) -> None:
        weight[0] = 1.0 if step < 4 else 0.5

    lines = said(tmp_path / "run", change=anneals, graph=graph)
    assert lines[0].startswith("steps 4 to 5 cannot be replayed: step 6: the captured step gives another loss than")
    assert "tensors in batch=" in lines[0] or "what changes as a tensor" in lines[0]
    verdict = audit(tmp_path / "run")
    assert (verdict.outcome, verdict.objections, verdict.coverage.done) == ("inconclusive", (), done)
    assert verdict.unavailable[0].startswith("steps 4–6 cannot be replayed: the recorder withdrew the graph of step 4")


def test_only_a_loop_can_withdraw_steps(tmp_path: Path, audit: Audit) -> None:
    from tallystick.formats.claims import Claim, Withdrawn

    said(tmp_path / "run")
    path = tmp_path / "run/claim.json"
    claim = Claim.from_bytes(path.read_bytes(), "claim")
    withdrawn = claim.model_copy(update={"withdrawn": (Withdrawn(first=4, last=4, reason="a test"),)})
    path.write_bytes(withdrawn.to_bytes())
    verdict = audit(tmp_path / "run")
    assert (verdict.outcome, verdict.objections, verdict.coverage.done) == ("inconclusive", (), 5)
    assert "steps 4–4, whose step graph the recorder withdrew: a test" in verdict.not_checked
    assert json.loads(path.read_text())["withdrawn"] == [{"first": 4, "last": 4, "reason": "a test"}]
