"""Parts of a graph run alone: its middle third, and one example of its batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from research.architectures.distances import relative
from research.architectures.judging import Judgement, judge_all
from research.architectures.subjects import Subject
from tallystick.core.tensors import State, Tensor, TensorSpec
from tallystick.programs.batching import BatchSlice, slice_batch
from tallystick.programs.execution import Engine
from tallystick.programs.graph import Graph, Ref
from tallystick.programs.slicing import verification_slice
from tallystick.tally.calibration.operator_runs import all_values

Values = Mapping[Ref, Tensor]


@dataclass(frozen=True)
class Slice:
    """The middle third executed alone: `differing` of its values have other bits than in the whole run, `worst` apart.

    Where bits differ, every operator of the slice's own run has been judged, with the objections `rejected`.
    """

    nodes: int
    values: int
    differing: int
    worst: float
    rejected: tuple[str, ...] = ()


@dataclass(frozen=True)
class Examples:
    """Single examples of the batch: rows of the whole run judged by the graph of one example, and that graph replayed.

    `judged` is the judgement with the largest share, `rejected` the objections to any row; `worst` is how far the
    outputs of the replay are from the rows of the whole run.
    """

    rows: int
    nodes: int
    judged: Judgement
    worst: float
    rejected: tuple[str, ...] = ()


def middle_slice(graph: Graph) -> Graph:
    """What the middle third of the nodes computes: the values alive at its end from those alive at its start."""
    third = len(graph.nodes) // 3
    before, after = _alive(graph, third), _alive(graph, 2 * third)
    return verification_slice(graph, before, [ref for ref in after if ref not in before])


def run_slice(part: Graph, subject: Subject, values: Values, engine: Engine) -> Slice:
    """The slice gives the bits of the whole run, or else operators within their bounds.

    A slice starts from bytes, so from row-major tensors; kernels that were given another layout add in another order.
    """
    replayed = all_values(part, {**subject.bindings, **values}, engine)
    wanted = [output.value for output in part.outputs]
    differing = [ref for ref in wanted if replayed[ref] != values[ref]]
    worst = max((relative(values[ref], replayed[ref]) for ref in differing), default=0.0)
    rejected = judge_all(part, replayed).rejected if differing else ()
    return Slice(len(part.nodes), len(wanted), len(differing), worst, rejected)


def isolate(subject: Subject, values: Values, engine: Engine) -> Examples:
    """Every row of the batch: its part of the whole run judged as a run of its own, and replayed alone.

    Raises `UsageError` where it cannot be proved that examples do not mix.
    """
    single = slice_batch(subject.graph, subject.batched)
    outputs = {output.name: values[output.value] for output in subject.graph.outputs}
    judged, worst = [], 0.0
    for row, bindings in enumerate(single.split(subject.bindings)):
        replayed = all_values(single.graph, bindings, engine)
        judged.append(judge_all(single.graph, rows_of(single, values, replayed, row)))
        expected = single.examples(outputs, row)
        given = {output.name: replayed[output.value] for output in single.graph.outputs}
        worst = max([worst, *(relative(expected[name], given[name]) for name in given)])
    widest = max(judged, key=lambda each: each.share)
    return Examples(single.size, len(single.graph.nodes), widest, worst, sum((each.rejected for each in judged), ()))


def rows_of(single: BatchSlice, whole: Values, replayed: Values, row: int) -> State:
    """Every value of the graph of one example: floats are rows of the whole run, all others come from its own replay.

    A value of one spec in both is the same for every example.
    """
    specs = single.graph.specs()
    return {
        ref: _row(whole[ref], spec, single.size, row) if spec.is_float else replayed[ref] for ref, spec in specs.items()
    }


def _row(whole: Tensor, spec: TensorSpec, size: int, row: int) -> Tensor:
    """The part of a value of the whole batch that has the spec of one example's."""
    axes = [axis for axis, (old, new) in enumerate(zip(whole.shape, spec.shape, strict=True)) if old != new]
    if not axes:
        return whole
    array = whole.array()
    for axis in axes:
        block = spec.shape[axis]
        assert whole.shape[axis] == block * size
        array = np.take(array, range(row * block, (row + 1) * block), axis)
    return Tensor.of(np.ascontiguousarray(array), whole.dtype)


def _alive(graph: Graph, number: int) -> list[Ref]:
    """The values that the first `number` nodes give and that later nodes or the outputs read."""
    before, after = graph.nodes[:number], graph.nodes[number:]
    read = {ref for node in after for ref in node.refs} | {output.value for output in graph.outputs}
    return [ref for node in before for ref in node.outputs if ref is not None and ref in read]
