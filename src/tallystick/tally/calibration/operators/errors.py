"""Measures every operator of a graph on one stack, in a process of its own.

`python -m tallystick.tally.calibration.operators.errors STACK JOB.json` writes beside the job, for every result and
every run, how far this stack lies from the exact result on the values of that run. For results that the stack cannot
compute it writes the reason.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.core.errors import UnavailableError
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensors import Tensor
from tallystick.programs.execution import Engine
from tallystick.programs.files import load_program
from tallystick.programs.graph import Graph, Node, Ref, float_results, operands_of
from tallystick.programs.operators.precision import FORMATS
from tallystick.tally.calibration.operators.stacks import SHARED, Block, engine_of, stack_named
from tallystick.verdicts.bounds import errors_of

DIFFERS: Final = 19
"""The column after those of `Errors.row`: 1 if the bits of the result differ from those of the saved run."""
Table = npt.NDArray[np.float64]


def main(stack_name: str, job: Path) -> None:
    """Measure all results on one stack, and write the tables and the reasons for skipped results."""
    wanted = json.loads(job.read_text())
    graph, _ = load_program(Path(wanted["program"]))
    measure = _Measure(engine_of(stack_named(stack_name), graph), Path(wanted["traces"]) / SHARED)
    for folder in wanted["blocks"]:
        measure.block(graph, Block(Path(folder)))
    tables = job.with_suffix(".safetensors")
    write_state(tables, {result: Tensor.of(np.concatenate(rows)) for result, rows in measure.tables.items()})
    job.with_suffix(".out.json").write_text(json.dumps([{"tables": str(tables), "skipped": measure.skipped}]))


class _Measure:
    """The errors of each result, block by block: F64[runs, 20]."""

    def __init__(self, engine: Engine, shared: Path) -> None:
        self.engine = engine
        self.shared = {name: engine.load(tensor) for name, tensor in read_state(shared).items()}
        self.tables: dict[str, list[Table]] = {}
        self.skipped: dict[str, str] = {}

    def block(self, graph: Graph, block: Block) -> None:
        """Measure all runs of a block."""
        for node in graph.nodes:
            wanted = [ref for ref, _ in float_results(node)]
            if not wanted or wanted[0][1:] in self.skipped:
                continue
            try:
                tables = self._node(node, wanted, block)
            except UnavailableError as error:
                self.skipped |= {ref[1:]: str(error) for ref in wanted}
                continue
            for ref, table in tables.items():
                self.tables.setdefault(ref[1:], []).append(table)

    def _node(self, node: Node, wanted: list[Ref], block: Block) -> dict[Ref, Table]:
        run = self.engine.prepare(node)
        own = {ref: block.values(ref) for ref in node.refs if ref not in self.shared}
        shared = {ref: self.shared[ref] for ref in node.refs if ref in self.shared}
        rows = []
        for i in range(len(block.values(wanted[0]))):
            loaded = {ref: self.engine.load(tensors[i]) for ref, tensors in own.items()}
            rows.append(run(operands_of(node, shared | loaded)))
        return {ref: self._table(node, ref, rows, block) for ref in wanted}

    def _table(self, node: Node, ref: Ref, rows: list[tuple[Any, ...]], block: Block) -> Table:
        position = node.outputs.index(ref)
        spec = node.results[position]
        assert spec is not None  # one of `float_results`
        table = np.empty((len(rows), DIFFERS + 1))
        cases = zip(rows, block.values(ref), block.references(ref), strict=True)
        for i, (results, kept, (reference, radius)) in enumerate(cases):
            claimed = self.engine.unload(results[position], spec.dtype)
            errors = errors_of(claimed.values().astype(np.float64), reference, radius, FORMATS[spec.dtype].unit)
            table[i, :DIFFERS], table[i, DIFFERS] = errors.row(), claimed.array().tobytes() != kept.array().tobytes()
        return table


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
