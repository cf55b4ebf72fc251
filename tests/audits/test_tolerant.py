"""Audits by calibrated limits: the verifier's table decides, and where it has no entry nothing is decided."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import Tensor
from tests.support.plugins import install_tolerances

NOTHING = {"overall": 0.0, "worst_tensor": 0.0, "mismatch_share": 0.0, "element": 0.0, "stretch": 0.0}


def table(limits: dict[str, float], **changes: Any) -> dict[str, Any]:
    """A calibration with one entry, which holds for the honest run."""
    entry = {
        "family": "language",
        "optimizer": "adamw",
        "dtype": "fp32",
        "window": 4,
        "from_step": 0,
        "weights": limits,
        "memory": limits,
        "projection": 1e-3,
        "loss_band": 0.0,
        "honest_segments": 1,
        "held_out_segments": 0,
        "honest_max": {},
        "held_out_max": {},
        "withdrawn": [],
    }
    return {
        "version": 1,
        "machine": "any",
        "torch": "any",
        "stacks": [],
        "held_out": [],
        "entries": [entry | changes],
    }


def forged(run: Path, rewrite: Callable[..., None], share: float) -> Path:
    """The run with every weight of one norm in anchor 8 scaled, and everything recomputed but the buckets."""
    path = run / "anchors/step_00000008.safetensors"
    state = read_state(path)
    name = "weights.model.norm.weight"
    state[name] = Tensor.of((state[name].array() * np.float32(1 + share)).astype(np.float32))
    write_state(path, state)

    def reseal(records: list[dict[str, Any]]) -> None:
        next(r for r in records if (r["kind"], r.get("index")) == ("anchor", 8))["digest"] = state_digest(state)

    rewrite(run, reseal)
    return run


def test_an_honest_run_on_the_same_stack_lies_within_limits_of_nothing(
    honest: Path, audited: Callable[..., Any]
) -> None:
    report = audited(honest, mode="tolerant", full=True, calibration=table(NOTHING))
    assert report.verdict.objections == ()
    assert report.verdict.outcome == "accepted"
    assert any("calibrated" in line for line in report.verdict.assumptions)


def test_a_stack_that_differs_does_not_keep_a_tolerant_audit_from_replaying(
    run: Path, rewrite: Callable[..., None], audited: Callable[..., Any]
) -> None:
    from tallystick.core.canonical_json import encode
    from tallystick.formats.store.run import RunDirectory

    path = run / "environment.json"
    path.write_bytes(encode(json.loads(path.read_bytes()) | {"cpu": "another processor"}))
    identity = RunDirectory(run).environment().digest_as("environment")
    rewrite(run, lambda records: records[0].update(environment=identity))
    claim = json.loads((run / "claim.json").read_bytes())
    (run / "claim.json").write_bytes(encode(claim | {"environment": identity}))
    assert audited(run, full=True).verdict.outcome == "inconclusive"
    report = audited(run, full=True, mode="tolerant", calibration=table(NOTHING))
    assert report.replayed_steps == 12
    assert report.verdict.outcome == "accepted"


def test_weights_beyond_the_limits_are_rejected(
    run: Path, rewrite: Callable[..., None], audited: Callable[..., Any]
) -> None:
    verdict = audited(forged(run, rewrite, 0.5), full=True, mode="tolerant", calibration=table(NOTHING)).verdict
    assert verdict.outcome == "rejected"


@pytest.mark.parametrize(
    "change", [{"optimizer": "sgd"}, {"dtype": "bf16"}, {"family": "image"}, {"window": 3}, {"from_step": 1}]
)
def test_without_an_entry_for_this_kind_of_run_the_audit_is_inconclusive(
    honest: Path, audited: Callable[..., Any], change: dict[str, Any]
) -> None:
    report = audited(honest, mode="tolerant", full=True, calibration=table(NOTHING, **change))
    assert report.verdict.outcome == "inconclusive"
    assert any("no limits are calibrated for adamw in fp32" in line for line in report.verdict.unavailable)


@pytest.mark.parametrize("name", ["exact", "bucket", "dual"])
def test_the_policy_names_how_states_are_compared(
    honest: Path, run: Path, rewrite: Callable[..., None], audited: Callable[..., Any], name: str
) -> None:
    asked = {"mode": "tolerant", "full": True, "calibration": table(NOTHING), "tolerance": name}
    verdict = audited(honest, **asked).verdict
    assert verdict.outcome == "accepted"
    names = {finding.name for finding in verdict.findings}
    assert f"state {name}" in names
    assert "weights residual" not in names
    assert f"states agree where the policy's tolerance says so, which is {name}" in verdict.assumptions
    verdict = audited(forged(run, rewrite, 0.5), **asked).verdict
    assert f"state {name}" in {finding.name for finding in verdict.objections}


OUTSIDE = """
from tallystick.verdicts.tolerance import Finding

