"""Checks that a prover's decode graph is the decode step of the verifier's own model.

The verifier captures the step of its model at the same sizes. Equal roots mean the same program. Otherwise both
programs run on the same inputs: with the committed weights, and with random weights, which reveal other formulas.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from tallystick.errors import ProofError, UnavailableError
from tallystick.frameworks.torch.capture.model import CapturedModel
from tallystick.frameworks.torch.generation.decoding import capture_decode
from tallystick.graphs.comparison import SAME_FUNCTION, Comparison, compare_graphs, draw_state, share_apart
from tallystick.graphs.decode_interface import POSITION, SEED, SEEN, TOKEN, decode_sizes
from tallystick.graphs.equivalence import draw_step
from tallystick.graphs.graph import Graph, Role
from tallystick.graphs.reference import Reference
from tallystick.graphs.root import graph_root
from tallystick.graphs.slicing import ancestors, givers_of
from tallystick.graphs.template import Template
from tallystick.tensors.tensor import State
from tallystick.tolerances.tolerance import Finding

HIDDEN: Final = re.compile(r"outputs\.hidden\.(\d{1,6})")
KNOWN: Final = re.compile(r"outputs\.(logits|cache\.\d{1,6}\.(key|value)|hidden\.\d{1,6})")
DEFAULT_PLACES: Final = 1024


@dataclass(frozen=True)
class DecodeProgram:
    """A prover's commitment: a decode graph, its constants, and weights and buffers by their names in the graph.

    If `state` is empty, the verifier's own weights are used. The graph is one binding of `template`, which has the
    dimensions `length` and `past`.
    """

    graph: Graph
    constants: State = field(default_factory=dict)
    state: State = field(default_factory=dict)
    template: Template | None = None

    @property
    def bindings(self) -> State:
        """All values that the graph reads, except tokens, positions and cache."""
        return {**self.constants, **self.state}


def without_sampler(graph: Graph) -> Graph:
    """The step up to the logits, without the choice of a token that `graphs.transforms.with_sampler` adds.

    The choice is checked from the logits; it is not part of a pass over a whole sequence.
    """
    outputs = tuple(each for each in graph.outputs if each.name not in {TOKEN, SEEN})
    givers = givers_of(graph)
    kept = ancestors(graph, {givers[each.value] for each in outputs if each.value in givers})
    return replace(
        graph,
        inputs=tuple(each for each in graph.inputs if each.name not in {SEED, POSITION, SEEN}),
        nodes=tuple(node for node in graph.nodes if node.number in kept),
        outputs=outputs,
    )


def hidden_layers(graph: Graph) -> tuple[int, ...]:
    """The layers whose hidden states are outputs of a graph."""
    matches = (HIDDEN.fullmatch(output.name) for output in graph.outputs)
    return tuple(sorted(int(match[1]) for match in matches if match))


def judge_own_capture(program: DecodeProgram, model: Any, generator: np.random.Generator) -> tuple[Finding, ...]:
    """Compare a committed decode graph with the step of `model`, which holds the promised weights.

    Raises:
        MalformedError: the committed graph is not a decode graph.
        ProofError: a weight has another shape or dtype than the model's.
        UnavailableError: the model cannot be captured, or the graph has inputs or outputs that its step lacks.
    """
    sizes = decode_sizes(program.graph)
    own = capture_decode(model, sizes.past, sizes.batch, sizes.length, hidden_layers(program.graph))
    _check_interface(program.graph, own.graph)
    findings = [*_state_findings(program.state, own.weights)]
    if graph_root(program.graph) == graph_root(own.graph):
        return (*findings, Finding(0.0, 0.0, "decode graph", detail="the same program"))
    places = getattr(model.config, "max_position_embeddings", DEFAULT_PLACES)
    for weights, what in (({}, "weights of the model"), (draw_state(own.graph, generator), "random weights")):
        found = _compared(program, own, {**weights, **draw_step(own.graph, generator, places)})
        findings.append(_finding(found, what))
    return tuple(findings)


def _check_interface(committed: Graph, own: Graph) -> None:
    ours = {each.name: each.spec for each in own.inputs}
    for each in committed.inputs:
        if each.name not in ours:
            raise UnavailableError(f"the decode graph reads {each.name[:80]}, which the step of our model does not")
        if each.spec != ours[each.name]:
            at_fault = ProofError if each.role in (Role.WEIGHT, Role.BUFFER) else UnavailableError
            raise at_fault(f"{each.name[:80]} is {each.spec} in the decode graph, {ours[each.name]} in our model")
    unknown = next((each.name for each in committed.outputs if not KNOWN.fullmatch(each.name)), None)
    if unknown is not None:
        raise UnavailableError(f"the decode graph gives {unknown[:80]}, which the step of our model does not")


def _state_findings(committed: State, own: State) -> list[Finding]:
    """Findings on the state: weights must be equal; buffers must be equal up to rounding."""
    weights = [name for name in committed if name in own and name.startswith("weights.")]
    buffers = [name for name in committed if name in own and name.startswith("buffers.")]
    other = [name for name in weights if committed[name] != own[name]]
    found = [Finding(float(len(other)), 0.0, "model", other[0] if other else "", f"{len(weights)} weights")]
    shares = {name: share_apart(own[name], committed[name]) for name in buffers}
    worst = max(shares, key=lambda name: shares[name], default=None)
    return found + ([] if worst is None else [Finding(shares[worst], SAME_FUNCTION, "model", worst)])


def _compared(program: DecodeProgram, own: CapturedModel, given: State) -> Comparison:
    theirs = {**own.weights, **program.bindings, **given}
    return compare_graphs(program.graph, own.graph, (theirs, {**own.bindings, **given}), Reference())


def _finding(found: Comparison, what: str) -> Finding:
    detail = f"{what}: {found.explanation}" if found.explanation else what
    return Finding(found.distances[found.worst], found.limit, "decode graph", found.parting or found.worst, detail)
