"""Converts graphs to canonical JSON and back.

The text is ASCII without JSON floats, so Python's compact form with sorted keys is the canonical one (RFC 8785). A
float attribute is a string in Python's spelling: `0.1`, `1e-05`, `-inf`, `nan`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar

from tallystick.commitments.digests import parse_digest
from tallystick.commitments.encoding import INTEGER_MAX, Json
from tallystick.documents.fields import fields, items, natural, shown, text
from tallystick.errors import MalformedError
from tallystick.graphs.document import canonical
from tallystick.graphs.graph import Constant, Graph, GraphForm, Input, Node, Operand, Output, Role, kept
from tallystick.operators.definition import Attribute, Operator, Parameter
from tallystick.tensors.spec import TensorSpec

FORMAT: Final = 1
LIST_ITEMS_MAX: Final = 4096
NODE_FIELDS: Final = ("attributes", "number", "operands", "operator", "results")
FLOAT: Final = re.compile(r"-?\d+\.\d+(e[+-]\d{2,3})?|-?\d+e[+-]\d{2,3}|-?inf|nan", re.ASCII)

Find: TypeAlias = Callable[[str], Operator]
"""Looks an operator up by name; raises `MalformedError` for a name that is not on the allow-list."""
T = TypeVar("T")


def graph_bytes(graph: Graph) -> bytes:
    """The canonical bytes of a graph, with its nodes in their order."""
    before, after = canonical(header_json(graph) | {"nodes": []}).split('"nodes":[]', 1)
    return f'{before}"nodes":[{",".join(map(node_text, graph.nodes))}]{after}'.encode()


def node_text(node: Node) -> str:
    """One node record as canonical text; kept with the node, because its graph's file and its root need it."""
    return kept(node, "text", lambda: canonical(node_json(node)))


def header_json(graph: Graph) -> dict[str, Json]:
    """The fields of a graph without its nodes."""
    return {
        "constants": [
            {"digest": str(each.digest), "name": each.name, "spec": spec_json(each.spec)} for each in graph.constants
        ],
        "dialect": graph.dialect,
        "form": str(graph.form),
        "graph": FORMAT,
        "inputs": [{"name": each.name, "role": str(each.role), "spec": spec_json(each.spec)} for each in graph.inputs],
        "outputs": [{"name": each.name, "value": each.value} for each in graph.outputs],
    }


def node_json(node: Node) -> dict[str, Json]:
    """One node record."""
    return {
        "attributes": {name: attribute_json(attribute) for name, attribute in node.attributes.items()},
        "number": node.number,
        "operands": {
            name: list(operand) if isinstance(operand, tuple) else operand for name, operand in node.operands.items()
        },
        "operator": node.operator,
        "results": [None if spec is None else spec_json(spec) for spec in node.results],
    }


def spec_json(spec: TensorSpec) -> Json:
    """A dtype and its sides, such as `["F32",2,3]`."""
    return [spec.dtype, *spec.shape]


def attribute_json(attribute: Attribute) -> Json:
    """An attribute as JSON: floats become strings, tuples lists."""
    if isinstance(attribute, tuple):
        return [attribute_json(item) for item in attribute]
    return repr(attribute) if isinstance(attribute, float) else attribute


# ---- from JSON


def graph_from_json(header: Mapping[str, Json], nodes: tuple[Node, ...]) -> Graph:
    """A graph from its header fields and nodes; raises `MalformedError` naming the field."""
    if header["graph"] != FORMAT or isinstance(header["graph"], bool):
        raise MalformedError(f"graph: format {shown(header['graph'])} is unknown, {FORMAT} is known")
    return Graph(
        dialect=text(header["dialect"], "dialect"),
        form=_member(GraphForm, header["form"], "form"),
        inputs=tuple(_input(each, f"input {i}") for i, each in enumerate(items(header["inputs"], "inputs"))),
        constants=tuple(
            _constant(each, f"constant {i}") for i, each in enumerate(items(header["constants"], "constants"))
        ),
        nodes=nodes,
        outputs=tuple(_output(each, f"output {i}") for i, each in enumerate(items(header["outputs"], "outputs"))),
    )


