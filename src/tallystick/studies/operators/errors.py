"""Measures every operator of a graph on one stack, in a process of its own.

`python -m tallystick.studies.operators.errors STACK JOB.json` writes next to the job, for every trace and every result,
how far this stack lies from the exact result on that trace's inputs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tallystick.errors import UnavailableError
from tallystick.graphs import Engine, Graph, Node, load_program
from tallystick.graphs.values import float_results, operands_of
from tallystick.studies.operators.stacks import engine_of, stack_named
from tallystick.studies.operators.traces import read_reference
from tallystick.tensors import StateFile
from tallystick.tolerances.threshold import Errors, errors_of

UNIT_ROUNDOFF = {"F16": 2.0**-11, "BF16": 2.0**-8, "F32": 2.0**-24, "F64": 2.0**-53}


def main(stack_name: str, job: Path) -> None:
    """Do the job of one stack."""
    wanted = json.loads(job.read_text())
    engine = engine_of(stack_named(stack_name))
    graph, _ = load_program(Path(wanted["program"]))
    found = [measured for trace in wanted["traces"] for measured in _measure(graph, Path(trace), engine)]
    job.with_suffix(".out.json").write_text(json.dumps(found))


def _measure(graph: Graph, folder: Path, engine: Engine) -> Iterator[dict[str, Any]]:
    with StateFile(folder / "values.safetensors") as values, StateFile(folder / "references.safetensors") as exact:
        loaded = {name: engine.load(values.tensor(name)) for name in values.names}
        for node in graph.nodes:
            for result, errors in _errors(node, loaded, exact, engine):
                yield {"trace": folder.name, "result": result, "errors": asdict(errors)}


def _errors(node: Node, loaded: dict[str, Any], exact: StateFile, engine: Engine) -> Iterator[tuple[str, Errors]]:
    wanted = float_results(node)
    if not wanted:
        return
    try:
        results = engine.prepare(node)(operands_of(node, loaded))
    except UnavailableError:
        return
    for ref, spec in wanted:
        claimed = engine.unload(results[node.outputs.index(ref)], spec.dtype).values().astype(np.float64)
        yield ref[1:], errors_of(claimed, *read_reference(exact, ref), UNIT_ROUNDOFF[spec.dtype])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
