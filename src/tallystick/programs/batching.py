"""Cuts a graph over a batch down to some of its examples, if operators provably do not mix them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final, TypeAlias

import numpy as np

from tallystick.core.errors import MalformedError, UsageError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.admission import check_graph, read
from tallystick.programs.encoding import Find
from tallystick.programs.graph import Graph, GraphLimits, Node, Output, Ref, operands_of
from tallystick.programs.operators.batches import Batched, Batches
from tallystick.programs.operators.definition import Attribute, operator
from tallystick.programs.slicing import ancestors, subgraph

# For the proof every definition is read in the algebra `Batches`. It follows the batch axis and raises if one example
# reads another, or if a value depends on the place of an example in the batch. Some attributes carry the batch size,
# such as the shape of a view. A number in an attribute is scaled only if the node would otherwise give other results
# than the reading predicts.

CHANGES_MAX: Final = 2
PLACES_MAX: Final = 16
Place: TypeAlias = "tuple[str, int | None]"
"""The name of an attribute, and for a list the index in it."""


@dataclass(frozen=True)
class BatchSlice:
    """A graph for `rows` examples out of `size`, the inputs that hold them, and the batch axis of every output.

    An output without an axis is the same for every example. The same graph serves any `rows` consecutive examples: the
    tensors bound to its inputs decide which.
    """

    graph: Graph
    size: int
    rows: int
    inputs: tuple[Ref, ...]
    outputs: Mapping[str, int | None]

    def take(self, tensors: Mapping[Ref, Tensor], start: int) -> dict[Ref, Tensor]:
        """`tensors`, with the batched inputs cut to the `rows` examples from `start` on."""
        return {
            ref: self._rows_of(tensor, 0, start) if ref in self.inputs else tensor for ref, tensor in tensors.items()
        }

    def split(self, tensors: Mapping[Ref, Tensor]) -> list[dict[Ref, Tensor]]:
        """The bindings of each part of the batch, in order; raises `UsageError` if `rows` does not divide the batch."""
        if self.size % self.rows:
            raise UsageError(f"a batch of {self.size} does not split into parts of {self.rows}")
        return [self.take(tensors, start) for start in range(0, self.size, self.rows)]

    def examples(self, outputs: Mapping[str, Tensor], start: int) -> dict[str, Tensor]:
        """The expected outputs of this graph: those of the whole graph, cut to the examples from `start` on."""
        return {name: self._rows_of(outputs[name], axis, start) for name, axis in self.outputs.items()}

    def _rows_of(self, tensor: Tensor, axis: int | None, start: int) -> Tensor:
        if axis is None:
            return tensor
        if not 0 <= start <= self.size - self.rows:
            raise UsageError(f"there are no {self.rows} examples from {start} on in a batch of {self.size}")
        block = tensor.shape[axis] // self.size
        places = range(start * block, (start + self.rows) * block)
        return Tensor.of(np.take(tensor.array(), np.asarray(places, np.intp), axis), tensor.dtype)


def slice_batch(graph: Graph, batched: Collection[Ref], rows: int = 1, find: Find = operator) -> BatchSlice:
    """The graph for `rows` examples; the inputs `batched` hold one example per index of axis 0.

    Raises `UsageError` naming the node for which it cannot be proved that examples do not mix, or which cannot be
    rewritten for another batch size.
    """
    whole = _reading_of(graph, batched, rows)
    size, one, part = whole.size, whole.resized(1), whole.resized(rows)
    nodes = []
    for node in graph.nodes:
        step = whole.read(node, node.attributes, find)
        alone = one.follow(node, step, size, find)
        fitted = alone if rows == 1 else part.follow(node, step, size, find, alone)
        for reading, step_read in ((whole, step), (one, alone), (part, fitted)):
            reading.keep(node, step_read)
        specs = tuple(None if value is None else value.spec for value in fitted.results)
        nodes.append(replace(node, attributes=fitted.attributes, results=specs))
    inputs = tuple(replace(each, spec=part.values[each.name].spec) for each in graph.inputs)
    smaller = replace(graph, inputs=inputs, nodes=tuple(nodes))
    check_graph(smaller, GraphLimits(), find)
    axes = {each.name: _axis_of(each, whole.values[each.value]) for each in graph.outputs}
    return BatchSlice(smaller, size, rows, tuple(each.name for each in graph.inputs if each.name in batched), axes)


def separable(graph: Graph, batched: Collection[Ref], find: Find = operator) -> Graph:
    """The part that computes values of single examples, as far as it is proved that no example reads another.

    Its outputs hold the examples; in a training step it is the forward part up to the loss, which is a mean.

    Raises `UsageError` naming the first node that mixes examples, where nothing comes before it.
    """
    whole = _reading_of(graph, batched, 1)
    one, kept, why = whole.resized(1), set[int](), list[str]()
    for node in graph.nodes:
        if not whole.values.keys() >= set(node.refs):
            continue
        try:
            step = whole.read(node, node.attributes, find)
            alone = one.follow(node, step, whole.size, find)
        except UsageError as error:
            why.append(str(error))
            continue
        whole.keep(node, step)
        one.keep(node, alone)
        if any(value is not None and value.axis is not None for value in step.results):
            kept.add(node.number)
    if not kept:
        raise UsageError(why[0] if why else "no operator reads the batch")
    part = subgraph(graph, ancestors(graph, kept))
    outputs = tuple(each for each in part.outputs if whole.values[each.value].axis is not None)
    return replace(part, outputs=outputs)


@dataclass(frozen=True)
class _Step:
    """One node that was read: its attributes, the algebra it was read in, and its results."""

    attributes: Mapping[str, Attribute]
    algebra: Batches
    results: tuple[Batched | None, ...]


@dataclass(frozen=True)
class _Reading:
    """A graph in the course of being read for one number of examples: the values known so far."""

    size: int
    values: dict[Ref, Batched]

    def resized(self, size: int) -> _Reading:
        """A new reading with the same sources for `size` examples."""
        return _Reading(size, {ref: resized(value, size, self.size) for ref, value in self.values.items()})

    def read(self, node: Node, attributes: Mapping[str, Attribute], find: Find) -> _Step:
        """Read one node; raises `UsageError` where examples mix."""
        algebra = Batches(self.size, self._sides(node))
        try:
            results = read(node, algebra, operands_of(node, self.values) | dict(attributes), find)
        except MalformedError as error:
            raise UsageError(f"examples cannot be told apart: {error}") from None
        return _Step(attributes, algebra, results)

    def follow(self, node: Node, whole: _Step, size: int, find: Find, alone: _Step | None = None) -> _Step:
        """The node for fewer examples, with as few attributes changed as possible.

        `whole` is the node over the batch. `alone` is the node over a single example, which is compared with the batch
        or with this part of it.
        """
        wanted = [None if value is None else resized(value, self.size, size).spec for value in whole.results]
        for attributes in _candidates(node, self.size, size):
            try:
                reading = self.read(node, attributes, find)
            except UsageError:
                continue
            specs = [None if value is None else value.spec for value in reading.results]
            batch, single = (whole, reading) if alone is None else (reading, alone)
            if specs == wanted and agree(batch.algebra, batch.results, single.algebra, single.results):
                return replace(reading, results=_marked(reading.results, whole.results))
        stated = ", ".join(str(spec) for spec in wanted if spec is not None)
        raise UsageError(f"node {node.number}: {node.operator}: cannot be rewritten to give {stated}")

    def keep(self, node: Node, step: _Step) -> None:
        """Remember the results of a node."""
        pairs = zip(node.outputs, step.results, strict=True)
        self.values.update({ref: value for ref, value in pairs if ref is not None and value is not None})

    def _sides(self, node: Node) -> set[int]:
        """The lengths of the operands' axes that hold a whole batch."""
        operands = [self.values[ref] for ref in node.refs]
        return {value.shape[axis] for value in operands for axis in _batch_axes(value)}


