"""Captures JAX functions through `jax.export`, and converts their StableHLO modules to graphs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import jax
import numpy as np
from jax.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir

from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor, TensorSpec, dtype_of
from tallystick.engines.jax.engine import JAX, first_line
from tallystick.engines.jax.reading import attributes_of, number_of, spec_of, tensor_of
from tallystick.programs.admission import Deriver
from tallystick.programs.execution import Reference
from tallystick.programs.graph import (
    Constant,
    Graph,
    GraphForm,
    Input,
    Node,
    Operand,
    Output,
    Ref,
    Role,
    operands_of,
    result_ref,
)
from tallystick.programs.operators.definition import OPERATORS, Attribute, Operator
from tallystick.programs.operators.values import Value

# Random floats of JAX are put together from bits; here they are recognized, to be given by arithmetic.
#
# `jax.random.uniform` shifts 32 random bits to the right until 23 are left, and sets the bits of 1.0 above them. Read
# as an F32, that is 1 + k ÷ 2²³, where k is what the 23 bits are as an integer. Every step of this formula is exact.

FRACTION_BITS: Final = 23
BITS_OF_ONE: Final = 0x3F800000


def shifted_bits(nodes: Sequence[Node], ref: Ref) -> Ref | None:
    """The 23 bits as integers, if `ref` is their union with the bits of 1.0; `None` for anything else."""
    union = _producer(nodes, ref, "stablehlo.or")
    for bits, ones in (union.refs, union.refs[::-1]) if union is not None else ():
        shift = _producer(nodes, bits, "stablehlo.shift_right_logical")
        if shift is None or _integer(nodes, ones) != BITS_OF_ONE:
            continue
        places, spec = _integer(nodes, shift.refs[1]), shift.results[0]
        if spec is not None and spec.dtype == "U32" and places is not None and 32 - FRACTION_BITS <= places < 32:
            return bits
    return None


def one_and_fraction(bits: Ref, spec: TensorSpec, first: int) -> list[Node]:
    """1 + k ÷ 2²³ of the integers `bits`, as nodes from number `first` on; the last one gives it, with `spec`."""
    numbers = [result_ref(first + place, 0) for place in range(4)]
    converted, share, scaled, one = numbers
    return [
        Node(first, "stablehlo.convert", {"operand": bits}, {"dtype": spec.dtype}, (spec,)),
        _constant(first + 1, 2.0**-FRACTION_BITS, spec),
        Node(first + 2, "stablehlo.multiply", {"lhs": converted, "rhs": share}, {}, (spec,)),
        _constant(first + 3, 1.0, spec),
        Node(first + 4, "stablehlo.add", {"lhs": scaled, "rhs": one}, {}, (spec,)),
    ]


def _constant(number: int, value: float, spec: TensorSpec) -> Node:
    attributes: dict[str, Attribute] = {"value": value, "shape": spec.shape, "dtype": spec.dtype}
    return Node(number, "stablehlo.constant", {}, attributes, (spec,))


def _integer(nodes: Sequence[Node], ref: Ref) -> int | None:
    """The one integer that all elements are, where the program says so."""
    spread = _producer(nodes, ref, "stablehlo.broadcast_in_dim")
    constant = _producer(nodes, ref if spread is None else spread.refs[0], "stablehlo.constant")
    value = None if constant is None else constant.attributes["value"]
    return value if isinstance(value, int) else None


def _producer(nodes: Sequence[Node], ref: Ref, operator: str) -> Node | None:
    return next((node for node in reversed(nodes) if node.operator == operator and ref in node.outputs), None)


# Converts a StableHLO module to a graph: calls are inlined, loops unrolled, source paths dropped.
#
# A constant of one number becomes a node; a constant of several becomes a constant of the graph. Known composites stay
# one operator; others are replaced by their own decomposition.

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
class CapturedFunction:
    """A graph, the bytes of its constants by name, and the example arguments by name."""

    graph: Graph
    constants: Mapping[str, Tensor]
    arguments: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def bindings(self) -> dict[str, Tensor]:
        """Constants and example arguments: with these the graph can be executed."""
        return {**self.constants, **self.arguments}


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
        specs = {ref: spec for ref, spec in zip(node.outputs, derived, strict=True) if ref is not None and spec}
        self.specs |= specs
        self._fold(node)
        return list(specs)

    def _fold(self, node: Node) -> None:
        """Compute one integer from known ones: the counter of a loop, and whether the loop goes on."""
        spec = node.results[0]
        if spec is None or spec.size != 1 or spec.is_float or not all(ref in self.known for ref in node.refs):
            return
        self.known[result_ref(node.number, 0)] = Reference().prepare(node)(operands_of(node, self.known))[0]


def lower(
    text: str, inputs: Sequence[Input], outputs: Sequence[str], form: GraphForm = GraphForm.LOGICAL
) -> CapturedFunction:
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
        taken = [spec_of(argument) for argument in main.regions[0].blocks[0].arguments]
        assert taken == [each.spec for each in inputs], "the inputs are the arguments"
        reading = ModuleLowering(functions, specs={each.name: each.spec for each in inputs})
        results = reading.read_body(main, [each.name for each in inputs])
    return _finished(reading, inputs, dict(zip(outputs, results, strict=True)), form)


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
) -> CapturedFunction:
    needed, nodes = set(outputs.values()), list[Node]()
    for node in reversed(reading.nodes):
        if not needed.isdisjoint(filter(None, node.outputs)):
            needed |= set(node.refs)
            nodes.append(node)
    nodes.reverse()
    constants = {name: tensor for name, tensor in reading.constants.items() if name in needed}
    refs = {each.name: each.name for each in inputs}
    refs |= {name: f"constants.{place:04d}" for place, name in enumerate(constants)}
    for number, node in enumerate(nodes):
        refs |= {ref: result_ref(number, index) for index, ref in enumerate(node.outputs) if ref is not None}
    graph = Graph(
        dialect="stablehlo",
        form=form,
        inputs=tuple(sorted(inputs, key=lambda each: each.name)),
        constants=tuple(
            Constant(refs[name], TensorSpec.of(tensor), tensor_digest(tensor)) for name, tensor in constants.items()
        ),
        nodes=tuple(
            Node(number, node.operator, operands_of(node, refs), node.attributes, node.results)
            for number, node in enumerate(nodes)
        ),
        outputs=tuple(Output(name, refs[ref]) for name, ref in sorted(outputs.items())),
    )
    return CapturedFunction(graph, {refs[name]: tensor for name, tensor in constants.items()})


# Captures JAX functions as graphs, through `jax.export`.

ROLES: Final = {
    "weights": Role.WEIGHT,
    "buffers": Role.BUFFER,
    "optimizer": Role.OPTIMIZER,
    "schedule": Role.SCHEDULE,
    "rng": Role.RNG,
}
"""The role of an input by the first word of its name; any other is `Role.INPUT`, given at each step."""


def capture(
    function: Callable[..., Any],
    *arguments: Any,
    roles: Mapping[int, str] | None = None,
    results: Mapping[int, str] | None = None,
    form: GraphForm = GraphForm.LOGICAL,
) -> CapturedFunction:
    """The StableHLO graph of `function` for arguments with these shapes and dtypes.

    Every array of an argument is an input, named by its path in the pytree: `inputs.<argument>.<path>`, or, for an
    argument to which `roles` gives a prefix such as `weights` or `optimizer.momentum`, `<prefix>.<path>`. An array of
    the result is `outputs.<path>`; `results` gives prefixes to the parts of a tuple, so that a training step returns
    `weights.…` under the names of its inputs. The graph depends neither on the process nor on where the code lies.

    Raises:
        UnavailableError: the function cannot be captured; the line names the operator and the reason.
        UsageError: two inputs, or two outputs, have the same name.
    """
    named = _named_arguments(function, arguments, roles or {})
    try:
        exported = jax.export.export(jax.jit(function, keep_unused=True))(*arguments)
    except jax.errors.ConcretizationTypeError as error:
        raise UnavailableError(f"cannot be captured: its control flow depends on data: {first_line(error)}") from None
    specs = [TensorSpec(dtype_name(aval.dtype), tuple(aval.shape)) for aval in exported.in_avals]
    roles_of = [ROLES.get(name.partition(".")[0], Role.INPUT) for name in named]
    inputs = [Input(*each) for each in zip(named, roles_of, specs, strict=True)]
    outputs = _output_names(exported, results or {})
    examples = {each.name: to_tensor(value, each.spec) for each, value in zip(inputs, named.values(), strict=True)}
    return replace(lower(exported.mlir_module(), inputs, outputs, form), arguments=examples)


def to_tensor(value: Any, spec: TensorSpec) -> Tensor:
    """An array of JAX, or a number, as a tensor of `spec`."""
    array = np.asarray(jax.numpy.asarray(value, JAX.dtype(spec.dtype)))
    return Tensor.of(array.view("<u2"), "BF16") if spec.dtype == "BF16" else Tensor.of(array)


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of JAX; raises `UnavailableError` for one that graphs do not have."""
    if str(dtype) == "bfloat16":
        return "BF16"
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        raise UnavailableError("a typed PRNG key has no place in a graph; pass jax.random.key_data of it")
    try:
        return dtype_of(np.dtype(dtype))
    except (TypeError, ValueError):
        raise UnavailableError(f"{dtype!s:.40} has no place in a graph") from None