class {made}:
    def summarize(self, state):
        return b"".join(bytes(state[name].data) for name in sorted(state))

    def compare(self, claimed, replayed):
        {answer}
"""
SAME = "return Finding(float(claimed != self.summarize(replayed.end)), 0.0)"


def test_a_tolerance_from_outside_decides(
    honest: Path,
    run: Path,
    rewrite: Callable[..., None],
    audited: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install_tolerances(tmp_path, OUTSIDE.format(made="Same", answer=SAME), {"same": "Same"})
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = {"mode": "tolerant", "full": True, "calibration": table(NOTHING), "tolerance": "same"}
    assert audited(honest, **asked).verdict.outcome == "accepted"
    verdict = audited(forged(run, rewrite, 0.5), **asked).verdict
    assert "state same" in {finding.name for finding in verdict.objections}


@pytest.mark.parametrize("answer", ["raise RuntimeError('no')", "return True", "return Finding(0.0, float('inf'))"])
def test_a_tolerance_from_outside_that_fails_leaves_the_audit_inconclusive(
    honest: Path, audited: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    install_tolerances(tmp_path, OUTSIDE.format(made="Odd", answer=answer), {"odd": "Odd"})
    monkeypatch.syspath_prepend(str(tmp_path))
    report = audited(honest, mode="tolerant", full=True, calibration=table(NOTHING), tolerance="odd")
    assert report.verdict.outcome == "inconclusive"
    assert any("weights: tolerance odd: " in line for line in report.verdict.unavailable)
    assert not any(segment.state_agrees for segment in report.segments)


def test_what_fails_does_not_hide_what_was_found(
    run: Path,
    rewrite: Callable[..., None],
    audited: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install_tolerances(tmp_path, OUTSIDE.format(made="Odd", answer="return None"), {"odd": "Odd"})
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = {"mode": "tolerant", "full": True, "calibration": table(NOTHING), "tolerance": "odd"}
    verdict = audited(drifted(run, rewrite), **asked).verdict
    assert verdict.outcome == "rejected"
    assert {finding.name for finding in verdict.objections} == {"loss"}


def test_the_buckets_are_shown_and_decide_nothing(honest: Path, audited: Callable[..., Any]) -> None:
    report = audited(honest, mode="tolerant", full=True, calibration=table(NOTHING))
    buckets = [f for f in report.verdict.findings if f.name in {"fp16_rne summary", "grid summary"}]
    assert buckets
    assert all(finding.advisory for finding in buckets)


def drifted(run: Path, rewrite: Callable[..., None]) -> Path:
    """The run with the loss of one step recorded a little higher, as a drifting stack would have it."""

    def raise_loss(records: list[dict[str, Any]]) -> None:
        step = next(r for r in records if (r["kind"], r.get("index")) == ("step", 3))
        step["loss"] = round(step["loss"] + 2e-3, 4)

    rewrite(run, raise_loss)
    return run


def test_limits_of_far_smaller_models_convict_nobody(
    run: Path, rewrite: Callable[..., None], audited: Callable[..., Any]
) -> None:
    measured = table(NOTHING, parameters=100)
    report = audited(drifted(run, rewrite), full=True, mode="tolerant", calibration=measured)
    assert report.verdict.outcome == "inconclusive"
    assert any("models of 100 weights and hold up to 1,600" in line for line in report.verdict.unavailable)


def test_limits_of_models_as_large_convict_and_an_honest_run_within_smaller_ones_is_accepted(
    run: Path, honest: Path, rewrite: Callable[..., None], audited: Callable[..., Any]
) -> None:
    as_large, smaller = table(NOTHING, parameters=10**6), table(NOTHING, parameters=100)
    verdict = audited(drifted(run, rewrite), full=True, mode="tolerant", calibration=as_large).verdict
    assert [finding.name for finding in verdict.objections] == ["loss"]
    assert audited(honest, full=True, mode="tolerant", calibration=smaller).verdict.outcome == "accepted"


def test_a_tolerant_audit_says_that_it_does_not_see_the_sign_of_a_zero(
    honest: Path, audited: Callable[..., Any]
) -> None:
    tolerant = audited(honest, mode="tolerant", full=True, calibration=table(NOTHING))
    assert any("sign of a zero" in line for line in tolerant.verdict.not_checked)
    assert not any("sign of a zero" in line for line in audited(honest, full=True).verdict.not_checked)
