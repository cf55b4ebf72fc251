"""Graphs with named dimensions: polynomials for sizes, and graphs derived for other batch sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Any, Final, TypeAlias

from tallystick.core.canonical_json import Json, fields, items, natural, shown, text
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.tensors import TensorSpec
from tallystick.programs.admission import DEFAULT, check_graph, read_graph
from tallystick.programs.encoding import FLOAT, NODE_FIELDS, TOP_FIELDS, Find, canonical, read_json
from tallystick.programs.graph import Constant, Graph, GraphLimits, Input, Node
from tallystick.programs.operators.definition import operator

# Integer polynomials over named dimensions, such as `4*batch*length+1`.
#
# polynomial = ["-"] product { ("+" | "-") product }
# product    = factor { "*" factor }
# factor     = integer | name

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
RESERVED: Final = frozenset({"inf", "nan"})
LENGTH_MAX: Final = 200
VALUE_MAX: Final = 2**53 - 1
_PRODUCT: Final = re.compile(r"([+-]?)((?:[a-z0-9_]+)(?:\*[a-z0-9_]+)*)")
_INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,15}")


def evaluate(text: str, sizes: Mapping[str, int]) -> int:
    """The value of a polynomial whose names are replaced by their sizes.

    Raises `MalformedError` if `text` is not a polynomial, if a name has no size, or beyond 2⁵³ − 1 in magnitude.

    >>> evaluate("4*batch*length+1", {"batch": 2, "length": 3})
    25
    """
    total, position = 0, 0
    while position < len(text) or not position:
        match = _PRODUCT.match(text, position)
        if match is None or len(text) > LENGTH_MAX or (position and not match[1]):
            raise MalformedError(f"{ascii(text)[:80]} is no integer polynomial")
        product = _product(match[2], sizes)
        total += -product if match[1] == "-" else product
        position = match.end()
    return _bounded(total)


def _product(text: str, sizes: Mapping[str, int]) -> int:
    product = 1
    for factor in text.split("*"):
        product = _bounded(product * _factor(factor, sizes))
    return product


def _factor(text: str, sizes: Mapping[str, int]) -> int:
    if _INTEGER.fullmatch(text):
        return int(text)
    if text not in sizes:
        raise MalformedError(f"{ascii(text)[:40]} is no dimension and no integer")
    return sizes[text]


def _bounded(value: int) -> int:
    if abs(value) > VALUE_MAX:
        raise MalformedError("a polynomial has a value beyond 2^53 - 1")
    return value


# A graph with named dimensions: sides and integer attributes are polynomials; sizes for the names give a graph.
#
# The resulting graph passes all checks that any other graph passes. So a template need not be right for every size.

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
        document = fields(whole, TEMPLATE_FIELDS, "template")
        if document["template"] is True or document["template"] != FORMAT:
            raise MalformedError(f"template: format {shown(document['template'])} is unknown, {FORMAT} is known")
        ranges = document["dimensions"]
        if not isinstance(ranges, dict) or len(ranges) > DIMENSIONS_MAX:
            raise MalformedError(f"dimensions: an object with at most {DIMENSIONS_MAX} names is needed")
        dimensions = {_name(name): _range(value, f"dimension {name}") for name, value in ranges.items()}
        return cls(dimensions, fields(document["graph"], TOP_FIELDS, "graph"))

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


# The graph of a step for other sizes of its batch, computed from graphs that were captured at some sizes.
#
# Where the sizes of a batch are a weighted mean of those of captured batches, so is each integer of its graph that is
# of first degree in them: a side of a tensor, an attribute. Weights sum to 1 and may be negative. Where products of two
# sizes have the same weighted mean, integers of second degree follow too. A graph that is found may still be wrong,
# because a program may branch on a size: whoever uses one compares it with the step.

Sizes: TypeAlias = "tuple[int, ...]"
OTHER_PROGRAM = "the step is another program at other sizes"


def graph_at(wanted: Sizes, known: Sequence[tuple[Sizes, Graph]]) -> Graph | None:
    """The graph for the sizes `wanted`, from graphs at `known` sizes, those first that are to be preferred.

    `None` if the sizes do not follow from them, or if the graphs differ in more than integers.

    Raises:
        MalformedError: the graph that follows is not a valid one.
    """
    points = [sizes for sizes, _ in known]
    for degree in (2, 1):
        weights = weights_at(wanted, points, degree)
        if weights is not None:
            used = [(weight, graph) for weight, (_, graph) in zip(weights, known, strict=True) if weight]
            return _mean_graph([graph for _, graph in used], [weight for weight, _ in used])
    return None


def weights_at(wanted: Sizes, points: Sequence[Sizes], degree: int) -> list[Fraction] | None:
    """Weights with which the sizes at `points`, and their products up to `degree`, have those `wanted` as their mean.

    The first points are used where several can be. `None` if there are no such weights.
    """
    columns = [_products(each, degree) for each in (*points, wanted)]
    rows = [[Fraction(value) for value in row] for row in dict.fromkeys(zip(*columns, strict=True))]
    pivots = list[int]()
    for column in range(len(points)):
        done = len(pivots)
        pivot = next((place for place in range(done, len(rows)) if rows[place][column]), None)
        if pivot is not None:
            rows[done], rows[pivot] = rows[pivot], rows[done]
            _eliminate(rows, done, column)
            pivots.append(column)
    if any(row[-1] for row in rows[len(pivots) :]):
        return None
    solved = {column: row[-1] for column, row in zip(pivots, rows, strict=False)}
    return [solved.get(column, Fraction(0)) for column in range(len(points))]


def _products(sizes: Sizes, degree: int) -> list[int]:
    """1, the sizes, and with degree 2 the products of two."""
    pairs = combinations_with_replacement(sizes, 2) if degree == 2 else ()
    return [1, *sizes, *(one * two for one, two in pairs)]


def _eliminate(rows: list[list[Fraction]], pivot: int, column: int) -> None:
    """Make `column` 1 in the pivot's row, and 0 in all others."""
    divisor = rows[pivot][column]
    rows[pivot] = [value / divisor for value in rows[pivot]]
    for place, row in enumerate(rows):
        if place != pivot and (factor := row[column]):
            rows[place] = [value - factor * other for value, other in zip(row, rows[pivot], strict=True)]