def _named_arguments(
    function: Callable[..., Any], arguments: Sequence[Any], roles: Mapping[int, str]
) -> dict[str, Any]:
    """The arrays of the arguments by name, in the order in which JAX takes them."""
    try:
        words = list(inspect.signature(function).parameters)[: len(arguments)]
    except (TypeError, ValueError):
        words = []
    words += map(str, range(len(words), len(arguments)))
    prefixes = [roles.get(place, f"inputs.{word}") for place, word in enumerate(words)]
    return _by_name(zip(prefixes, arguments, strict=True))


def _output_names(exported: Any, results: Mapping[int, str]) -> list[str]:
    tree = jax.tree_util.tree_unflatten(exported.out_tree, range(len(exported.out_avals)))
    if isinstance(tree, tuple):
        return list(_by_name((results.get(place, f"outputs.{place}"), part) for place, part in enumerate(tree)))
    named = _by_name([(results.get(0, "outputs"), tree)])
    return ["outputs.0" if name == "outputs" else name for name in named]


def _by_name(parts: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The arrays of pytrees, each named by the prefix of its tree and its path; raises `UsageError` for equal names."""
    named: dict[str, Any] = {}
    for prefix, tree in parts:
        for path, value in jax.tree_util.tree_flatten_with_path(tree)[0]:
            name = ".".join([prefix, *map(_key, path)])
            if name in named:
                raise UsageError(f"two values would be named {name}: name the arguments apart with roles or results")
            named[name] = value
    return named


def _key(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
