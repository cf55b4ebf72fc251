"""A calibration measures every stack in its own process, and judges each by thresholds from the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from research.operators.page import render_calibration
from tallystick.core.errors import MalformedError, UsageError
from tallystick.core.safetensors import write_state
from tallystick.core.tensors import Tensor
from tallystick.programs.encoding import graph_root
from tallystick.programs.graph import Graph
from tallystick.tally.calibration import operator_runs as traces, operators as calibrate
from tallystick.tally.calibration.operators import (
    OperatorStudy,
    StackMeasurement,
    calibrate_graph,
    figures_of,
    leave_out,
    one_rounding,
)
from tests.tally.calibration.conftest import QUICK_STACKS, write_program

pytest.importorskip("torch")


def silent(_: str) -> None:
    pass


def measured(stack: str, scale: float, runs: int = 8, seed: int = 0) -> StackMeasurement:
    """A stack whose one result lies up to `scale` of its bound from exact."""
    random = np.random.default_rng(seed)
    tables = np.zeros((runs, 20))
    tables[:, :4] = scale * np.array([0.3, 0.6, 0.8, 1.0]) * random.uniform(0.9, 1.0, (runs, 1))
    tables[:, 17] = 5000
    return StackMeasurement(stack, {"0": tables}, {}, {})


def rounding(runs: int = 8) -> StackMeasurement:
    return StackMeasurement("one rounding", {"0": np.zeros((runs, 20))}, {}, {})


@pytest.fixture(scope="module")
def studied(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> tuple[OperatorStudy, Path]:
    """A study of the program, and its folder."""
    folder = tmp_path_factory.mktemp("studied")
    program = write_program(graph, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "stacks_here", lambda _: QUICK_STACKS)
        return calibrate_graph(program, folder / "inputs", folder / "study", silent), folder / "study"


def test_a_study_measures_every_result_on_every_stack(graph: Graph, studied: tuple[OperatorStudy, Path]) -> None:
    study, quick_stacks = studied[0], QUICK_STACKS
    assert [one.stack for one in study.measured] == [stack.name for stack in quick_stacks]
    assert all(one.tables.keys() == {"0", "1", "2"} and not one.skipped for one in study.measured)
    assert all(table.shape == (6, 20) for one in study.measured for table in one.tables.values())
    assert study.profile.inputs == 6
    nodes = study.profile.nodes[graph_root(graph)]
    assert 0 < nodes["0"].share[-1] < 0.5
    assert nodes["2"].share == (0.0, 0.0, 0.0, 0.0)  # relu rounds nothing
    loops = next(one for one in study.measured if one.stack == "plain loops")
    library = next(one for one in study.measured if one.stack == "NumPy")
    assert loops.errors("0").share[-1] > library.errors("0").share[-1]
    assert loops.differs > 0
    page = render_calibration([{"model": "tiny", **figures_of(study)}], "a command")
    assert "plain loops" in page
    assert "`aten._softmax.default F32`" in page


def test_runs_in_several_blocks_are_the_same_runs(
    program: Path,
    tmp_path: Path,
    studied: tuple[OperatorStudy, Path],
    quick_stacks: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, _ = studied
    monkeypatch.setattr(traces, "BLOCK_BYTES", 1)
    parts = calibrate_graph(program, tmp_path / "inputs", tmp_path / "parts", silent)
    assert len(list((tmp_path / "parts" / "traces").glob("0*"))) == 6
    assert parts.profile == whole.profile


def test_no_threshold_is_narrower_than_one_rounding(graph: Graph, studied: tuple[OperatorStudy, Path]) -> None:
    study, folder = studied
    floor = one_rounding(graph, sorted((folder / "traces").glob("0*")))
    for result, entry in study.profile.nodes[study.root].items():
        assert entry.share[-1] >= floor.errors(result).share[-1]
    assert floor.errors("0").ulp[-1] == pytest.approx(1.0, rel=0.01) or floor.errors("0").ulp[-1] < 1.0
    assert floor.errors("0").bias == 0.0


def test_a_stack_like_the_others_is_accepted_and_one_further_off_rejected(graph: Graph) -> None:
    stacks = (measured("a", 0.1, seed=1), measured("b", 0.1, seed=2), measured("far", 0.9, seed=3))
    rows = {row.stack: row for row in leave_out(graph, stacks, rounding())}
    assert rows["a"].rejected == rows["b"].rejected == 0
    assert rows["far"].rejected == 4
    assert min(rows["far"].stretch) > 5
    assert rows["far"].where == "n0 aten.linear.default F32"


def test_a_stack_that_repeats_another_is_left_out_with_it(graph: Graph) -> None:
    one = measured("a", 0.1)
    rows = list(leave_out(graph, (one, replace(one, stack="again"), measured("b", 0.1, seed=2)), rounding()))
    assert [(row.stack, row.alike) for row in rows] == [("a", ("again",)), ("b", ())]


def test_a_stack_beyond_the_bound_is_told_apart(tmp_path: Path, graph: Graph) -> None:
    tables = {"0": np.full((2, 20), 0.1), "1": np.full((2, 20), 3.0)}
    for table in tables.values():
        table[:, 17] = 120
    write_state(tmp_path / "t.safetensors", {name: Tensor.of(table) for name, table in tables.items()})
    found = calibrate._measured("odd", {"tables": str(tmp_path / "t.safetensors"), "skipped": {"2": "does not run"}})
    assert found.tables.keys() == {"0"}
    assert found.beyond == {"1": 3.0}
    (row,) = leave_out(graph, [found], rounding(2))
    assert (row.results, row.skipped, dict(row.beyond)) == (1, 1, {"n1 aten._softmax.default F32": 3.0})


def test_a_folder_without_inputs_is_refused(program: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UsageError, match=r"no \*.safetensors file"):
        calibrate_graph(program, empty, tmp_path / "study", silent)


@pytest.mark.parametrize(
    ("inputs", "complaint"),
    [
        ({"inputs.y": np.zeros((3, 64), "<f4")}, r"3.safetensors: inputs.x is missing, F32\[3,64\] is needed"),
        ({"inputs.x": np.zeros((3, 64), "<f8")}, r"3.safetensors: inputs.x is F64\[3,64\], F32\[3,64\] is needed"),
        ({"inputs.x": np.zeros((64, 3), "<f4")}, r"3.safetensors: inputs.x is F32\[64,3\], F32\[3,64\] is needed"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(
    inputs: dict[str, Any], complaint: str, program: Path, tmp_path: Path
) -> None:
    write_state(tmp_path / "inputs" / "3.safetensors", {name: Tensor.of(value) for name, value in inputs.items()})
    with pytest.raises(MalformedError, match=complaint):
        calibrate_graph(program, tmp_path / "inputs", tmp_path / "study", silent)
