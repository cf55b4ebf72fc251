"""The graph that checks a whole answer, and whether a prover's decode graph is the verifier's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from tallystick.core.errors import ProofError, UnavailableError, UsageError
from tallystick.core.tensors import State
from tallystick.engines.torch.generation.decoding import (
    capture_decode,
    capture_prefill,
    model_state,
    verification_binding,
)
from tallystick.programs.decoding import (
    POSITION,
    SEED,
    SEEN,
    TOKEN,
    allowed_share,
    decode_sizes,
    decoding_distances,
    draw_step,
    empty_cache,
    last_step_distances,
)
from tallystick.programs.difference import SAME_FUNCTION, compare_graphs, draw_state, share_apart
from tallystick.programs.encoding import graph_root
from tallystick.programs.execution import Reference
from tallystick.programs.graph import Graph, Role
from tallystick.programs.slicing import ancestors, givers_of
from tallystick.programs.templates import Template
from tallystick.programs.transforms.teacher_forcing import to_teacher_forcing
from tallystick.verdicts.tolerance import Finding

# Checks that a prover's decode graph is the decode step of the verifier's own model.
#
# The verifier captures the step of its model at the same sizes. Equal roots mean the same program. Otherwise both
# programs run on the same inputs: with the committed weights, and with random weights, which reveal other formulas.

HIDDEN: Final = re.compile(r"outputs\.hidden\.(\d{1,6})")
KNOWN: Final = re.compile(r"outputs\.(logits|cache\.\d{1,6}\.(key|value)|hidden\.\d{1,6})")
DEFAULT_PLACES: Final = 1024


@dataclass(frozen=True)
class DecodeProgram:
    """A prover's commitment: a decode graph, its constants, and weights and buffers by their names in the graph.

    If `state` is empty, the verifier's own weights are used. The graph is one binding of `template`, which has the
    dimensions `length` and `past`. A graph over a whole sequence is one as well, with an empty cache.
    """

    graph: Graph
    constants: State = field(default_factory=dict)
    state: State = field(default_factory=dict)
    template: Template | None = None

    @property
    def bindings(self) -> State:
        """All values that the graph reads, except tokens, positions and a cache that is not empty."""
        return {**self.state, **self.constants, **empty_cache(self.graph)}


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
        given = {**weights, **draw_step(own.graph, generator, places)}
        bindings = ({**own.weights, **program.bindings, **given}, {**own.bindings, **given})
        compared = compare_graphs(program.graph, own.graph, bindings, Reference())
        detail = f"{what}: {compared.explanation}" if compared.explanation else what
        where = compared.parting or compared.worst
        findings.append(Finding(compared.distances[compared.worst], compared.limit, "decode graph", where, detail))
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


# Derives, from a committed decode graph, the graph that checks a whole answer in one pass.
#
# Three routes are tried in this order: the verifier's own capture of the promised model, the committed template bound
# to the whole sequence, and the committed graph transformed. The result states why earlier routes were not taken.

Route: TypeAlias = Literal["own capture", "symbolic length", "teacher forcing"]
STEPS: Final = 4
"""The number of tokens that are fed one by one to check a template."""


@dataclass(frozen=True)
class VerificationGraph:
    """The pass to make, the route that led to it, and why each earlier route was not taken.

    `findings` are the comparisons with the committed decode graph; all of them agree.
    """

    whole: DecodeProgram
    route: Route
    passed_over: Mapping[Route, str]
    findings: tuple[Finding, ...]

    @property
    def graph(self) -> Graph:
        """The graph over the whole sequence."""
        return self.whole.graph


@dataclass(frozen=True)
class GraphRequest:
    """The input of the routes: the committed program, the length, and the model and generator to check with."""

    program: DecodeProgram
    length: int
    model: Any | None
    generator: np.random.Generator

    @cached_property
    def own_state(self) -> State:
        """Weights and buffers of the model; empty without a model."""
        return {} if self.model is None else model_state(self.model)


def verification_graph(
    program: DecodeProgram,
    length: int,
    model: Any | None = None,
    routes: Collection[Route] = ("own capture", "symbolic length", "teacher forcing"),
    seed: int | None = None,
) -> VerificationGraph:
    """The graph that feeds `length` tokens at once, with the results that the committed graph gives one by one.

    Only the first route shows that the graph belongs to the promised model. The others show that the pass computes what
    the committed graph decodes. Programs are compared on the reference engine: its float64 separates another formula
    from another order of rounding.

    Args:
        program: the prover's commitment.
        length: the number of fed tokens of prompt and answer.
        model: the verifier's own copy of the promised model, built by its own library from architecture, configuration
            and weights as data; without it the first route is not possible.
        routes: the accepted routes.
        seed: the seed of the random inputs, to repeat a comparison; by default a prover cannot predict them.

    Raises:
        UsageError: `length` is below 1.
        MalformedError: the committed graph is not a decode graph.
        ProofError: the committed graph is another function than the step of the model, or than its own template.
        UnavailableError: no route is possible; the message gives every reason.
    """
    if length < 1:
        raise UsageError("a pass feeds at least one token")
    question = GraphRequest(
        replace(program, graph=without_sampler(program.graph)), length, model, np.random.default_rng(seed)
    )
    passed_over: dict[Route, str] = {}
    for route, take in ROUTES.items():
        if route not in routes:
            passed_over[route] = "not asked for"
            continue
        try:
            whole, findings = take(question)
        except UnavailableError as error:
            passed_over[route] = str(error)
        else:
            return VerificationGraph(whole, route, passed_over, findings)
    raise UnavailableError("; ".join(f"{route}: {reason}" for route, reason in passed_over.items()))


def check_equivalence(question: GraphRequest, decode: DecodeProgram, whole: DecodeProgram) -> tuple[Finding, ...]:
    """Compare the last token of the pass `whole` with the same token fed to `decode` after the same cache.

    Once with the known weights, if there are any, and once with random ones.
    """
    found = []
    for state, what in _states(question, decode):
        bindings = ({**decode.bindings, **state}, {**whole.bindings, **state})
        distances = last_step_distances(decode.graph, whole.graph, bindings, Reference(), question.generator)
        found.append(_graph_finding(distances, allowed_share(decode.graph), f"one step against the pass, {what}"))
    return tuple(found)


def _own_capture(question: GraphRequest) -> tuple[DecodeProgram, tuple[Finding, ...]]:
    model = question.model
    if model is None:
        raise UnavailableError("there is no model of our own")
    program, layers = question.program, hidden_layers(question.program.graph)
    findings = judge_own_capture(program, model, question.generator)
    _require(findings, ProofError, "the decode graph is not the step of the model")

    @cache
    def over(length: int) -> DecodeProgram:
        found = capture_prefill(model, length, decode_sizes(program.graph).batch, layers)
        return DecodeProgram(found.graph, found.constants, found.weights)

    equal = check_equivalence(question, program, over(decode_sizes(program.graph).past + 1))
    _require(equal, UnavailableError, "the model decodes otherwise than it reads a whole sequence")
    return over(question.length), (*findings, *equal)


def _symbolic_length(question: GraphRequest) -> tuple[DecodeProgram, tuple[Finding, ...]]:
    program, template = question.program, question.program.template
    if template is None or template.dimensions.keys() != {"length", "past"}:
        raise UnavailableError("the committed graph has no named length and past")
    sizes = decode_sizes(program.graph)
    try:
        whole = DecodeProgram(verification_binding(template, question.length), program.constants, program.state)
        same = graph_root(template.bind(length=sizes.length, past=sizes.past)) == graph_root(program.graph)
    except UsageError as error:
        raise UnavailableError(str(error)) from None
    if not same:
        raise ProofError("the committed decode graph is not among the bindings of its template")
    findings = tuple(_fed_one_by_one(question, min(STEPS, question.length)))
    _require(findings, ProofError, "the template decodes otherwise than it reads a whole sequence")
    return whole, findings


def _fed_one_by_one(question: GraphRequest, length: int) -> Iterator[Finding]:
    template = question.program.template
    assert template is not None  # asked by the route
    whole = verification_binding(template, length)
    for state, what in _states(question, question.program):
        bindings = {**question.program.constants, **state}
        distances = decoding_distances(
            lambda past: template.bind(length=1, past=past), whole, bindings, Reference(), question.generator
        )
        yield _graph_finding(distances, allowed_share(whole), f"{length} tokens one by one against the pass, {what}")


def _teacher_forcing(question: GraphRequest) -> tuple[DecodeProgram, tuple[Finding, ...]]:
    program, reach = question.program, decode_sizes(question.program.graph).past + 1
    if question.length > reach:
        raise UnavailableError(f"the committed graph reaches {reach} tokens, and {question.length} are to be fed")

    @cache
    def over(length: int) -> DecodeProgram:
        return DecodeProgram(
            to_teacher_forcing(program.graph, length, program.constants), program.constants, program.state
        )

    findings = check_equivalence(question, program, over(reach))
    _require(findings, UnavailableError, "the transformed graph computes something else")
    return over(question.length), findings


ROUTES: Final[Mapping[Route, Callable[[GraphRequest], tuple[DecodeProgram, tuple[Finding, ...]]]]] = {
    "own capture": _own_capture,
    "symbolic length": _symbolic_length,
    "teacher forcing": _teacher_forcing,
}


def _states(question: GraphRequest, decode: DecodeProgram) -> Iterator[tuple[State, str]]:
    """Weights and buffers for comparisons: the known weights, then random ones; unknown buffers are random."""
    weights, buffers = (draw_state(decode.graph, question.generator, role) for role in (Role.WEIGHT, Role.BUFFER))
    held = {**buffers, **question.own_state, **question.program.state}
    if weights.keys() <= held.keys():
        yield held, "weights of the model"
    yield {**held, **weights}, "random weights"


def _graph_finding(distances: Mapping[str, float], allowed: float, detail: str) -> Finding:
    worst = max(distances, key=lambda name: distances[name])
    return Finding(distances[worst], allowed, "equivalence", worst, detail)


def _require(findings: tuple[Finding, ...], kind: type[ProofError | UnavailableError], what: str) -> None:
    wrong = [finding for finding in findings if not finding.agrees]
    if wrong:
        worst = max((each for each in wrong if each.name == wrong[0].name), key=lambda finding: finding.distance)
        said = f"{worst.where} is off by {worst.distance:.2g}, where {worst.allowed:.2g} is allowed"
        raise kind(": ".join(filter(None, [what, worst.name, said, worst.detail])))
