"""`tally calibrate` and `tally merge-profiles`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.core.safetensors import write_state
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.encoding import graph_root
from tallystick.programs.files import save_program
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Role
from tallystick.tally.calibration import operators as calibrate
from tallystick.tally.calibration.stacks import stack_named
from tallystick.tally.operators import read_budgets, read_profile

Tally = Callable[..., Any]
SPEC = TensorSpec("F32", (4, 32))


@pytest.fixture
def graph() -> Graph:
    nodes = (
        Node(0, "aten.mul.Tensor", {"self": "inputs.x", "other": "weights.w"}, {}, (SPEC,)),
        Node(1, "aten._softmax.default", {"self": "n0"}, {"dim": 1, "half_to_float": False}, (SPEC,)),
    )
    inputs = (Input("inputs.x", Role.INPUT, SPEC), Input("weights.w", Role.WEIGHT, SPEC))
    return Graph("aten", GraphForm.LOGICAL, inputs, (), nodes, (Output("outputs.0", "n1"),))


@pytest.fixture
def place(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`graph.json` and `inputs/` with weights and two sets; two stacks that start quickly."""
    quick = tuple(map(stack_named, ("NumPy", "plain loops")))
    monkeypatch.setattr(calibrate, "stacks_here", lambda _: quick)
    random = np.random.default_rng(7)
    save_program(tmp_path / "graph.json", graph, {})
    for file, name in (("weights", "weights.w"), ("a", "inputs.x"), ("b", "inputs.x")):
        values = Tensor.of(random.standard_normal(SPEC.shape).astype("<f4"))
        write_state(tmp_path / "inputs" / f"{file}.safetensors", {name: values})
    return tmp_path


def calibrated(tally: Tally, place: Path, *more: object) -> Any:
    out = place / "profile.json"
    return tally("calibrate", place / "graph.json", "--inputs", place / "inputs", "--out", out, *more)


def test_a_profile_is_written_and_read_back(tally: Tally, place: Path, graph: Graph) -> None:
    told = calibrated(tally, place)
    assert (told.code, told.err.count("Traceback")) == (0, 0)
    profile = read_profile(place / "profile.json")
    assert told.out.strip() == profile.digest_as("calibration")
    assert profile.stacks == ("NumPy", "plain loops")
    assert profile.inputs == 2
    threshold = profile.threshold(graph_root(graph), "1", "aten._softmax.default", "F32")
    assert threshold is not None
    assert 0 < threshold.allowed()[-1] <= 1
    assert profile.threshold(graph_root(graph), "7", "aten.tanh.default", "F32") is None


def test_all_figures_are_there_when_asked_for(tally: Tally, place: Path) -> None:
    told = calibrated(tally, place, "--json", "--figures", place / "figures.json", "--keep", place / "kept")
    figures = json.loads(told.out)
    assert figures == json.loads((place / "figures.json").read_bytes())
    assert {row["stack"] for row in figures["left_out"]} == {"NumPy", "plain loops"}
    assert (place / "kept" / "traces" / "shared.safetensors").is_file()


def test_a_budget_of_whole_runs_is_written_for_judges_of_disputes(tally: Tally, place: Path, graph: Graph) -> None:
    told = calibrated(tally, place, "--budget", place / "budget.json")
    assert told.code == 0
    (budget,) = read_budgets([place / "budget.json"])
    assert (budget.graph, budget.stacks, budget.runs) == (graph_root(graph), ("NumPy", "plain loops"), 4)
    assert budget.paths.keys() == {"outputs.0"}
    assert budget.path == budget.paths["outputs.0"] > 0


def test_profiles_of_several_machines_are_joined(tally: Tally, place: Path) -> None:
    assert calibrated(tally, place).code == 0
    profile = read_profile(place / "profile.json")
    wide = profile.model_copy(update={"safety": 4.0, "machines": ("another",)})
    (place / "other.json").write_bytes(wide.to_bytes() + b"\n")
    told = tally("merge-profiles", place / "profile.json", place / "other.json", "--out", place / "both.json")
    joined = read_profile(place / "both.json")
    assert (told.code, told.out.strip()) == (0, joined.digest_as("calibration"))
    assert joined.inputs == 4
    assert joined.safety == 4.0
    assert set(joined.machines) == {*profile.machines, "another"}
    assert joined.nodes == profile.nodes


def test_an_input_that_is_missing_is_named(tally: Tally, place: Path) -> None:
    write_state(place / "inputs" / "b.safetensors", {"x": Tensor.of(np.zeros(SPEC.shape, "<f4"))})
    told = calibrated(tally, place)
    assert (told.code, told.complaint) == (4, "tally: b.safetensors: inputs.x is missing, F32[4,32] is needed")


def test_an_input_of_another_dtype_is_named(tally: Tally, place: Path) -> None:
    write_state(place / "inputs" / "b.safetensors", {"inputs.x": Tensor.of(np.zeros(SPEC.shape, "<i8"))})
    told = calibrated(tally, place)
    assert (told.code, told.complaint) == (4, "tally: b.safetensors: inputs.x is I64[4,32], F32[4,32] is needed")


def test_weights_that_are_missing_are_named(tally: Tally, place: Path) -> None:
    (place / "inputs" / "weights.safetensors").unlink()
    told = calibrated(tally, place)
    assert (told.code, told.complaint) == (4, "tally: a.safetensors: weights.w is missing, F32[4,32] is needed")


def test_a_folder_without_inputs_is_a_mistake_of_the_caller(tally: Tally, place: Path) -> None:
    for path in (place / "inputs").glob("[ab].safetensors"):
        path.unlink()
    told = calibrated(tally, place)
    assert told.code == 2
    assert "no *.safetensors file with a set of inputs" in told.complaint


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda place: (place / "graph.json").unlink(), "graph.json: no such graph"),
        (lambda place: (place / "graph.json").write_text("{}"), "graph"),
        (lambda place: (place / "inputs" / "a.safetensors").write_bytes(b"no"), "a.safetensors"),
    ],
)
def test_files_that_are_none_are_refused(
    damage: Callable[[Path], object], complaint: str, tally: Tally, place: Path
) -> None:
    damage(place)
    told = calibrated(tally, place)
    assert told.code == 4
    assert complaint in told.complaint
    assert not (place / "profile.json").exists()


def test_without_pytorch_it_says_what_to_install(tally: Tally, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    told = calibrated(tally, place)
    assert told.code == 4
    assert "torch is not installed: pip install 'tallystick[" in told.complaint


def test_a_profile_that_is_none_is_refused(tally: Tally, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"profile":"something"}\n')
    told = tally("merge-profiles", tmp_path / "p.json", "--out", tmp_path / "q.json")
    assert told.code == 4
    assert "p.json" in told.complaint
    assert not (tmp_path / "q.json").exists()
