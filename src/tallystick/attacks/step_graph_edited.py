"""The run is made with another step than that of its recipe, and its spec names the graph of this other step."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tallystick.attacks.attack import Attack, Forger, accepted, rejected
from tallystick.attacks.graph_forging import program_of, remake, with_nodes, with_output
from tallystick.errors import UsageError
from tallystick.graphs.graph import Constant, Graph, Input, Node, Operand, Ref, Role
from tallystick.operators.definition import Attribute
from tallystick.tensors.digest import tensor_digest
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor
from tallystick.workloads.program import StepProgram

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


ATTACKS = (
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
