"""Reads graphs from untrusted parties: limits, derived specs, costs and all checks are here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

from tallystick.core.canonical_json import shown
from tallystick.core.errors import MalformedError
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.encoding import LIST_ITEMS_MAX, Find, check_spec, graph_from_json, node_from_json, read_parts
from tallystick.programs.graph import (
    Constant,
    Graph,
    GraphForm,
    GraphLimits,
    Input,
    Node,
    Operand,
    Ref,
    Role,
    operands_of,
    result_ref,
)
from tallystick.programs.operators.definition import Operator, Parameter, operator
from tallystick.programs.operators.types import Types

# Derives the specs of an operator's results from those of its operands, and what one evaluation costs.

PRIMITIVES_MAX: Final = 20_000
"""The limit of primitives in one operator; a split of a very long axis into single elements would exceed it."""
PRIMITIVES_TOTAL_MAX: Final = 1_000_000
"""The limit of primitives in all different nodes of one graph together."""


@dataclass(frozen=True)
class Derived:
    """The results of one node, and what one evaluation of its definition costs."""

    results: tuple[TensorSpec | None, ...]
    flops: int
    bytes_moved: int
    largest_bytes: int


class Deriver:
    """Derives the nodes of a graph one by one; equal nodes over operands of equal specs are derived once."""

    def __init__(self, find: Find = operator, primitives_max: int = PRIMITIVES_TOTAL_MAX) -> None:
        self._find = find
        self._left = primitives_max
        self._known: dict[tuple[object, ...], Derived] = {}

    def __call__(self, node: Node, specs: Mapping[Ref, TensorSpec]) -> Derived:
        """The result specs and costs of `node`; `specs` holds the specs of the values before it.

        Raises `MalformedError` naming the node if its operands and attributes do not fit together.
        """
        operands = operands_of(node, specs)
        # The key holds the text of the attributes, because 1, 1.0 and True are equal in Python.
        key = (node.operator, *operands.items(), repr(sorted(node.attributes.items())))
        if key not in self._known:
            types = Types()
            metered = _Metered(types, min(self._left, PRIMITIVES_MAX))
            results = read(node, metered, operands | dict(node.attributes), self._find)
            self._left -= metered.calls
            self._known[key] = Derived(results, types.flops, types.bytes_moved, types.largest_bytes)
        return self._known[key]


def read(node: Node, algebra: Any, arguments: Mapping[str, Any], find: Find = operator) -> tuple[Any, ...]:
    """The results of a node in any algebra; raises `MalformedError` naming the node.

    A definition may also raise Python's own exceptions for an attribute that its author did not expect. These become
    `MalformedError` too: the attributes do not fit.
    """
    try:
        return find(node.operator).read(algebra, arguments)
    except MalformedError as error:
        raise MalformedError(f"node {node.number}: {node.operator}: {error}") from None
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {str(error)[:80]}"
        raise MalformedError(f"node {node.number}: {node.operator}: does not fit its attributes ({reason})") from None


class _Metered:
    """The algebra of types, with a limit on the number of primitives that a definition calls."""

    def __init__(self, types: Types, calls_max: int) -> None:
        self._types = types
        self._calls_max = calls_max
        self.calls = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        self.calls += 1
        if self.calls > self._calls_max:
            raise MalformedError(f"consists of more primitives than the {self._calls_max} allowed")
        primitive: Callable[..., Any] = getattr(self._types, name)
        return primitive


# Depth and memory of an execution, computed from the graph alone.


def last_readers(graph: Graph) -> dict[int, list[Ref]]:
    """For each node, the values whose last reader it is; outputs of the graph are left out."""
    reader: dict[Ref, int] = {}
    for node in graph.nodes:
        reader |= dict.fromkeys((*filter(None, node.outputs), *node.refs), node.number)
    for output in graph.outputs:
        reader.pop(output.value, None)
    last: dict[int, list[Ref]] = {}
    for ref, number in reader.items():
        last.setdefault(number, []).append(ref)
    return last


def depths(graph: Graph) -> dict[int, int]:
    """For each node, the length of the longest chain of nodes that ends with it; 1 if it reads no other node."""
    depth_of: dict[int, int] = {}
    of_value: dict[Ref, int] = {}
    for node in graph.nodes:
        depth_of[node.number] = 1 + max((of_value.get(ref, 0) for ref in node.refs), default=0)
        of_value |= dict.fromkeys(filter(None, node.outputs), depth_of[node.number])
    return depth_of


def peak_bytes(graph: Graph, scratch: Mapping[int, int]) -> int:
    """The largest number of bytes in memory at one time in `execute`, with the `scratch` bytes of the running node.

    Inputs and constants are loaded before the first node. Every value is freed after its last reader.
    """
    specs, last = graph.specs(), last_readers(graph)
    held = sum(value.spec.nbytes for value in graph.sources)
    peak = held
    for node in graph.nodes:
        held += sum(spec.nbytes for spec in node.results if spec is not None)
        peak = max(peak, held + scratch.get(node.number, 0))
        held -= sum(specs[ref].nbytes for ref in last.get(node.number, ()))
    return peak


# The checks that every graph passes, whatever its source: names, references, kinds, shapes and costs.

DIALECTS: Final = frozenset({"aten", "stablehlo"})
SHARED_DIALECT: Final = "tally"
NUMBER_MAX: Final = 10**9
NAME: Final = re.compile(r"[!#-.0-\[\]-~]{1,200}", re.ASCII)
"""Printable ASCII without space, slash, backslash and double quote."""
NODE_LIKE: Final = re.compile(r"n[0-9]+(\.[0-9]*)*")
NODE_REF: Final = re.compile(r"n(?P<number>0|[1-9][0-9]{0,9})(\.(?P<index>[1-9][0-9]{0,5}))?")
TEXT: Final = re.compile(r"[ -~]{0,4096}")


def check_graph(graph: Graph, limits: GraphLimits, find: Find = operator) -> None:
    """Raise `MalformedError`, naming the node or the value, unless `graph` is valid and within `limits`."""
    if graph.dialect not in DIALECTS:
        raise MalformedError(f"dialect: {shown(graph.dialect)} is unknown")
    if graph.form is GraphForm.DISTRIBUTED:
        raise MalformedError("form: distributed graphs have no content yet")
    if len(graph.nodes) > limits.nodes:
        raise MalformedError(f"graph: {len(graph.nodes)} nodes, more than the {limits.nodes} allowed")
    given = _given(graph)
    specs = _check_sources(graph, given)
    scratch: dict[int, int] = {}
    flops, derive = 0, Deriver(find)
    for node in graph.nodes:
        _check_node(node, graph.dialect, find(node.operator))
        _check_refs(node, specs, given)
        derived = derive(node, specs)
        _check_results(node, derived.results)
        scratch[node.number], flops = derived.largest_bytes, flops + derived.flops
        _check_limit(f"node {node.number}: floating-point operations so far", flops, limits.flops)
        specs |= {ref: spec for ref, spec in zip(node.outputs, node.results, strict=True) if ref and spec}
    _check_outputs(graph, specs)
    _check_limit("graph: longest chain of nodes", max(depths(graph).values(), default=0), limits.depth)
    _check_limit("graph: bytes in memory at one time", peak_bytes(graph, scratch), limits.memory_bytes)


def parse_ref(ref: str) -> tuple[int, int] | None:
    """The node number and index of a result; `None` if `ref` is not a reference to a result."""
    match = NODE_REF.fullmatch(ref)
    return None if match is None else (int(match["number"]), int(match["index"] or 0))


def _check_sources(graph: Graph, given: Set[int]) -> dict[Ref, TensorSpec]:
    specs: dict[Ref, TensorSpec] = {}
    for source in graph.sources:
        what = f"{'input' if isinstance(source, Input) else 'constant'} {shown(source.name)}"
        if isinstance(source, Input) and source.role is Role.CUT:
            ref = parse_ref(source.name)  # a cut value keeps its reference
            if ref is None or ref[0] in given:
                raise MalformedError(f"{what}: a cut value has the reference of a node that is not in the graph")
        else:
            _check_name(source.name, what)
        if source.name in specs:
            raise MalformedError(f"{what}: the name is taken")
        check_spec(source.spec, what)
        specs[source.name] = source.spec
    return specs


def _check_name(name: str, what: str) -> None:
    if not NAME.fullmatch(name):
        raise MalformedError(f"{what}: a name is 1 to 200 printable ASCII characters but space, slash and quote")
    if NODE_LIKE.fullmatch(name):
        raise MalformedError(f"{what}: the name looks like a reference to a node")


def _check_node(node: Node, dialect: str, meaning: Operator) -> None:
    what = f"node {node.number}: {node.operator}"
    if meaning.dialect not in {dialect, SHARED_DIALECT}:
        raise MalformedError(f"{what}: an operator of another dialect than the graph's, {dialect}")
    if node.operands.keys() != {each.name for each in meaning.parameters if each.is_operand}:
        raise MalformedError(f"{what}: operands {shown(sorted(node.operands))} are not its parameters")
    if node.attributes.keys() != {each.name for each in meaning.parameters if not each.is_operand}:
        raise MalformedError(f"{what}: attributes {shown(sorted(node.attributes))} are not its parameters")
    lengths = [len(each) for each in (*node.operands.values(), *node.attributes.values()) if isinstance(each, tuple)]
    _check_limit(f"{what}: items of a list", max([len(node.results), *lengths]), LIST_ITEMS_MAX)
    for parameter in meaning.parameters:
        if parameter.is_operand:
            _check_operand(node.operands[parameter.name], parameter, what)
        else:
            attribute = node.attributes[parameter.name]
            parameter.check(attribute, f"{what}: ")
            if isinstance(attribute, str) and not TEXT.fullmatch(attribute):
                raise MalformedError(f"{what}: {parameter.name} is no printable ASCII")


def _check_operand(operand: Operand, parameter: Parameter, what: str) -> None:
    kind = parameter.kind
    fits = {
        "Tensor": isinstance(operand, str),
        "Tensor?": operand is None or isinstance(operand, str),
        "Tensor[]": isinstance(operand, tuple) and all(isinstance(ref, str) for ref in operand),
        "Tensor?[]": isinstance(operand, tuple) and all(ref is None or isinstance(ref, str) for ref in operand),
    }
    if not fits[kind]:
        raise MalformedError(f"{what}: {parameter.name} is {shown(operand)}, no {kind}")


def _given(graph: Graph) -> Set[int]:
    """The numbers of the nodes. Raises `MalformedError` unless they rise."""
    last = -1
    for node in graph.nodes:
        if not 0 <= node.number <= NUMBER_MAX:
            raise MalformedError(f"node {node.number}: its number lies outside 0 to {NUMBER_MAX}")
        if node.number <= last:
            raise MalformedError(f"node {node.number}: stands behind node {last}; numbers rise")
        last = node.number
    return {node.number for node in graph.nodes}


def _check_refs(node: Node, specs: Mapping[Ref, TensorSpec], given: Set[int]) -> None:
    for ref in node.refs:
        place = parse_ref(ref)
        if place is not None and place[0] >= node.number:
            raise MalformedError(f"node {node.number}: reads {ref}, which does not stand before it")
        if ref not in specs:
            is_known = place is not None and place[0] in given
            reason = "which that node does not give" if is_known else "which nothing gives"
            raise MalformedError(f"node {node.number}: reads {shown(ref)}, {reason}")


def _check_results(node: Node, derived: tuple[TensorSpec | None, ...]) -> None:
    if derived == node.results:
        return
    what = f"node {node.number}: {node.operator}"
    if len(derived) != len(node.results):
        raise MalformedError(f"{what}: gives {len(derived)} results, {len(node.results)} are stated")
    pairs = zip(derived, node.results, strict=True)
    i, (ours, stated) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
    raise MalformedError(f"{what}: {result_ref(node.number, i)} is {ours or 'absent'}, stated is {stated or 'absent'}")


def _check_outputs(graph: Graph, specs: Mapping[Ref, TensorSpec]) -> None:
    names: set[str] = set()
    inputs = {each.name: each.spec for each in graph.inputs}
    for output in graph.outputs:
        what = f"output {shown(output.name)}"
        if output.name != output.value:
            _check_name(output.name, what)
        if output.name in names:
            raise MalformedError(f"{what}: the name is taken")
        if output.value not in specs:
            raise MalformedError(f"{what}: is {shown(output.value)}, which nothing gives")
        if inputs.get(output.name, specs[output.value]) != specs[output.value]:
            raise MalformedError(f"{what}: {specs[output.value]} goes on as {inputs[output.name]}")
        names.add(output.name)


def _check_limit(what: str, amount: int, allowed: int) -> None:
    if amount > allowed:
        raise MalformedError(f"{what}: {amount}, more than the {allowed} allowed")


# A graph that passes has these properties. Its operators are on the allow-list, and their attributes have the right
# kinds. Every value is produced once, before it is read, with the dtype and shape that its operator gives it. An
# execution stays within the limits.

DEFAULT: Final = GraphLimits()


def read_graph(data: bytes, limits: GraphLimits = DEFAULT, find: Find = operator) -> Graph:
    """The graph with these canonical bytes.

    Raises `MalformedError` naming what is wrong. A document beyond `limits` is refused before it is parsed, or
    before its nodes are read. No operator is computed.
    """
    document, nodes = read_parts(data, limits)
    read = tuple(node_from_json(node, f"node record {i}", find) for i, node in enumerate(nodes))
    graph = graph_from_json(document, read)
    check_graph(graph, limits, find)
    return graph


def check_constants(constants: Iterable[Constant], tensors: Mapping[str, Tensor]) -> None:
    """Raise `MalformedError` unless every constant has a tensor of its spec and digest."""
    for constant in constants:
        tensor = tensors.get(constant.name)
        if tensor is None:
            raise MalformedError(f"constant {constant.name}: not there")
        if TensorSpec.of(tensor) != constant.spec:
            raise MalformedError(f"constant {constant.name} is {constant.spec}, given is {TensorSpec.of(tensor)}")
        if tensor_digest(tensor) != constant.digest:
            raise MalformedError(f"constant {constant.name}: its bytes do not have the digest {constant.digest}")
