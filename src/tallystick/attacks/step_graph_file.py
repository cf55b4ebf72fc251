"""The step graph that a spec names is missing, or its file is another graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tallystick.attacks.attack import MISSING, Attack, Forger, rejected
from tallystick.attacks.forging import copy_run
from tallystick.attacks.graph_forging import program_of
from tallystick.attacks.step_graph_edited import larger_epsilon
from tallystick.graphs.encoding import graph_bytes
from tallystick.store.run import RunDirectory


def forge_removed(run: Path, out: Path) -> None:
    """Delete the step graph."""
    program_of(run)
    copy_run(run, out).graph_path.unlink()


def forge_exchanged(run: Path, out: Path) -> None:
    """Replace it by the graph of another step."""
    other = larger_epsilon(program_of(run)).graph
    copy_run(run, out).graph_path.write_bytes(graph_bytes(other))


def editing(edit: Callable[[bytes], bytes]) -> Forger:
    """A forger that applies `edit` to the bytes of the step graph."""

    def forge(run: Path, out: Path) -> None:
        program_of(run)
        path = RunDirectory(copy_run(run, out).path).graph_path
        path.write_bytes(edit(path.read_bytes()))

    return forge


ATTACKS = (
    Attack(
        name="graph-removed",
        change="the step graph that the spec names is deleted",
        forge=forge_removed,
        screens=MISSING,
        exact=MISSING,
        tolerant=MISSING,
        claim=MISSING,
    ),
    Attack(
        name="graph-exchanged",
        change="the graph of a step with another ε lies in the place of the one that the spec names",
        forge=forge_exchanged,
        screens=rejected("step graph"),
        exact=rejected("step graph"),
        tolerant=rejected("step graph"),
        claim=rejected("step graph"),
    ),
    Attack(
        name="graph-unknown-operator",
        change="an operator of the step graph is exchanged for one that no verifier runs",
        forge=editing(lambda graph: graph.replace(b'"aten.embedding.default"', b'"aten.system.default"')),
        screens=rejected("step graph"),
        exact=rejected("step graph"),
        tolerant=rejected("step graph"),
        claim=rejected("step graph"),
    ),
    Attack(
        name="graph-respelled",
        change="the step graph is the same in meaning, and its bytes hold one space more",
        forge=editing(lambda graph: graph.replace(b"{", b"{ ", 1)),
        screens=rejected("step graph"),
        exact=rejected("step graph"),
        tolerant=rejected("step graph"),
        claim=rejected("step graph"),
    ),
)
