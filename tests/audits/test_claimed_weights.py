"""The weights that a claim names are those of its final state: an audit compares them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tallystick.core.digests import digest
from tallystick.core.safetensors import read_state
from tallystick.core.tensor_digests import state_digest
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.step_names import weights_of


def restate(run: Path, weights: str | None) -> None:
    directory = RunDirectory(run)
    directory.claim_path.write_bytes(directory.claim().model_copy(update={"weights": weights}).to_bytes())


def test_a_claim_names_the_weights_of_its_last_anchor(honest: Path, audited: Callable[..., Any]) -> None:
    last = read_state(honest / "anchors" / "step_00000012.safetensors")
    assert RunDirectory(honest).claim().weights == state_digest(weights_of(last))
    assert audited(honest).verdict.accepted


def test_other_weights_in_a_claim_are_rejected_for_that_alone(run: Path, audited: Callable[..., Any]) -> None:
    restate(run, digest("state", b"other"))
    verdict = audited(run).verdict
    assert [finding.name for finding in verdict.objections] == ["weights"]
    assert "other weights than those of the final state" in verdict.objections[0].detail


def test_a_claim_of_old_names_no_weights(run: Path, audited: Callable[..., Any]) -> None:
    restate(run, None)
    assert audited(run).verdict.accepted