def node_from_json(value: Json, what: str, find: Find) -> Node:
    """One node record; raises `MalformedError` naming `what`, and for operators that `find` does not know."""
    found = fields(value, NODE_FIELDS, what)
    number = natural(found["number"], f"{what}: number")
    what = f"node {number}"
    operator = find(text(found["operator"], f"{what}: operator"))
    what = f"{what}: {operator.name}"
    operands = [each for each in operator.parameters if each.is_operand]
    attributes = [each for each in operator.parameters if not each.is_operand]
    given = fields(found["operands"], [each.name for each in operands], f"{what}: operands")
    constants = fields(found["attributes"], [each.name for each in attributes], f"{what}: attributes")
    return Node(
        number=number,
        operator=operator.name,
        operands={each.name: _operand(given[each.name], f"{what}: {each.name}") for each in operands},
        attributes={each.name: attribute_from_json(constants[each.name], each, what) for each in attributes},
        results=tuple(
            None if spec is None else spec_from_json(spec, f"{what}: result {i}")
            for i, spec in enumerate(few(items(found["results"], f"{what}: results"), f"{what}: results"))
        ),
    )


def attribute_from_json(value: Json, parameter: Parameter, what: str) -> Attribute:
    """An attribute of the parameter's kind; raises `MalformedError` if it has another kind."""
    kind = parameter.kind.removesuffix("?")
    place = f"{what}: {parameter.name}"
    is_number = kind.removesuffix("[]") in {"float", "Scalar"}
    found: Attribute = None
    if isinstance(value, list):
        found = tuple(_item(each, is_number, place) for each in few(value, place))
    elif value is not None:
        found = _scalar(value, is_number, place)
    try:
        parameter.check(found)
    except MalformedError as error:
        raise MalformedError(f"{what}: {error}") from None
    return found


def spec_from_json(value: Json, what: str) -> TensorSpec:
    """The spec of a possible tensor; raises `MalformedError` naming `what` for anything else."""
    found = items(value, what)
    if 1 <= len(found) <= 65 and type(found[0]) is str and all(map(_is_side, found[1:])):
        with suppress(MalformedError):  # which is raised again below, with its place
            return _possible(tuple(found))
    if not found or not isinstance(found[0], str):
        raise MalformedError(f"{what}: a dtype and the sides of a shape are needed")
    spec = TensorSpec(found[0], tuple(natural(side, f"{what}: side") for side in found[1:65]))
    if len(found) > 65:
        raise MalformedError(f"{what}: {len(found) - 1} dimensions, more than 64")
    try:
        assert spec.nbytes >= 0
    except MalformedError as error:
        raise MalformedError(f"{what}: {error}") from None
    return spec


def _is_side(value: Json) -> bool:
    return type(value) is int and 0 <= value <= INTEGER_MAX


@lru_cache(maxsize=1 << 12)
def _possible(parts: tuple[Any, ...]) -> TensorSpec:
    """A spec by its dtype and sides, all integers; the thousands of values of a step have a few dozen."""
    spec = TensorSpec(parts[0], parts[1:])
    assert spec.nbytes >= 0
    return spec


def few(value: list[T], what: str) -> list[T]:
    """A list inside a node; raises `MalformedError` for too many items."""
    if len(value) > LIST_ITEMS_MAX:
        raise MalformedError(f"{what}: {len(value)} items, more than {LIST_ITEMS_MAX}")
    return value


def _operand(value: Json, what: str) -> Operand:
    if isinstance(value, list):
        return tuple(None if item is None else text(item, what) for item in few(value, what))
    return None if value is None else text(value, what)


def _scalar(value: Json, is_number: bool, what: str) -> bool | int | float | str:
    if isinstance(value, str) and is_number:
        return _float(value, what)
    if isinstance(value, str | bool | int):
        return value
    raise MalformedError(f"{what}: {shown(value)} is no attribute")


def _item(value: Json, is_number: bool, what: str) -> bool | int | float:
    found = _scalar(value, is_number, what)
    if isinstance(found, str):
        raise MalformedError(f"{what}: {shown(value)} is no number")
    return found


def _float(value: str, what: str) -> float:
    if not FLOAT.fullmatch(value) or repr(float(value)) != value:
        raise MalformedError(f"{what}: {shown(value)} is no float as this format writes it")
    return float(value)


def _input(value: Json, what: str) -> Input:
    found = fields(value, ("name", "role", "spec"), what)
    name = text(found["name"], f"{what}: name")
    return Input(name, _member(Role, found["role"], f"{what}: role"), spec_from_json(found["spec"], what))


def _constant(value: Json, what: str) -> Constant:
    found = fields(value, ("digest", "name", "spec"), what)
    name = text(found["name"], f"{what}: name")
    return Constant(name, spec_from_json(found["spec"], what), parse_digest(found["digest"], what))


def _output(value: Json, what: str) -> Output:
    found = fields(value, ("name", "value"), what)
    return Output(text(found["name"], f"{what}: name"), text(found["value"], f"{what}: value"))


def _member(kinds: Callable[[str], T], value: Json, what: str) -> T:
    try:
        return kinds(text(value, what))
    except ValueError:
        raise MalformedError(f"{what}: {shown(value)} is unknown") from None
