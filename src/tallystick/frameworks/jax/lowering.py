"""Converts a StableHLO module to a graph: calls are inlined, loops unrolled, source paths dropped.

A constant of one number becomes a node; a constant of several becomes a constant of the graph. Known composites stay
one operator; others are replaced by their own decomposition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jax.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir

from tallystick.errors import MalformedError, UnavailableError
from tallystick.frameworks.jax.random_bits import one_and_fraction, shifted_bits
from tallystick.frameworks.jax.reading import attributes_of, number_of, spec_of, tensor_of
from tallystick.graphs.derive import Deriver, operand_of
from tallystick.graphs.graph import Constant, Graph, GraphForm, Input, Node, Operand, Output, Ref, result_ref
from tallystick.graphs.reference import Reference
from tallystick.operators.definition import Operator
from tallystick.operators.registry import OPERATORS
from tallystick.operators.values import Value
from tallystick.tensors.digest import tensor_digest
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor

COMPOSITES: Final = {"chlo.erf": "stablehlo.erf"}
RENAMED: Final = {"chlo.erf": "stablehlo.erf"}
BARRIER: Final = "stablehlo.optimization_barrier"
LOOP: Final = "stablehlo.while"
FROM_BITS: Final = "stablehlo.bitcast_convert"
RETURNS: Final = ("func.return", "stablehlo.return")
CALL_DEPTH_MAX: Final = 64
UNROLLED_MAX: Final = 20_000
"""The most operators that one loop may become."""
REASONS: Final = {
    "stablehlo.custom_call": "what it computes is not part of the program",
    "stablehlo.while": "how often its body runs depends on data (a count that is known at capture is unrolled)",
    FROM_BITS: "it reads the bits of a number as another kind; of random bits, only F32 from 32 of them is known",
    "stablehlo.case": "which branch runs depends on data",
    "stablehlo.if": "which branch runs depends on data",
    "stablehlo.rng_bit_generator": "randomness has to come in as an input",
    "stablehlo.rng": "randomness has to come in as an input",
}


@dataclass(frozen=True)
class LoweredModule:
    """A graph, and the bytes of its constants by name."""

    graph: Graph
    constants: Mapping[str, Tensor]


@dataclass
class ModuleLowering:
    """The nodes, constants and specs read from a module so far."""

    functions: Mapping[str, Any]
    nodes: list[Node] = field(default_factory=list)
    constants: dict[Ref, Tensor] = field(default_factory=dict)
    specs: dict[Ref, TensorSpec] = field(default_factory=dict)
    derive: Deriver = field(default_factory=Deriver)
    known: dict[Ref, Value] = field(default_factory=dict)

    def read_body(self, function: Any, arguments: Sequence[Ref], depth: int = 0) -> list[Ref]:
        """The results of a function called with `arguments`; raises `UnavailableError` naming the operator."""
        if depth > CALL_DEPTH_MAX:
            raise UnavailableError(f"functions call each other more than {CALL_DEPTH_MAX} deep")
        return self._read_block(function.regions[0].blocks[0], arguments, {}, depth)

    def _read_block(self, block: Any, arguments: Sequence[Ref], outer: Mapping[Any, Ref], depth: int) -> list[Ref]:
        """The results of a block; it may read the values of the block around it, `outer`."""
        values: dict[Any, Ref] = {**outer, **dict(zip(block.arguments, arguments, strict=True))}
        for operation in (each.operation for each in block.operations):
            operands = [values[value] for value in operation.operands]
            if operation.name in RETURNS:
                return operands
            results = (
                self._unrolled(operation, operands, values, depth)
                if operation.name == LOOP
                else self._read(operation, operands, depth)
            )
            values |= zip(operation.results, results, strict=True)
        raise UnavailableError("a function does not return")

    def _unrolled(self, operation: Any, operands: Sequence[Ref], outer: Mapping[Any, Ref], depth: int) -> Sequence[Ref]:
        """The turns of a loop one after another; raises `UnavailableError` where their number depends on data."""
        condition, body = (region.blocks[0] for region in operation.regions)
        most = len(self.nodes) + UNROLLED_MAX
        for _ in range(UNROLLED_MAX):
            [goes_on] = self._read_block(condition, operands, outer, depth)
            if goes_on not in self.known:
                raise UnavailableError(f"{LOOP} cannot be captured: {REASONS[LOOP]}")
            if not self.known[goes_on].array.any():
                return operands
            operands = self._read_block(body, operands, outer, depth)
            if len(self.nodes) > most:
                break
        raise UnavailableError(f"{LOOP} cannot be captured: unrolled, it has more than {UNROLLED_MAX:,} operators")

    def _read(self, operation: Any, operands: Sequence[Ref], depth: int) -> Sequence[Ref]:
        name = operation.name
        if name in {"func.call", "stablehlo.composite"}:
            attribute = operation.attributes["callee" if name == "func.call" else "decomposition"]
            composite = COMPOSITES.get(operation.attributes["name"].value) if name != "func.call" else None
            if composite is None:
                callee = self.functions[ir.FlatSymbolRefAttr(attribute).value]
                return self.read_body(callee, operands, depth + 1)
            return self._add(composite, operation, operands)
        if name == BARRIER:
            return operands
        if name == "stablehlo.constant":
            return [self._constant(operation)]
        if name == FROM_BITS and spec_of(operation.results[0]).dtype == "F32":
            return self._random_number(operation, operands)
        return self._add(RENAMED.get(name, name), operation, operands)

    def _constant(self, operation: Any) -> Ref:
        spec, number = spec_of(operation.results[0]), number_of(operation)
        if number is None:
            name = f"constants.{len(self.constants):04d}"
            self.constants[name] = tensor_of(operation)
            self.specs[name] = spec
            return name
        attributes = {"value": number, "shape": spec.shape, "dtype": spec.dtype}
        return self._node(Node(len(self.nodes), "stablehlo.constant", {}, attributes, (spec,)))[0]

    def _random_number(self, operation: Any, operands: Sequence[Ref]) -> list[Ref]:
        """An F32 that is put together from random bits, by arithmetic; any other reading of bits is refused."""
        bits = shifted_bits(self.nodes, operands[0])
        if bits is None:
            return self._add(FROM_BITS, operation, operands)
        nodes = one_and_fraction(bits, spec_of(operation.results[0]), len(self.nodes))
        return [self._node(node) for node in nodes][-1]

    def _add(self, name: str, operation: Any, operands: Sequence[Ref]) -> list[Ref]:
        known = OPERATORS.get(name)
        if known is None:
            raise UnavailableError(f"{name} cannot be captured: {REASONS.get(name, 'it is not on the allow-list')}")
        try:
            attributes = attributes_of(operation)
            results = tuple(spec_of(value) for value in operation.results)
        except UnavailableError as error:
            raise UnavailableError(f"{name} cannot be captured: {error}") from None
        named = _named(known, operands)
        return self._node(Node(len(self.nodes), name, named, _ordered(known, attributes), results))

    def _node(self, node: Node) -> list[Ref]:
        try:
            derived = self.derive(node, self.specs).results
        except MalformedError as error:
            raise UnavailableError(f"{node.operator} cannot be captured: {error}") from None
        if derived != node.results:
            shown = " and ".join(", ".join(map(str, specs)) for specs in (node.results, derived))
            raise UnavailableError(f"{node.operator}: MLIR and the definition differ on its results: {shown}")
        self.nodes.append(node)
        found = {ref: spec for ref, spec in zip(node.outputs, derived, strict=True) if ref is not None and spec}
        self.specs |= found
        self._fold(node)
        return list(found)

    def _fold(self, node: Node) -> None:
        """Compute one integer from known ones: the counter of a loop, and whether the loop goes on."""
        spec = node.results[0]
        if spec is None or spec.size != 1 or spec.is_float or not all(ref in self.known for ref in node.refs):
            return
        arguments = {name: operand_of(operand, self.known) for name, operand in node.operands.items()}
        self.known[result_ref(node.number, 0)] = Reference().prepare(node)(arguments)[0]


def lower(
    text: str, inputs: Sequence[Input], outputs: Sequence[str], form: GraphForm = GraphForm.LOGICAL
) -> LoweredModule:
    """The graph of the public function of a module.

    Args:
        text: MLIR text from `jax.export`.
        inputs: the input of the graph for each argument of the function.
        outputs: the names of its results.
        form: what the graph is for.

    Raises:
        UnavailableError: something in the program cannot be captured; the line names the operator.
    """
    with make_ir_context():
        module = ir.Module.parse(text)  # keep it alive: it owns the operations below
        operations = module.body.operations
        functions = {each.name.value: each for each in operations if each.operation.name == "func.func"}
        main = functions["main"]
        _check_arguments(main, inputs)
        reading = ModuleLowering(functions, specs={each.name: each.spec for each in inputs})
        results = reading.read_body(main, [each.name for each in inputs])
    return _finished(reading, inputs, dict(zip(outputs, results, strict=True)), form)


def _check_arguments(main: Any, inputs: Sequence[Input]) -> None:
    found = [spec_of(argument) for argument in main.regions[0].blocks[0].arguments]
    assert found == [each.spec for each in inputs], "the inputs are the arguments"


def _named(operator: Operator, operands: Sequence[Ref]) -> dict[str, Operand]:
    """The operands by parameter: list parameters share evenly what the single parameters leave."""
    parameters = [each for each in operator.parameters if each.is_operand]
    lists = [each for each in parameters if each.kind == "Tensor[]"]
    left = len(operands) - (len(parameters) - len(lists))
    per_list = left // len(lists) if lists else 0
    if left != per_list * len(lists):
        raise UnavailableError(f"{operator.name} cannot be captured: it has {len(operands)} operands")
    named: dict[str, Operand] = {}
    place = 0
    for parameter in parameters:
        count = per_list if parameter in lists else 1
        refs = tuple(operands[place : place + count])
        named[parameter.name], place = (refs if parameter in lists else refs[0]), place + count
    return named


def _ordered(operator: Operator, attributes: Mapping[str, Any]) -> dict[str, Any]:
    names = [each.name for each in operator.parameters if not each.is_operand]
    assert sorted(names) == sorted(attributes), f"{operator.name}: {sorted(attributes)} are not its attributes"
    for parameter in operator.parameters:
        if not parameter.is_operand:
            parameter.check(attributes[parameter.name])
    return {name: attributes[name] for name in names}


def _finished(
    reading: ModuleLowering, inputs: Sequence[Input], outputs: Mapping[str, Ref], form: GraphForm
) -> LoweredModule:
    nodes = list(_live(reading.nodes, outputs.values()))
    needed = {ref for node in nodes for ref in node.refs} | {*outputs.values()}
    constants = {name: tensor for name, tensor in reading.constants.items() if name in needed}
    renamed = _renumbered(nodes, constants)
    graph = Graph(
        dialect="stablehlo",
        form=form,
        inputs=tuple(sorted(inputs, key=lambda each: each.name)),
        constants=tuple(
            Constant(renamed[name], TensorSpec.of(tensor), tensor_digest(tensor)) for name, tensor in constants.items()
        ),
        nodes=tuple(
            Node(number, node.operator, _mapped(node.operands, renamed), node.attributes, node.results)
            for number, node in enumerate(nodes)
        ),
        outputs=tuple(Output(name, renamed.get(ref, ref)) for name, ref in sorted(outputs.items())),
    )
    return LoweredModule(graph, {renamed[name]: tensor for name, tensor in constants.items()})


def _live(nodes: Sequence[Node], wanted: Iterable[Ref]) -> Iterator[Node]:
    """The nodes that the wanted values need, in the order of execution."""
    needed, kept = set(wanted), []
    for node in reversed(nodes):
        if needed & {ref for ref in node.outputs if ref is not None}:
            needed |= set(node.refs)
            kept.append(node)
    return reversed(kept)


def _renumbered(nodes: Sequence[Node], constants: Iterable[Ref]) -> dict[Ref, Ref]:
    renamed = {name: f"constants.{place:04d}" for place, name in enumerate(constants)}
    for number, node in enumerate(nodes):
        for index, ref in enumerate(node.outputs):
            renamed |= {} if ref is None else {ref: result_ref(number, index)}
    return renamed


def _mapped(operands: Mapping[str, Operand], renamed: Mapping[Ref, Ref]) -> dict[str, Operand]:
    def one(ref: Ref | None) -> Ref | None:
        return None if ref is None else renamed.get(ref, ref)

    return {
        name: tuple(map(one, operand)) if isinstance(operand, tuple) else one(operand)
        for name, operand in operands.items()
    }