def agree(
    whole: Batches, results: tuple[Batched | None, ...], single: Batches, singles: tuple[Batched | None, ...]
) -> bool:
    """Whether a definition called the same primitives for one example as for the batch, and its results are parts."""
    if len(results) != len(singles) or len(whole.notes) != len(single.notes):
        return False
    steps = zip(whole.notes, single.notes, strict=True)
    return all(one.agrees(other, whole.size) for one, other in steps) and all(
        _is_part(result, other, whole.size) for result, other in zip(results, singles, strict=True)
    )


def _is_part(result: Batched | None, single: Batched | None, size: int) -> bool:
    if result is None or single is None:
        return result is single
    return result.live <= result.uniform | {result.counted} and single.spec == resized(result, 1, size).spec


def _marked(results: tuple[Batched | None, ...], whole: tuple[Batched | None, ...]) -> tuple[Batched | None, ...]:
    """The results, with the sides marked that were made for the batch: a side of 1 alone does not show it."""
    pairs = zip(results, whole, strict=True)
    return tuple(one if one is None or all_ is None else replace(one, live=all_.live) for one, all_ in pairs)


def _axis_of(output: Output, value: Batched) -> int | None:
    if value.axis is None and value.live:
        raise UsageError(f"{output.name} depends on the number of examples, and on none of them")
    return value.axis


