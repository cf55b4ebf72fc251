"""A run of a custom training loop in which one step names a step graph of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from tallystick.attacks.attack import MISSING, Attack, Forger, accepted, rejected
from tallystick.attacks.forging import read_records, write_records
from tallystick.attacks.graph_forging import program_of, remake
from tallystick.attacks.loop_graph import NOT_REPLAYED
from tallystick.attacks.step_graph_edited import adds_a_constant, larger_epsilon
from tallystick.commitments.digests import Digest
from tallystick.graphs.encoding import graph_bytes
from tallystick.graphs.files import save_program
from tallystick.graphs.graph import Node, Operand, Ref, result_ref
from tallystick.graphs.root import graph_root
from tallystick.store.run import RunDirectory
from tallystick.transcripts.record import Record, StepRecord, graph_file
from tallystick.workloads.program import Further, StepProgram

STEP: Final = 7
"""The first of a segment: where its graph is gone, none of these steps can be replayed, and every sample has one."""
SHIFT: Final = 1000
"""By how much nodes are renumbered: the same program under another root."""
Edit = Callable[[StepProgram], StepProgram]


def forge_one_step(edit: Edit) -> Forger:
    """A forger that takes one step with an edited graph, keeps that graph with the run and names it in the record."""

    def forge(run: Path, out: Path) -> None:
        honest = program_of(run)
        edited = edit(honest)
        taken = replace(honest, further=lambda i: Further(edited.graph, edited.constants) if i == STEP else None)
        remake(run, out, practised=taken, declared=honest)
        forged, root = RunDirectory(out), graph_root(edited.graph)
        save_program(forged.path / graph_file(root), edited.graph, edited.constants)
        write_records(forged, [_naming(record, root) for record in read_records(forged)])

    return forge


def _naming(record: Record, root: Digest) -> Record:
    is_it = isinstance(record, StepRecord) and record.index == STEP
    return record.model_copy(update={"graph": root}) if is_it else record


def renumbered(program: StepProgram) -> StepProgram:
    """The same program with other node numbers."""
    graph = program.graph
    moved = {
        ref: result_ref(node.number + SHIFT, place)
        for node in graph.nodes
        for place, ref in enumerate(node.outputs)
        if ref is not None
    }

    def of(operand: Operand) -> Operand:
        if isinstance(operand, tuple):
            return tuple(None if ref is None else moved.get(ref, ref) for ref in operand)
        return None if operand is None else moved.get(operand, operand)

    def moving(node: Node) -> Node:
        operands = {name: of(each) for name, each in node.operands.items()}
        return replace(node, number=node.number + SHIFT, operands=operands)

    outputs = tuple(replace(each, value=_named(each.value, moved)) for each in graph.outputs)
    return replace(program, graph=replace(graph, nodes=tuple(map(moving, graph.nodes)), outputs=outputs))


def _named(ref: Ref, moved: dict[Ref, Ref]) -> Ref:
    return moved.get(ref, ref)


def forge_exchanged(run: Path, out: Path) -> None:
    """Put the graph of another step in the place of the one that the record names."""
    path = _graph_of_the_step(run, out)
    path.write_bytes(graph_bytes(larger_epsilon(program_of(run)).graph))


def forge_removed(run: Path, out: Path) -> None:
    """Delete the graph that the record names."""
    _graph_of_the_step(run, out).unlink()


def _graph_of_the_step(run: Path, out: Path) -> Path:
    forge_one_step(renumbered)(run, out)
    root: Digest = graph_root(renumbered(program_of(run)).graph)
    return RunDirectory(out).path / graph_file(root)


HONEST = accepted("it is the same program, with other numbers of its nodes")
LEFT_OUT = accepted(NOT_REPLAYED)

ATTACKS = (
    Attack(
        name="loop-step-with-its-own-graph",
        change="nothing; one step names a graph of its own, which is that of the others with its nodes renumbered",
        forge=forge_one_step(renumbered),
        reference="loop",
        screens=HONEST,
        exact=HONEST,
        tolerant=HONEST,
        is_honest=True,
    ),
    Attack(
        name="loop-step-of-another-optimizer",
        change="one step is taken with another ε, and its record names the graph of that step; resealed",
        forge=forge_one_step(larger_epsilon),
        reference="loop",
        screens=LEFT_OUT,
        exact=rejected("step graph"),
        tolerant=rejected("step graph"),
    ),
    Attack(
        name="loop-step-hidden-constant",
        change="one step adds a constant pattern to a finished gradient, and its record names its graph; resealed",
        forge=forge_one_step(adds_a_constant),
        reference="loop",
        screens=LEFT_OUT,
        exact=rejected("step graph"),
        tolerant=rejected("step graph"),
    ),
    Attack(
        name="loop-step-graph-exchanged",
        change="the graph of a step with another ε lies in the place of the one that a record names",
        forge=forge_exchanged,
        reference="loop",
        screens=LEFT_OUT,
        exact=rejected("step graph"),
        tolerant=rejected("step graph"),
    ),
    Attack(
        name="loop-step-graph-removed",
        change="the graph that a record names is deleted",
        forge=forge_removed,
        reference="loop",
        screens=LEFT_OUT,
        exact=MISSING,
        tolerant=MISSING,
    ),
)