def _mean_graph(graphs: Sequence[Graph], weights: Sequence[Fraction]) -> Graph | None:
    """The weighted mean of graphs that are the same but for integers; what is equal in all is shared, not copied."""
    first = graphs[0]
    parts = [
        (each.dialect, each.form, each.outputs, len(each.nodes), [x.name for x in each.sources]) for each in graphs
    ]
    if any(part != parts[0] for part in parts):
        return None
    try:
        mean = replace(
            first,
            inputs=tuple(_mean_source(each, weights) for each in zip(*(graph.inputs for graph in graphs), strict=True)),
            constants=tuple(
                _mean_source(each, weights) for each in zip(*(graph.constants for graph in graphs), strict=True)
            ),
            nodes=tuple(_mean_node(each, weights) for each in zip(*(graph.nodes for graph in graphs), strict=True)),
        )
    except UnavailableError:
        return None
    check_graph(mean, DEFAULT, operator)
    return mean


def _mean_source(parts: Sequence[Any], weights: Sequence[Fraction]) -> Any:
    first: Input | Constant = parts[0]
    if all(part == first for part in parts):
        return first
    spec = _mean([part.spec for part in parts], weights)
    if any(replace(part, spec=first.spec) != first for part in parts):
        raise UnavailableError(OTHER_PROGRAM)
    return replace(first, spec=spec)


def _mean_node(parts: Sequence[Node], weights: Sequence[Fraction]) -> Node:
    first = parts[0]
    if all(part == first for part in parts):
        return first
    if any(
        (part.number, part.operator, part.operands) != (first.number, first.operator, first.operands) for part in parts
    ):
        raise UnavailableError(OTHER_PROGRAM)
    attributes = {name: _mean([part.attributes[name] for part in parts], weights) for name in first.attributes}
    results = _mean([part.results for part in parts], weights)
    return Node(first.number, first.operator, first.operands, attributes, results)


def _mean(values: Sequence[Any], weights: Sequence[Fraction]) -> Any:
    """The weighted mean of integers, wherever they stand in values that are the same otherwise."""
    first = values[0]
    if all(type(value) is type(first) and value == first for value in values):
        return first
    if all(isinstance(value, TensorSpec) and value.dtype == first.dtype for value in values):
        return TensorSpec(first.dtype, _mean([value.shape for value in values], weights))
    if all(isinstance(value, tuple) and len(value) == len(first) for value in values):
        return tuple(_mean(parts, weights) for parts in zip(*values, strict=True))
    mean = sum(weight * value for weight, value in zip(weights, values, strict=True)) if _are_whole(values) else None
    if mean is None or mean.denominator != 1:
        raise UnavailableError(OTHER_PROGRAM)
    return int(mean)


def _are_whole(values: Sequence[Any]) -> bool:
    return all(type(value) is int for value in values)
