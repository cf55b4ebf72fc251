"""Explains the integers in which two graphs of one training differ by the sizes of their batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import prod
from typing import Final, TypeAlias

from tallystick.commitments.philox import WORDS_PER_BLOCK
from tallystick.graphs.graph import Graph, Node, Ref
from tallystick.tensors.spec import TensorSpec
from tallystick.workloads.names import BATCH
from tallystick.workloads.paired_values import MASKS, TRAINED, micro_batches, plain_name

FACTORS_MAX: Final = 4
"""How many sides of a tensor are multiplied to explain an integer."""
SIZES: Final = frozenset(
    {"size", "sizes", "shape", "input_size", "input_sizes", "output_size", "split_size", "split_sizes"}
    | {"repeats", "length", "end", "N", "HxW"}
)
"""Parameters of operators that hold sizes: they may follow the sides of the batch."""
PLACES: Final = frozenset({"end", "index", "start"})
"""Parameters that hold places: they may be as far from the end of a side as in the first graph."""
DIVISORS: Final = frozenset({"aten.div.Scalar", "aten.mul.Scalar", "aten.div.Tensor"})
"""Operators whose number may be a count of elements: that is how a mean is taken, and its gradient."""
COUNTED: Final = frozenset({"aten.div.Scalar", "aten.div.Tensor"})
"""Of these, those by which a mean is taken: a count that does not follow its sides scales a gradient."""
STREAMED: Final = frozenset({"tally.philox_uniform", "tally.dropout_mask"})
"""Operators that draw from the stream of a seed at a place: it follows from the sizes of the draws before."""
Followed: TypeAlias = dict[tuple[int, str], bool]
"""Whether places of nodes of the first graph followed the ends of sides in a further one."""


class SizePairs:
    """Explains the integers in which two graphs differ by the sides of their tensors, from the batch on.

    A side of a result follows from operands and attributes by the operator's types, which were checked when the graph
    was read. So only attributes have to be explained, in the order of execution.
    """

    def __init__(self, first: Graph, other: Graph, followed: Followed) -> None:
        self._followed = followed
        self._mine, self._theirs = first.specs(), other.specs()
        self._starts = _starts_of(first), _starts_of(other)
        counts = micro_batches(first), micro_batches(other)
        named = plain_name if counts[0] != counts[1] else str
        theirs = [(named(entry.name), entry.spec) for entry in other.inputs if entry.name.startswith(BATCH)]
        mine = [(named(entry.name), entry.spec) for entry in first.inputs if entry.name.startswith(BATCH)]
        batch = ((one, two) for name, one in mine for its, two in theirs if its == name and one != two)
        self._batch = [side for one, two in dict.fromkeys(batch) for side in _sides(one, two)]
        self._batch += [counts] if counts[0] != counts[1] else []
        self._results = set(self._batch)

    def unexplained(self, nodes: Sequence[tuple[Node, Node]]) -> str:
        """The first integer that does not follow from the sizes of the batch; empty if all do."""
        for mine, theirs in sorted(nodes, key=lambda pair: (pair[0].number, pair[1].number)):
            for name, value in mine.attributes.items():
                if name in PLACES and self._is_inconsistent(mine, theirs, name):
                    return f"{mine.operator} has {name} {theirs.attributes[name]}: unlike in another further graph"
                if mine.operator in COUNTED and self._stays(mine, theirs, value, theirs.attributes[name]):
                    return f"{mine.operator} still has {name} {value}, a size of the first batch that is another now"
                for was, is_now in _unequal(value, theirs.attributes[name]):
                    if name not in MASKS | TRAINED and not self._follows(mine, theirs, name, (was, is_now)):
                        return (
                            f"{mine.operator} has {name} {is_now}, and {was} in the first graph: no size of the batch"
                        )
            for one, two in zip(mine.results, theirs.results, strict=True):
                if one is not None and two is not None:
                    self._results |= set(_sides(one, two))
        return ""

    def _is_inconsistent(self, mine: Node, theirs: Node, name: str) -> bool:
        """Whether a place follows the end of its side here, and not in another further graph, or the reverse."""
        was, is_now = mine.attributes[name], theirs.attributes[name]
        if type(was) is not int or was <= 0 or not self._has_another_side(mine, theirs):
            return False
        return self._followed.setdefault((mine.number, name), was != is_now) != (was != is_now)

    def _has_another_side(self, mine: Node, theirs: Node) -> bool:
        """Whether the side along which a part is taken, or put back, has another length in the other graph."""
        axis, one, two = mine.attributes.get("dim"), self._whole(mine, self._mine), self._whole(theirs, self._theirs)
        is_axis = type(axis) is int and len(one) == len(two) and -len(one) <= axis < len(one)
        return is_axis and one[axis] != two[axis]  # type: ignore[index]

    @staticmethod
    def _whole(node: Node, specs: Mapping[Ref, TensorSpec]) -> tuple[int, ...]:
        sides = node.attributes.get("input_sizes")
        return sides if isinstance(sides, tuple) else specs[node.refs[0]].shape if node.refs else ()  # type: ignore[return-value]

    def _stays(self, mine: Node, theirs: Node, value: object, its: object) -> bool:
        """Whether a count of elements is what it was, although the sizes that explain it, and no others, changed."""
        if type(value) is not int or value != its or abs(value) < 2:
            return False
        known = [side for side in (*self._sides_of(mine, theirs), *self._batch) if side != (1, 1)]
        found = {_product(chosen)[1] for chosen in _choices(known) if _product(chosen)[0] == value}
        return bool(found) and value not in found

    def _sides_of(self, mine: Node, theirs: Node) -> list[tuple[int, int]]:
        operands = [(self._mine[one], self._theirs[two]) for one, two in zip(mine.refs, theirs.refs, strict=False)]
        return [side for one, two in operands for side in _sides(one, two)]

    def _follows(self, mine: Node, theirs: Node, name: str, change: tuple[int, int]) -> bool:
        if mine.operator in STREAMED and name == "offset":
            return self._starts[0].get(change[0]) == self._starts[1].get(change[1]) is not None
        operands, sides = mine.refs, self._sides_of(mine, theirs)
        if name in PLACES and any(_is_as_far_from_the_end(change, side) for side in (*sides, *self._batch)):
            return True
        if name in SIZES or mine.operator in DIVISORS or mine.operator.startswith("aten.arange."):
            made = self._results if not operands else ()
            known = [side for side in (*sides, *self._batch, *made) if side != (1, 1)]
            return any(change == _product(chosen) for chosen in _choices(known))
        return False


def _starts_of(graph: Graph) -> dict[int, int]:
    """The number of each draw from the stream of a seed by its place, where each begins at the end of the one before.

    Empty where words are skipped between draws: nothing says then which of them belongs to which.
    """
    draws = [node for node in graph.nodes if node.operator in STREAMED]
    sizes = {int(str(node.attributes["offset"])): node.results[0].size if node.results[0] else 0 for node in draws}
    starts, place = dict[int, int](), 0
    for number, (start, size) in enumerate(sorted(sizes.items())):
        if start != place:
            return {}
        starts[start] = number
        place += -(-size // WORDS_PER_BLOCK) * WORDS_PER_BLOCK
    return starts


def _is_as_far_from_the_end(change: tuple[int, int], side: tuple[int, int]) -> bool:
    """Whether two places lie equally far before the ends of two sides; the beginning of a side is no such place."""
    left = side[0] - change[0]
    return change[0] != 0 and change[1] >= 0 and 0 <= left <= side[0] and left == side[1] - change[1]


def _choices(sides: Sequence[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], ...]]:
    return (chosen for count in range(1, FACTORS_MAX + 1) for chosen in combinations(sides, count))


def _product(sides: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return prod(one for one, _ in sides), prod(two for _, two in sides)


def _sides(one: TensorSpec, two: TensorSpec) -> Iterator[tuple[int, int]]:
    """The sides of two tensors in pairs; none where their numbers of dimensions differ."""
    return iter(zip(one.shape, two.shape, strict=True) if len(one.shape) == len(two.shape) else ())


def _unequal(value: object, its: object) -> Iterator[tuple[int, int]]:
    """The pairs of integers in which two attributes differ."""
    if isinstance(value, tuple) and isinstance(its, tuple):
        for one, two in zip(value, its, strict=True):
            yield from _unequal(one, two)
    elif isinstance(value, int) and isinstance(its, int) and value != its:
        yield value, its
