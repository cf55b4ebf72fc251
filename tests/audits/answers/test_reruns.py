"""An opened layer is run again from the one before: honest ones lie near an own stack, others do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tallystick.audits.answers import states as reruns
from tallystick.audits.answers.states import is_measured, judge_reruns, nearest
from tallystick.audits.answers.subject import Verification
from tallystick.formats.receipt import EngineStatement
from tallystick.verdicts.verdict import Findings

RNG = np.random.default_rng(3)
TRUE = RNG.standard_normal((40, 64)).astype(np.float32)
OWN = (TRUE + 0.01 * RNG.standard_normal(TRUE.shape)).astype(np.float32)
OTHER = (TRUE + 0.01 * RNG.standard_normal(TRUE.shape)).astype(np.float32)


def test_the_nearest_own_stack_counts() -> None:
    assert nearest(OWN, [OWN, OTHER], TRUE) == 0.0
    assert nearest(OTHER, [OWN, OTHER], TRUE) == 0.0
    assert nearest(OTHER, [OWN], TRUE) == pytest.approx(2**0.5, abs=0.1)
    assert nearest(np.full_like(OWN, np.nan), [OWN, OTHER], TRUE) == np.inf


def judged(
    monkeypatch: pytest.MonkeyPatch,
    claimed: Any,
    limits: Any = None,
    committed: dict[str, Any] | None = None,
    **engine: str,
) -> Findings:
    """The log on layer 1, whose claimed rows are these; `committed` is what the receipt states otherwise of states."""
    stated = {"name": "transformers", "version": "1", "device": "cpu", "attention": "sdpa", **engine}
    states = SimpleNamespace(**({"prompt": True, "dtype": "BF16", "layers": (*range(30),)} | (committed or {})))
    receipt: Any = SimpleNamespace(states=states, engine=EngineStatement(**stated, environment="sha256:" + "0" * 64))  # type: ignore[arg-type]
    monkeypatch.setattr(reruns, "opened_layers", lambda *_: {} if claimed is None else {0: TRUE, 1: claimed})
    card = SimpleNamespace(dtype="BF16", layers=30, width=576)

    def model(*rows: Any) -> Any:
        return SimpleNamespace(card=card, reruns=lambda *_: iter([{0: each, 1: each} for each in rows]))

    rule: Any = SimpleNamespace(rounding_for=lambda _: {"layer": 0.5}, rounding=limits)
    policy: Any = SimpleNamespace(fingerprints=rule)
    found = Verification(SimpleNamespace(receipt=receipt), model(OWN, OTHER), policy, prompt=(1,), answer=(2,))  # type: ignore[arg-type]
    judge_reruns(found, SimpleNamespace(), model(TRUE))  # type: ignore[arg-type]
    return found.findings


def far_layers(log: Findings) -> set[str]:
    return {each.where for each in log.seen if not each.agrees and not each.advisory}


def test_a_changed_layer_is_rejected_and_an_honest_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = OWN + 0.01 * RNG.standard_normal(OWN.shape).astype(np.float32)
    assert "layer 1, 40 rows" in far_layers(judged(monkeypatch, changed))
    assert "layer 1, 40 rows" not in far_layers(judged(monkeypatch, OTHER))


def test_another_engine_stays_open_until_a_policy_has_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = OWN + 0.01 * RNG.standard_normal(OWN.shape).astype(np.float32)
    log = judged(monkeypatch, changed, name="vllm")
    assert not far_layers(log)
    assert any("small changes of weights: layer 1" in line and "vllm on cpu" in line for line in log.open_lines)
    assert not any("layer 1" in line for line in judged(monkeypatch, OWN, name="vllm").open_lines)
    assert "layer 1, 40 rows" in far_layers(judged(monkeypatch, changed, limits=(), name="vllm"))
    assert not is_measured(
        EngineStatement(
            name="transformers", version="1", device="cuda", attention="sdpa", environment="sha256:" + "0" * 64
        )
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("committed", "reason"),
    [
        ({"prompt": False}, "answer's states alone"),
        ({"dtype": "F32"}, "kept in F32, and the model computes in BF16"),
        ({"layers": (0, 30)}, ""),
        ({"layers": (1, 3, 30)}, "no layer together with the one before"),
        ({"layers": (29, 30, 2)}, "no layer together with the one before"),
    ],
)
def test_what_a_receipt_states_of_its_states_turns_no_rerun_off(
    monkeypatch: pytest.MonkeyPatch, committed: dict[str, Any], reason: str
) -> None:
    """Whoever changed the weights a little would write it; so may an honest provider, who is not rejected."""
    changed = OWN + 0.01 * RNG.standard_normal(OWN.shape).astype(np.float32)
    for rows in (changed, OWN):
        log = judged(monkeypatch, rows, committed=committed)
        assert "layer 1, 40 rows" not in far_layers(log)
        if reason:
            [line] = log.open_lines
            assert reason in line
            assert "`fingerprints.rounding` has no limit for the place `layer`" in line
        else:
            assert "rerun: layers 1, 2, 3" in log.not_checked[0], "layers that are not committed to are named"


def test_a_challenge_that_opens_no_layer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not judged(monkeypatch, OWN).not_checked
    log = judged(monkeypatch, None)
    assert log.not_checked == ["rerun: no layer is opened in full together with the one before: challenge a layer"]
    assert not log.open_lines