def _batch_axes(value: Batched) -> frozenset[int]:
    """The axes with one or more rows per example: the batch axis, and sides that were made for it."""
    made = value.live & (value.uniform | {value.counted})
    return made if value.axis is None else made | {value.axis}


def resized(value: Batched, rows: int, size: int) -> Batched:
    """The value for `rows` of `size` examples: the rows of these along the batch axis, and along sides made for it."""
    axes = _batch_axes(value)
    shape = tuple(side // size * rows if axis in axes else side for axis, side in enumerate(value.shape))
    return replace(value, spec=TensorSpec(value.dtype, shape))


def _reading_of(graph: Graph, batched: Collection[Ref], rows: int) -> _Reading:
    specs = {each.name: each.spec for each in graph.inputs}
    for name in batched:
        if name not in specs or not specs[name].shape:
            raise UsageError(f"{name[:80]} is no input with a batch axis")
    sizes = {specs[name].shape[0] for name in batched}
    if len(sizes) != 1:
        raise UsageError(f"the batched inputs have {len(sizes)} sizes of the batch, one is needed")
    (size,) = sizes
    if not 1 <= rows <= size:
        raise UsageError(f"{rows} examples of a batch of {size}")
    return _Reading(
        size, {each.name: Batched(each.spec, 0 if each.name in batched else None) for each in graph.sources}
    )


def _candidates(node: Node, rows: int, size: int) -> Iterator[Mapping[str, Attribute]]:
    places = list(_places(node, size))[:PLACES_MAX]
    for count in range(CHANGES_MAX + 1):
        for chosen in combinations(places, count):
            attributes = dict(node.attributes)
            for place in chosen:
                _scale(attributes, place, rows, size)
            yield attributes


def _places(node: Node, size: int) -> Iterator[Place]:
    """The places in the attributes that hold a positive multiple of the batch size."""
    for name, attribute in node.attributes.items():
        entries = enumerate(attribute) if isinstance(attribute, tuple) else [(None, attribute)]
        for i, entry in entries:
            if type(entry) is int and entry > 0 and entry % size == 0:
                yield name, i


def _scale(attributes: dict[str, Attribute], place: Place, rows: int, size: int) -> None:
    name, i = place
    attribute = attributes[name]
    if isinstance(attribute, tuple) and i is not None:
        scaled = int(attribute[i]) // size * rows
        attributes[name] = (*attribute[:i], scaled, *attribute[i + 1 :])
    elif isinstance(attribute, int):
        attributes[name] = attribute // size * rows
