"""Runs whose step graph is another one, or whose file of it is missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tallystick.audits.opening import gather_evidence
from tallystick.audits.policy import Policy
from tallystick.core.errors import UsageError
from tallystick.core.files import write_atomically
from tallystick.core.safetensors import write_state
from tallystick.core.tensor_digests import state_digest, tensor_digest
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.engines.torch.training.verifier_stack import GraphReplayer
from tallystick.formats.records import AnchorRecord, HeaderRecord, Record, StepRecord, anchor_file
from tallystick.formats.spec import Spec
from tallystick.formats.step_program import StepProgram
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.encoding import graph_bytes, graph_root
from tallystick.programs.files import save_program
from tallystick.programs.graph import Constant, Graph, Input, Node, Operand, Ref, Role
from tallystick.programs.operators.definition import Attribute
from tallystick.recording.run_recorder import header_of
from tallystick.tally.attacks.forging import (
    MISSING,
    Attack,
    Forger,
    accepted,
    copy_run,
    read_anchor,
    read_records,
    rejected,
    summariser_of,
    write_records,
)
from tallystick.verdicts.exact import quantise

# The common part of forgers of runs with a step graph: take the steps with another graph, and record them.
#
# As after `forging.seal`, the run is consistent: records, summaries, anchors, roots and claim are those of a run with
# the graph that was really used, under a spec that names the declared graph.

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


# The run is made with another step than that of its recipe, and its spec names the graph of this other step.

HIDDEN_SIZE = np.float32(1e-3)
HIDDEN = "inputs.hidden"
Edit = Callable[[StepProgram], StepProgram]


def forge_with(edit: Edit) -> Forger:
    """A forger that takes every step with an edited graph and declares that graph."""

    def forge(run: Path, out: Path) -> None:
        program = edit(program_of(run))
        remake(run, out, practised=program, declared=program)

    return forge


def forge_named_only(run: Path, out: Path) -> None:
    """Take honest steps, and name the graph of another step."""
    program = program_of(run)
    remake(run, out, practised=program, declared=larger_epsilon(program))


def larger_epsilon(program: StepProgram) -> StepProgram:
    """The optimizer divides by √v + 1e-6 instead of √v + 1e-8."""
    return _with_attributes(program, "aten.add.Scalar", {"other": 1e-8}, {"other": 1e-6})


def shorter_memory(program: StepProgram) -> StepProgram:
    """The second moment decays by 0.998 a step instead of 0.999."""
    return _with_attributes(program, "aten.mul.Scalar", {"other": 0.999}, {"other": 0.998})


def looks_ahead(program: StepProgram) -> StepProgram:
    """The attention mask lets a token see later tokens instead of earlier ones."""
    nodes = program.graph.nodes
    if not any(node.operator == "aten.le.Tensor" for node in nodes):
        raise UsageError("this forgery turns a causal mask around, and the step graph of this run builds none")
    turned = {"aten.le.Tensor": "aten.ge.Tensor"}
    return with_nodes(program, tuple(replace(n, operator=turned.get(n.operator, n.operator)) for n in nodes))


def skips_a_tensor(program: StepProgram) -> StepProgram:
    """The largest weight is not updated; its moments are updated as in an honest step."""
    name = largest_weight(program.graph)
    return replace(program, graph=with_output(program.graph, name, name))


def adds_a_constant(program: StepProgram) -> StepProgram:
    """Every step adds the same pattern to the gradient of the largest weight."""
    name = largest_weight(program.graph)
    pattern = _pattern(program.graph.specs()[name])
    constant = Constant("hidden", TensorSpec.of(pattern), tensor_digest(pattern))
    graph = replace(program.graph, constants=(*program.graph.constants, constant))
    return replace(program, graph=_added(graph, name, "hidden"), constants={**program.constants, "hidden": pattern})


def adds_an_input(program: StepProgram) -> StepProgram:
    """Every step adds to the gradient of the largest weight an input that no batch declares."""
    name = largest_weight(program.graph)
    pattern = _pattern(program.graph.specs()[name])
    given = Input(HIDDEN, Role.INPUT, TensorSpec.of(pattern))
    graph = replace(program.graph, inputs=(*program.graph.inputs, given))
    batch = program.batch
    return replace(program, graph=_added(graph, name, HIDDEN), batch=lambda step: {**batch(step), HIDDEN: pattern})


def largest_weight(graph: Graph) -> str:
    """The name of the weight with the most elements."""
    weights = [each for each in graph.inputs if each.name.startswith("weights.")]
    return max(weights, key=lambda each: (each.spec.size, each.name)).name


def _pattern(spec: TensorSpec) -> Tensor:
    signs = np.where(np.arange(spec.size) % 3 == 0, HIDDEN_SIZE, -HIDDEN_SIZE)
    return Tensor.of(np.ascontiguousarray(signs.astype(np.float32).reshape(spec.shape)))


def _added(graph: Graph, name: str, what: Ref) -> Graph:
    """The graph in which `what` is added to the gradient that the optimizer reads for the weight `name`."""
    return gradient_replaced(graph, name, "aten.add.Tensor", {"alpha": 1}, {"other": what})[0]


def gradient_replaced(
    graph: Graph,
    name: str,
    operator: str,
    attributes: Mapping[str, Attribute] | None = None,
    operands: Mapping[str, Ref] | None = None,
) -> tuple[Graph, int]:
    """The graph in which the optimizer reads `operator` of the gradient of a weight, and the number of the new node."""
    moment = f"optimizer.{name.removeprefix('weights.')}.exp_avg"
    position = next((i for i, node in enumerate(graph.nodes) if moment in node.refs), None)
    if position is None:
        raise UsageError("this forgery changes a gradient that AdamW reads, and this run has another optimizer")
    gradient, number = graph.nodes[position].operands["end"], graph.nodes[position].number
    made = Node(
        number, operator, {"self": gradient, **(operands or {})}, dict(attributes or {}), (graph.specs()[name],)
    )
    reader = _Renamed(number, gradient)
    nodes = (*graph.nodes[:position], made, *(reader.node(node) for node in graph.nodes[position:]))
    outputs = tuple(replace(each, value=reader.moved(each.value)) for each in graph.outputs)
    return replace(graph, nodes=nodes, outputs=outputs), number


@dataclass(frozen=True)
class _Renamed:
    """Increments node numbers from `number` on; operands that are `gradient` become the new node `number`."""

    number: int
    gradient: Operand

    def node(self, node: Node) -> Node:
        operands = {name: self._operand(operand) for name, operand in node.operands.items()}
        return replace(node, number=node.number + 1, operands=operands)

    def _operand(self, operand: Operand) -> Operand:
        if operand == self.gradient:
            return f"n{self.number}"
        if isinstance(operand, tuple):
            return tuple(None if ref is None else self.moved(ref) for ref in operand)
        return None if operand is None else self.moved(operand)

    def moved(self, ref: Ref) -> Ref:
        match = re.fullmatch(r"n([0-9]+)((?:\.[0-9]+)?)", ref)
        if match is None or int(match[1]) < self.number:
            return ref
        return f"n{int(match[1]) + 1}{match[2]}"


def _with_attributes(
    program: StepProgram, operator: str, old: Mapping[str, Attribute], new: Mapping[str, Attribute]
) -> StepProgram:
    def is_meant(node: Node) -> bool:
        return node.operator == operator and all(node.attributes[name] == value for name, value in old.items())

    nodes = program.graph.nodes
    if not any(map(is_meant, nodes)):
        raise UsageError(f"this forgery changes {operator} with {dict(old)}, and the step graph of this run has none")
    changed = (replace(n, attributes={**n.attributes, **new}) if is_meant(n) else n for n in nodes)
    return with_nodes(program, tuple(changed))


POSSIBLE = "each anchor is one that the declared recipe could have reached on some data"
NOT_READ = "a replay of the recipe does not read the graph that the spec names, and the recipe was followed"
OF_THE_RECIPE = "step graph of the recipe"


def _edited(name: str, change: str, edit: Edit, *seen: str) -> Attack:
    return Attack(
        name=name,
        change=f"{change}; the spec names the graph of that step, and all is made anew with it",
        forge=forge_with(edit),
        screens=rejected(*seen) if seen else accepted(POSSIBLE),
        exact=rejected(OF_THE_RECIPE),
        recipe=rejected("projection summary", "state"),
        tolerant=rejected(OF_THE_RECIPE),
    )


STEP_GRAPH_EDITED = (
    _edited("graph-other-epsilon", "the optimizer's ε is 1e-6 instead of 1e-8", larger_epsilon),
    _edited("graph-other-decay", "the second moment keeps 0.998 a step, not 0.999", shorter_memory, "second moment"),
    _edited("graph-not-causal", "attention looks ahead", looks_ahead),
    _edited("graph-skips-a-tensor", "the update leaves one weight tensor as it was", skips_a_tensor),
    _edited("graph-hidden-constant", "a gradient is shifted by a constant pattern", adds_a_constant),
    _edited("graph-hidden-input", "a gradient is shifted by an input that no batch declares", adds_an_input),
    Attack(
        name="graph-of-another-step",
        change="every step is that of the recipe; the spec names the graph of a step with another ε; resealed",
        forge=forge_named_only,
        screens=accepted("no screen captures the recipe's step"),
        exact=rejected(OF_THE_RECIPE, "state"),
        recipe=accepted(NOT_READ),
        tolerant=rejected(OF_THE_RECIPE),
    ),
)


# The step graph that a spec names is missing, or its file is another graph.


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


STEP_GRAPH_FILE = (
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
