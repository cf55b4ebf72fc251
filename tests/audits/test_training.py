"""A whole audit: what is accepted, what is left open, and what a hostile run can not do to its verifier."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.audits.policy import Policy, draw_nonce
from tallystick.audits.training import audit_training, verify_segment
from tallystick.core.canonical_json import encode
from tallystick.core.errors import UsageError
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import Tensor
from tallystick.formats.store.run import RunDirectory
from tallystick.verdicts.replayer import VerifierStack

OTHER = "sha256:" + "0" * 64
Audited = Callable[..., Any]
Answered = Callable[..., str]
Rewrite = Callable[..., None]


@pytest.fixture
def stack(one_thread: None) -> VerifierStack:
    from tallystick.engines.torch.environment import describe_environment
    from tallystick.engines.torch.training.verifier_stack import TorchReplayer

    return VerifierStack(describe_environment("cpu"), TorchReplayer)


def test_an_honest_run_is_accepted_whatever_the_nonce(honest: Path, audited: Audited) -> None:
    for nonce in (draw_nonce(), bytes(32)):
        report = audited(honest, nonce=nonce, samples=2)
        assert report.verdict.outcome == "accepted"
        assert report.nonce == nonce
        assert len(report.selection.sampled) == 2
        assert all(part.trajectory_agrees and part.state_agrees for part in report.segments)


def test_the_same_nonce_repeats_the_audit(honest: Path, audited: Audited) -> None:
    first, second = audited(honest, samples=3), audited(honest, samples=3)
    assert first.selection == second.selection
    assert first.verdict == second.verdict


def test_a_full_audit_replays_every_step(honest: Path, audited: Audited) -> None:
    report = audited(honest, full=True)
    assert (report.verdict.outcome, report.replayed_steps, report.steps) == ("accepted", 12, 12)
    assert set(report.detection().values()) == {1.0}
    assert report.verdict.gist == "12 of 12 steps replayed from the recipe"


def test_a_report_is_canonical_json(honest: Path, audited: Audited) -> None:
    told = json.loads(encode(audited(honest, samples=1).to_json()))
    assert told["verdict"] == "accepted"
    assert told["nonce"] == "00" * 32
    assert len(told["sampled"]) == 1


def test_an_audit_leaves_the_run_as_it_was(honest: Path, audited: Audited) -> None:
    before = {path: path.read_bytes() for path in honest.rglob("*") if path.is_file()}
    audited(honest, full=True)
    assert {path: path.read_bytes() for path in honest.rglob("*") if path.is_file()} == before


def test_the_expected_claim_decides(honest: Path, audited: Audited) -> None:
    identity = RunDirectory(honest).claim().identity
    report = audited(honest, claim=identity)
    assert report.verdict.outcome == "accepted"
    assert not any("--claim" in line for line in report.verdict.not_checked)
    assert audited(honest, claim=OTHER).verdict.outcome == "rejected"


def test_a_window_shorter_than_the_stride_is_inconclusive_and_says_which_share_is_out_of_reach(
    honest: Path, audited: Audited
) -> None:
    report = audited(honest, window=3, samples=12)
    assert report.verdict.outcome == "inconclusive"
    assert report.selection.out_of_reach == (4, 8, 12)
    assert report.unreachable == 0.25
    assert any("25.0 % of the steps lie out of reach" in line for line in report.verdict.not_checked)
    assert any("3 of 12 sampled steps lie more than 3 steps" in line for line in report.verdict.unavailable)


def test_a_full_audit_reaches_every_step_although_the_window_does_not(honest: Path, audited: Audited) -> None:
    assert audited(honest, window=1, full=True).verdict.outcome == "accepted"


def test_another_stack_is_inconclusive_and_the_difference_is_named(honest: Path, stack: VerifierStack) -> None:
    elsewhere = stack.environment.model_copy(update={"threads": 3, "cpu": "another processor"})
    report = audit_training(RunDirectory(honest), Policy(), bytes(32), VerifierStack(elsewhere, stack.replayer))
    assert report.verdict.outcome == "inconclusive"
    assert report.replayed_steps == 0
    (reason,) = report.verdict.unavailable
    assert reason.startswith("different stack")
    assert "threads 1 → 3" in reason
    assert "→ another processor" in reason


def test_an_unknown_entry_of_the_stack_is_a_difference(honest: Path, stack: VerifierStack) -> None:
    elsewhere = stack.environment.model_copy(update={"math_libraries": "unknown"})
    report = audit_training(RunDirectory(honest), Policy(), bytes(32), VerifierStack(elsewhere, stack.replayer))
    assert report.verdict.outcome == "inconclusive"
    assert "→ unknown" in report.verdict.unavailable[0]


def test_a_device_the_policy_does_not_accept_is_inconclusive(honest: Path, audited: Audited) -> None:
    report = audited(honest, devices=["cuda"])
    assert report.verdict.outcome == "inconclusive"
    assert report.verdict.unavailable == ("the policy accepts no run on cpu",)


def test_a_model_larger_than_the_policy_allows_is_inconclusive(honest: Path, one_thread: None) -> None:
    from tallystick.engines.torch.environment import describe_environment
    from tallystick.engines.torch.training.verifier_stack import TorchReplayer

    place = VerifierStack(describe_environment("cpu"), lambda *parts: TorchReplayer(*parts, "cpu", 1000))
    report = audit_training(RunDirectory(honest), Policy(), bytes(32), place)
    assert report.verdict.outcome == "inconclusive"
    assert "more than the 1000 allowed" in report.verdict.unavailable[0]


class TestASegment:
    def test_is_replayed_bit_for_bit(self, honest: Path, stack: VerifierStack) -> None:
        report = verify_segment(RunDirectory(honest), Policy(), 4, 12, stack)
        assert report.verdict.outcome == "accepted"
        assert [(p.segment.start, p.segment.end) for p in report.segments] == [(4, 8), (8, 12)]
        assert any(f.name == "state" and f.where == "step 12" for f in report.verdict.findings)

    @pytest.mark.parametrize(("start", "end"), [(3, 8), (4, 9), (8, 4), (4, 4), (0, 16)])
    def test_runs_from_anchor_to_anchor(self, honest: Path, stack: VerifierStack, start: int, end: int) -> None:
        with pytest.raises(UsageError, match="two anchors in ascending order"):
            verify_segment(RunDirectory(honest), Policy(), start, end, stack)

    def test_of_a_tampered_run_is_rejected_before_its_anchors_are_asked_for(
        self, run: Path, stack: VerifierStack
    ) -> None:
        (run / "transcript.jsonl").write_bytes(b"".join((run / "transcript.jsonl").read_bytes().splitlines(True)[1:]))
        report = verify_segment(RunDirectory(run), Policy(), 4, 8, stack)
        assert report.verdict.outcome == "rejected"


def forge_anchor(run: Path, rewrite: Rewrite, index: int, change: Callable[[dict[str, Tensor]], None]) -> None:
    """Replace the state in an anchor, and recompute everything that follows from it."""
    path = run / f"anchors/step_{index:08d}.safetensors"
    state = read_state(path)
    change(state)
    write_state(path, state)

    def record(records: list[dict[str, Any]]) -> None:
        anchor = next(r for r in records if (r["kind"], r.get("index")) == ("anchor", index))
        anchor["digest"] = state_digest(state)

    rewrite(run, record)
    if index == 12:
        claim = json.loads((run / "claim.json").read_bytes())
        (run / "claim.json").write_bytes(encode(claim | {"final_state": state_digest(state)}))


def put(name: str, array: Any) -> Callable[[dict[str, Tensor]], None]:
    return lambda state: state.__setitem__(name, Tensor.of(np.asarray(array)))


COUNTER = "optimizer.model.norm.weight.step"


@pytest.mark.parametrize("index", [0, 4, 12])
@pytest.mark.parametrize(
    "change",
    [
        put("position.step", np.int64(7)),
        put("position.step", np.int64(-1)),
        put("position.step", np.int64(2**62)),
        put("position.step", np.float32("nan")),
        put("position.step", np.zeros(0, np.int64)),
        put("position.step", np.zeros((2, 2), np.int64)),
        put(COUNTER, np.float32(-1)),
        put(COUNTER, np.float32(-1e30)),
        put(COUNTER, np.float32(1e30)),
        put(COUNTER, np.float32("nan")),
        put(COUNTER, np.float32("inf")),
        put("rng.torch_cpu", np.zeros(8, np.uint8)),
        put("rng.torch_cpu", np.full(5056, 255, np.uint8)),
        put("rng.torch_cpu", np.zeros(5056, np.int8)),
        put("weights.model.norm.weight", np.zeros(31, np.float32)),
        put("weights.model.norm.weight", np.zeros(32, np.float64)),
        put("weights.model.norm.weight", np.full(32, np.nan, np.float32)),
        put("weights.model.norm.weight", np.full(32, 3e38, np.float32)),
        put("weights.unknown", np.zeros(3, np.float32)),
        lambda state: state.pop("weights.model.norm.weight"),
        lambda state: state.pop("rng.torch_cpu"),
        lambda state: state.pop("position.step"),
        lambda state: state.clear(),
    ],
)
def test_a_forged_anchor_is_never_accepted_and_never_breaks_the_verifier(
    run: Path, rewrite: Rewrite, answered: Answered, index: int, change: Callable[[dict[str, Tensor]], None]
) -> None:
    forge_anchor(run, rewrite, index, change)
    assert answered(run, full=True) == "rejected"


def test_an_anchor_rewritten_without_a_change_is_accepted(run: Path, rewrite: Rewrite, audited: Audited) -> None:
    forge_anchor(run, rewrite, 4, lambda state: None)
    assert audited(run, full=True).verdict.outcome == "accepted"


def test_a_weight_nudged_by_one_bit_is_named(run: Path, rewrite: Rewrite, audited: Audited) -> None:
    def nudge(state: dict[str, Tensor]) -> None:
        values = state["weights.model.norm.weight"].array().copy()
        values[5] = np.nextafter(values[5], np.float32(9))
        state["weights.model.norm.weight"] = Tensor.of(values)

    forge_anchor(run, rewrite, 8, nudge)
    verdict = audited(run, full=True).verdict
    assert verdict.outcome == "rejected"
    assert any(f.where == "step 8, weights.model.norm.weight" and "1 of 32" in f.detail for f in verdict.objections)


@pytest.mark.parametrize(
    ("field", "value", "check"),
    [
        ("loss", 5.0, "loss"),
        ("loss", "nan", "loss"),
        ("gradient_norm", 1.0, "gradient norm"),
        ("activation", [0.0, 1.0], "activation"),
    ],
)
def test_an_observation_that_the_replay_does_not_show_is_an_objection(
    run: Path, rewrite: Rewrite, audited: Audited, field: str, value: Any, check: str
) -> None:
    def lie(records: list[dict[str, Any]]) -> None:
        next(r for r in records if r["kind"] == "step" and r["index"] == 6)[field] = value

    rewrite(run, lie)
    report = audited(run, full=True)
    assert report.verdict.outcome == "rejected"
    assert {(f.name, f.where) for f in report.verdict.objections} == {(check, "step 6")}
    told = [(part.trajectory_agrees, part.state_agrees) for part in report.segments]
    assert told == [(True, True), (False, True), (True, True)]


@pytest.mark.parametrize("summary", ["exact", "fp16_rne", "grid", "projection"])
def test_a_summary_that_the_replay_does_not_show_is_an_objection(
    run: Path, rewrite: Rewrite, audited: Audited, summary: str
) -> None:
    def lie(records: list[dict[str, Any]]) -> None:
        steps = [r for r in records if r["kind"] == "step"]
        value = steps[5]["post"][summary]
        wrong = {"digest": OTHER} if isinstance(value, dict) else OTHER if summary == "exact" else "AAAA" + value[4:]
        steps[5]["post"][summary] = steps[6]["pre"][summary] = wrong

    rewrite(run, lie)
    verdict = audited(run, full=True).verdict
    assert verdict.outcome == "rejected"
    assert (f"{summary} summary", "step 6") in {(f.name, f.where) for f in verdict.objections}


@pytest.mark.parametrize("summary", ["projection", "fp16_rne"])
def test_a_missing_summary_or_one_too_many_is_not_accepted(
    run: Path, rewrite: Rewrite, audited: Audited, summary: str
) -> None:
    def leave_out(records: list[dict[str, Any]]) -> None:
        steps = [r for r in records if r["kind"] == "step"]
        del steps[5]["post"][summary]
        del steps[6]["pre"][summary]

    rewrite(run, leave_out)
    assert audited(run, full=True).verdict.outcome == "rejected"


@pytest.mark.parametrize("text", ["AAAA", "A===", "////" * 100])
def test_a_sketch_of_another_width_does_not_break_the_verifier(
    run: Path, rewrite: Rewrite, answered: Answered, text: str
) -> None:
    def lie(records: list[dict[str, Any]]) -> None:
        steps = [r for r in records if r["kind"] == "step"]
        steps[3]["post"]["projection"] = steps[4]["pre"]["projection"] = text

    rewrite(run, lie)
    assert answered(run, full=True) == ("inconclusive" if text == "A===" else "rejected")


@pytest.mark.parametrize("seconds", [[1e308, 1e308], [5e-324, 0.0]])
def test_a_hostile_timeline_changes_neither_verdict_nor_report(
    run: Path, rewrite: Rewrite, audited: Audited, seconds: list[float]
) -> None:
    def lie(entries: list[dict[str, Any]]) -> None:
        for entry in entries:
            entry["seconds"] = 0.0
        entries[0]["seconds"], entries[1]["seconds"] = seconds

    rewrite(run, lie, "trace")
    report = audited(run, samples=1)
    assert report.verdict.outcome == "accepted"
    assert encode(report.to_json())


@pytest.mark.parametrize(
    "steps",
    [
        lambda records: records.clear(),
        lambda records: records.__delitem__(slice(1, None)),
        lambda records: records.__delitem__(slice(2, None)),
        lambda records: records.__delitem__(0),
    ],
)
def test_a_transcript_without_steps_or_anchors_is_rejected(
    run: Path, rewrite: Rewrite, audited: Audited, steps: Callable[[list[Any]], None]
) -> None:
    rewrite(run, steps)
    for full in (True, False):
        assert audited(run, full=full).verdict.outcome == "rejected"


@pytest.mark.parametrize("size", [0, 1, 18, 2**53 - 1])
@pytest.mark.parametrize("log", ["transcript", "trace"])
def test_a_claim_of_another_size_is_never_accepted(run: Path, answered: Answered, log: str, size: int) -> None:
    claim = json.loads((run / "claim.json").read_bytes())
    claim[log]["size"] = size
    (run / "claim.json").write_bytes(encode(claim))
    told = answered(run)
    assert told == "rejected" or "tile" in told
