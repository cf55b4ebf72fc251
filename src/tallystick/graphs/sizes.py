"""The graph of a step for other sizes of its batch, computed from graphs that were captured at some sizes.

Where the sizes of a batch are a weighted mean of those of captured batches, so is each integer of its graph that is of
first degree in them: a side of a tensor, an attribute. Weights sum to 1 and may be negative. Where products of two
sizes have the same weighted mean, integers of second degree follow too. A graph that is found may still be wrong,
because a program may branch on a size: whoever uses one compares it with the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Any, TypeAlias

from tallystick.errors import UnavailableError
from tallystick.graphs.admission import DEFAULT
from tallystick.graphs.check import check_graph
from tallystick.graphs.graph import Constant, Graph, Input, Node
from tallystick.operators.registry import operator
from tallystick.tensors.spec import TensorSpec

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
        found = next((place for place in range(done, len(rows)) if rows[place][column]), None)
        if found is not None:
            rows[done], rows[found] = rows[found], rows[done]
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
    parts = [(each.dialect, each.form, each.outputs, len(each.nodes), _names(each)) for each in graphs]
    if any(part != parts[0] for part in parts):
        return None
    try:
        found = replace(
            first,
            inputs=tuple(_mean_source(each, weights) for each in zip(*(graph.inputs for graph in graphs), strict=True)),
            constants=tuple(
                _mean_source(each, weights) for each in zip(*(graph.constants for graph in graphs), strict=True)
            ),
            nodes=tuple(_mean_node(each, weights) for each in zip(*(graph.nodes for graph in graphs), strict=True)),
        )
    except UnavailableError:
        return None
    check_graph(found, DEFAULT, operator)
    return found


def _names(graph: Graph) -> list[str]:
    return [each.name for each in graph.sources]


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
    found = sum(weight * value for weight, value in zip(weights, values, strict=True)) if _are_whole(values) else None
    if found is None or found.denominator != 1:
        raise UnavailableError(OTHER_PROGRAM)
    return int(found)


def _are_whole(values: Sequence[Any]) -> bool:
    return all(type(value) is int for value in values)
