"""The common part of forgers of runs with a step graph: take the steps with another graph, and record them.

As after `forging.seal`, the run is consistent: records, summaries, anchors, roots and claim are those of a run with the
graph that was really used, under a spec that names the declared graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tallystick.attacks.forging import copy_run, read_anchor, read_records, summariser_of, write_records
from tallystick.audits.gathering import gather_evidence
from tallystick.audits.policy import Policy
from tallystick.documents.files import write_atomically
from tallystick.errors import UsageError
from tallystick.frameworks.torch.training.graph_replayer import GraphReplayer
from tallystick.graphs.files import save_program
from tallystick.graphs.graph import Graph, Node
from tallystick.graphs.root import graph_root
from tallystick.recorders.run_recorder import header_of
from tallystick.store.run import RunDirectory
from tallystick.tensors.digest import state_digest
from tallystick.tensors.safetensors import write_state
from tallystick.tolerances.loss import quantise
from tallystick.transcripts.record import AnchorRecord, HeaderRecord, Record, StepRecord, anchor_file
from tallystick.transcripts.spec import Spec
from tallystick.workloads.program import StepProgram

NORM_DECIMALS = 12


def program_of(run: Path) -> StepProgram:
    """The step graph of an honest run with its batches; raises `UsageError` for a run that has none."""
    program = gather_evidence(RunDirectory(run), Policy()).program
    if program is None:
        raise UsageError(f"{run}: the run has no step graph to forge")
    return program


def remake(run: Path, out: Path, practised: StepProgram, declared: StepProgram, spec: Spec | None = None) -> None:
    """Repeat every step of `run` with the graph `practised`, under a spec that names the graph `declared`."""
    forged = copy_run(run, out)
    save_program(forged.graph_path, declared.graph, declared.constants)
    chosen = (spec or forged.spec()).model_copy(update={"graph": graph_root(declared.graph)})
    write_atomically(forged.spec_path, chosen.to_bytes())
    write_records(forged, list(_repeated(forged, chosen, practised)))


def with_nodes(program: StepProgram, nodes: tuple[Node, ...]) -> StepProgram:
    """The program with other nodes."""
    return replace(program, graph=replace(program.graph, nodes=nodes))


def with_output(graph: Graph, name: str, value: str) -> Graph:
    """The graph whose output `name` is another value."""
    outputs = tuple(replace(each, value=value) if each.name == name else each for each in graph.outputs)
    return replace(graph, outputs=outputs)


def _repeated(forged: RunDirectory, spec: Spec, program: StepProgram) -> Iterator[Record]:
    records, replayer = read_records(forged), GraphReplayer(spec, program)
    replayer.restore(read_anchor(forged, 0))
    for record in records:
        if isinstance(record, HeaderRecord):
            yield header_of(spec, forged.environment())
        elif isinstance(record, StepRecord):
            yield _step(record, replayer, spec)
        elif isinstance(record, AnchorRecord):
            yield _anchor(record, replayer, forged)
        else:
            yield record


def _step(record: StepRecord, replayer: GraphReplayer, spec: Spec) -> StepRecord:
    seen = replayer.step(record.index)
    norm = None if record.gradient_norm is None or seen.gradient_norm is None else seen.gradient_norm
    shown = {
        "loss": quantise(seen.loss, spec.recorded.loss_decimals),
        "gradient_norm": None if norm is None else quantise(norm, NORM_DECIMALS),
    }
    return record.model_copy(update=shown | {"post": seen.summary})


def _anchor(record: AnchorRecord, replayer: GraphReplayer, forged: RunDirectory) -> AnchorRecord:
    state = dict(replayer.state())
    write_state(forged.path / anchor_file(record.index), state)
    changes = {"digest": state_digest(state), "summary": summariser_of(forged, state).at_anchor()}
    return record.model_copy(update=changes)
