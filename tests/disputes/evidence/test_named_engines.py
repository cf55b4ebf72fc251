"""Disputes hold every engine to the bounds: a referee excuses none, and a prover's program refuses to use one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tallystick.core.errors import UsageError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.disputes.evidence.statement import statement_at
from tallystick.disputes.evidence.traces import trace_of
from tallystick.disputes.evidence.training import TrainingStatement
from tallystick.formats.openings import Opening
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.graph import Graph, Input, Role
from tallystick.programs.operators.precision import outside
from tallystick.verdicts.leaf.judge import rule_leaf
from tallystick.verdicts.leaf.request import Ground, LeafRequest
from tallystick.verdicts.verdict import Fault
from tests.verdicts.leaf.leaves import NumpyEngine, alone, node, opened, shifted

X = TensorSpec("F32", (8,))


def cosine() -> Graph:
    """A graph of one cosine."""
    return alone(node(0, "cos.default", {"self": "inputs.x"}, [["F32", 8]]), Input("inputs.x", Role.INPUT, X))


def opened_by(name: str, folder: Path, by: float) -> Path:
    """A cosine whose first element is moved, by an engine of this name."""
    given = {"inputs.x": Tensor.of(np.linspace(-3, 3, 8, dtype=np.float32))}
    engine = NumpyEngine({0: shifted(by)}, name)
    whole = opened(folder, graph=cosine(), given=given, engine=engine).whole
    ruling = rule_leaf(whole.bundle(0), LeafRequest())
    assert ruling.fault is (Fault.PROVER if by else Fault.CHALLENGER)
    assert ruling.ground is (Ground.BOUND if by else Ground.HOLDS)
    return folder


@pytest.mark.parametrize("name", ["torch", "iree"])
@pytest.mark.parametrize("by", [0.0, 1e-3])
def test_a_referee_rules_alike_whatever_engine_the_prover_names(name: str, by: float, tmp_path: Path) -> None:
    assert (outside(name, "aten.cos.default", "F32") is not None) == (name == "iree")
    folder = opened_by(name, tmp_path / "opening", by)
    said = Opening.from_bytes((folder / "opening.json").read_bytes(), "opening.json").engine
    assert said == (None if name == "torch" else name)


def test_a_prover_does_not_play_with_an_engine_that_is_known_to_lie_outside(tmp_path: Path) -> None:
    folder = opened_by("iree", tmp_path / "opening", 0.0)
    with pytest.raises(UsageError, match=r"iree lies outside the bounds .* open with another engine"):
        trace_of(statement_at(folder), tmp_path / "work")
    with pytest.raises(UsageError, match="iree lies outside"):
        trace_of(TrainingStatement(RunDirectory(tmp_path / "run")), tmp_path / "work", NumpyEngine({}, "iree"))


def test_it_plays_with_others(tmp_path: Path) -> None:
    assert trace_of(statement_at(opened_by("numpy", tmp_path / "opening", 0.0)), tmp_path / "work") is not None
