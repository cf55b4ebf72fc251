"""A graph with named dimensions: sides and integer attributes are polynomials; sizes for the names give a graph.

The resulting graph passes all checks that any other graph passes. So a template need not be right for every size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tallystick.commitments.encoding import Json
from tallystick.documents.fields import fields, items, natural, shown, text
from tallystick.errors import MalformedError, UsageError
from tallystick.graphs.admission import DEFAULT, read_graph
from tallystick.graphs.document import TOP_FIELDS, canonical, read_json
from tallystick.graphs.encoding import FLOAT, NODE_FIELDS, Find
from tallystick.graphs.graph import Graph
from tallystick.graphs.limits import GraphLimits
from tallystick.graphs.polynomial import NAME, RESERVED, evaluate
from tallystick.operators.registry import operator

FORMAT: Final = 1
TEMPLATE_FIELDS: Final = ("dimensions", "graph", "template")
DIMENSIONS_MAX: Final = 64


@dataclass(frozen=True)
class Template:
    """Named dimensions, each with its smallest and largest size, and the JSON of a graph that uses them."""

    dimensions: Mapping[str, tuple[int, int]]
    document: Mapping[str, Json]

    @classmethod
    def from_bytes(cls, data: bytes, limits: GraphLimits = DEFAULT) -> Template:
        """Read canonical bytes; raises `MalformedError` naming what is wrong."""
        whole = read_json(data, limits)
        if canonical(whole).encode() != data:
            raise MalformedError("template: not canonical JSON (RFC 8785)")
        found = fields(whole, TEMPLATE_FIELDS, "template")
        if found["template"] is True or found["template"] != FORMAT:
            raise MalformedError(f"template: format {shown(found['template'])} is unknown, {FORMAT} is known")
        ranges = found["dimensions"]
        if not isinstance(ranges, dict) or len(ranges) > DIMENSIONS_MAX:
            raise MalformedError(f"dimensions: an object with at most {DIMENSIONS_MAX} names is needed")
        dimensions = {_name(name): _range(value, f"dimension {name}") for name, value in ranges.items()}
        return cls(dimensions, fields(found["graph"], TOP_FIELDS, "graph"))

    def to_bytes(self) -> bytes:
        """The canonical bytes."""
        ranges: dict[str, Json] = {name: list(bounds) for name, bounds in self.dimensions.items()}
        return canonical({"dimensions": ranges, "graph": dict(self.document), "template": FORMAT}).encode()

    def bind(self, limits: GraphLimits = DEFAULT, find: Find = operator, /, **sizes: int) -> Graph:
        """The graph for these sizes.

        Raises:
            UsageError: a dimension has no size, or one outside its range, or there is no such dimension.
            MalformedError: the result is not a valid graph, or is beyond `limits`.
        """
        self._check_sizes(sizes)
        document = dict(self.document)
        for kind in ("constants", "inputs"):
            document[kind] = [_bound_source(each, sizes) for each in items(document[kind], kind)]
        document["nodes"] = [_bound_node(each, sizes, find) for each in items(document["nodes"], "nodes")]
        return read_graph(canonical(document).encode(), limits, find)

    def _check_sizes(self, sizes: Mapping[str, int]) -> None:
        wrong = sorted(self.dimensions.keys() ^ sizes.keys())
        if wrong:
            known = wrong[0] in self.dimensions
            raise UsageError(f"dimension {wrong[0]} has no size" if known else f"there is no dimension {wrong[0]}")
        for name, size in sizes.items():
            smallest, largest = self.dimensions[name]
            if not smallest <= size <= largest:
                raise UsageError(f"dimension {name} is {size}, and goes from {smallest} to {largest}")


def _name(name: str) -> str:
    if not NAME.fullmatch(name) or name in RESERVED:
        raise MalformedError(f"dimensions: {shown(name)} is no name: lower-case letters, digits and underscores")
    return name


def _range(value: Json, what: str) -> tuple[int, int]:
    bounds = [natural(each, what) for each in items(value, what)]
    if len(bounds) != 2 or bounds[0] > bounds[1]:
        raise MalformedError(f"{what}: a smallest and a largest size are needed")
    return bounds[0], bounds[1]


def _bound_source(value: Json, sizes: Mapping[str, int]) -> Json:
    if not isinstance(value, dict) or "spec" not in value:
        return value
    return value | {"spec": _bound_spec(value["spec"], sizes)}


def _bound_node(value: Json, sizes: Mapping[str, int], find: Find) -> Json:
    node = dict(fields(value, NODE_FIELDS, "node"))
    node["results"] = [_bound_spec(each, sizes) for each in items(node["results"], "results")]
    kinds = {each.name: each.kind for each in find(text(node["operator"], "operator")).parameters}
    if isinstance(node["attributes"], dict):
        pairs = node["attributes"].items()
        node["attributes"] = {name: _bound_attribute(each, kinds.get(name, ""), sizes) for name, each in pairs}
    return node


def _bound_spec(value: Json, sizes: Mapping[str, int]) -> Json:
    return [*value[:1], *(_bound(each, sizes) for each in value[1:])] if isinstance(value, list) else value


def _bound_attribute(value: Json, kind: str, sizes: Mapping[str, int]) -> Json:
    is_integer: Callable[[str], bool] = {
        "int": lambda _: True,
        "Scalar": lambda each: not FLOAT.fullmatch(each),
    }.get(kind.replace("[]", "").replace("?", ""), lambda _: False)
    if isinstance(value, list):
        return [_bound(each, sizes) if isinstance(each, str) and is_integer(each) else each for each in value]
    return _bound(value, sizes) if isinstance(value, str) and is_integer(value) else value


def _bound(value: Json, sizes: Mapping[str, int]) -> Json:
    return evaluate(value, sizes) if isinstance(value, str) else value
