"""Traces of JAX's profiler: instructions of a compiled program are nodes of the graph where only one can be meant."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import TensorSpec
from tallystick.formats.cluster import Cluster, Device
from tallystick.formats.store.traces import TraceEvent, TraceFolder
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Role
from tallystick.recording.timelines.graph_names import CompiledNames
from tallystick.recording.timelines.imported import TraceSubject, import_profile
from tallystick.recording.timelines.torch_calls import DevicePlaces

TEXT = """\
HloModule jit_step, is_scheduled=true

%inner (p.0: f32[8,8]) -> f32[8,8] {
  %p.0 = f32[8,8]{1,0} parameter(0)
  %tanh.0 = f32[8,8]{1,0} tanh(%p.0)
  ROOT %negate.0 = f32[8,8]{1,0} negate(%tanh.0)
}

ENTRY %main.2 (x.1: f32[8,8]) -> f32[8] {
  %x.1 = f32[8,8]{1,0} parameter(0)
  %dot.1 = f32[8,8]{1,0} dot(%x.1, %x.1), lhs_contracting_dims={1}
  %fusion.3 = f32[8,8]{1,0} fusion(%dot.1), kind=kLoop, calls=%inner
  %add.7 = f32[8,8]{1,0} add(%fusion.3, %dot.1)
  %add.8 = f32[8,8]{1,0} add(%add.7, %dot.1)
  ROOT %out.9 = f32[8]{0} slice(%add.8)
}
"""


def graph() -> Graph:
    """Six nodes as StableHLO has them; two of them are equal sums."""
    square, row = TensorSpec("F32", (8, 8)), TensorSpec("F32", (8,))
    names = ("dot_general", "tanh", "negate", "add", "add", "slice")
    nodes = tuple(
        Node(number, f"stablehlo.{name}", {"operand": "x" if number == 0 else f"n{number - 1}"}, {}, (spec,))
        for number, (name, spec) in enumerate(zip(names, [square] * 5 + [row], strict=True))
    )
    return Graph("stablehlo", GraphForm.LOGICAL, (Input("x", Role.INPUT, square),), (), nodes, (Output("y", "n5"),))


def ran(operation: str, start: float, run: str = "1", thread: int = 5, module: str = "jit_step") -> dict[str, Any]:
    arguments = {"hlo_op": operation, "hlo_module": module, "run_id": run, "device_ordinal": "0"}
    return {"ph": "X", "pid": 7, "tid": thread, "ts": start, "dur": 10.5, "name": operation, "args": arguments}


def imported(folder: Path, entries: list[dict[str, Any]], compiled: bool = True) -> list[TraceEvent]:
    file = folder / "perfetto_trace.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"displayTimeUnit": "ns", "traceEvents": entries}).encode()))
    (folder / "compiled.txt").write_text(TEXT)
    cluster = Cluster.of([Device(name="host/cpu", kind="cpu")], [])
    named = folder / "compiled.txt" if compiled else None
    subject = TraceSubject(cluster, DevicePlaces("host"), graph(), step=4, compiled=named)
    import_profile([file], folder / "trace", subject)
    return list(TraceFolder(folder / "trace").events())


def test_a_fusion_computes_what_is_in_it_and_equal_sums_are_nobodys() -> None:
    names = CompiledNames.of(TEXT, graph(), "compiled.txt")
    assert (names.module, names.nodes) == (
        "jit_step",
        {"dot.1": (0,), "fusion.3": (1, 2), "out.9": (5,), "tanh.0": (1,), "negate.0": (2,)},
    )


def test_instructions_are_operators_and_executions_are_steps(tmp_path: Path) -> None:
    entries = [ran("dot.1", 100), ran("fusion.3", 120), ran("add.7", 140), ran("dot.1", 300, run="2")]
    found = imported(tmp_path, entries)
    assert [(row.operator, row.fused or (), row.step, row.start, row.duration) for row in found] == [
        (0, (), 4, 100_000, 10_500),
        (1, (2,), 4, 120_000, 10_500),
        (None, (), 4, 140_000, 10_500),
        (0, (), 5, 300_000, 10_500),
    ]


def test_without_the_compiled_program_nothing_is_guessed(tmp_path: Path) -> None:
    assert [row.operator for row in imported(tmp_path, [ran("dot.1", 100)], compiled=False)] == [None]


def test_another_program_is_unexplained(tmp_path: Path) -> None:
    (row,) = imported(tmp_path, [ran("dot.1", 100, module="jit_other")])
    assert (row.operator, row.step) == (None, None)


def test_what_runs_inside_of_an_instruction_is_part_of_it(tmp_path: Path) -> None:
    found = imported(tmp_path, [ran("fusion.3", 100), ran("dot.1", 105), ran("dot.1", 105, thread=6)])
    assert [(row.name, row.stream) for row in found] == [("fusion.3", 0), ("dot.1", 1)]


def test_kernels_of_a_gpu_stand_on_it(tmp_path: Path) -> None:
    named = {"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "/device:GPU:1"}}
    copy = {"ph": "X", "pid": 3, "tid": 2, "ts": 1, "dur": 2, "name": "MemcpyH2D"}
    (row,) = imported(tmp_path, [named, copy])
    assert (row.device, row.kind) == ("host/gpu1", "memcpy")


def test_a_trace_without_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="no instruction"):
        imported(tmp_path, [{"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 1, "name": "python"}])


def test_text_that_is_no_program_is_refused() -> None:
    with pytest.raises(MalformedError, match="HloModule"):
        CompiledNames.of("hello", graph(), "compiled.txt")
