"""Whether two step graphs of one run are one training, up to the sizes of their batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import prod
from typing import Any, Final, TypeAlias

from tallystick.core.tensors import TensorSpec
from tallystick.formats.optimizers import GroupRule
from tallystick.programs.graph import Graph, Node, Ref
from tallystick.programs.paired_values import (
    GRADIENTS,
    MASKS,
    SCHEDULE,
    TRAINED,
    GraphValues,
    Judge,
    ValuePairs,
    micro_batches,
    plain_name,
)
from tallystick.programs.random_words import WORDS_PER_BLOCK
from tallystick.programs.step_names import BATCH, GENERATOR, WEIGHTS, parameter_of

# Explains the integers in which two graphs of one training differ by the sizes of their batches.

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
        sizes = {_product(chosen)[1] for chosen in _choices(known) if _product(chosen)[0] == value}
        return bool(sizes) and value not in sizes

    def _sides_of(self, mine: Node, theirs: Node) -> list[tuple[int, int]]:
        operands = [(self._mine[one], self._theirs[two]) for one, two in zip(mine.refs, theirs.refs, strict=False)]
        return [side for one, two in operands for side in _sides(one, two)]

    def _follows(self, mine: Node, theirs: Node, name: str, change: tuple[int, int]) -> bool:
        if mine.operator in STREAMED and name == "offset":
            return self._starts[0].get(change[0]) == self._starts[1].get(change[1]) is not None
        sides = self._sides_of(mine, theirs)
        if name in PLACES and any(_is_as_far_from_the_end(change, side) for side in (*sides, *self._batch)):
            return True
        if name in SIZES or mine.operator in DIVISORS or mine.operator.startswith("aten.arange."):
            has_sides = sides or mine.operator in DIVISORS  # `expand` of a number takes its sizes from elsewhere
            made = () if has_sides else self._results
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


# Whether two step graphs of one run are one training, and one program.
#
# A run may have several step graphs: for batches of several shapes, for parameters that begin to train later, for other
# settings of the optimizer. Which graph a step has is the prover's word. So a graph is compared with that of the spec:
#
# * `difference`: it carries the same state, leaves what has no gradient as it is, and makes of a gradient what the
#   first one makes. A graph that does not contradicts the rules that its record states.
# * `departure`: loss, gradients and all else that it gives are computed as in the first graph, but for what the
#   verifier sees: the sizes of the batch, its masks, the parameters that train, and the numbers of the settings that
#   changed.

AVERAGES = "ema."
NO_SHARES: Final = frozenset({"eps", "weight_decay"})
"""Settings of which no optimizer takes 1 − x."""
COUNTERS = "position."


def difference(first: Graph, other: Graph, is_updated_alike: bool = True) -> str:
    """Names the first tensor of the state that two step graphs of one training treat differently; empty if none.

    Updates are compared where the optimizer has the same settings in both (`is_updated_alike`).
    """
    moved = trained_by(first) ^ trained_by(other)
    return (
        _of_inputs(first, other, moved)
        or _of_outputs(first, other, moved)
        or _of_frozen(other)
        or (_of_updates(first, other, UNCHANGED) if is_updated_alike else "")
    )


def departure(
    first: Graph, other: Graph, changes: SettingChanges, masks_differ: bool = False, followed: Followed | None = None
) -> str:
    """Names the first result that `other` computes by another program than `first`; empty if it is the same program.

    `changes` are those of the optimizer's settings between the two, and `masks_differ` says that the masks of their
    batches do: attention may then be given a mask in one of them alone. `followed` remembers which places followed the
    end of a side: these are the same ones in all further graphs.
    """
    if changes.of_structure:
        return f"{changes.of_structure}, which changes the program of the update"
    if changed := _of_updates(first, other, changes):
        return changed
    if added := sorted(trained_by(other) - trained_by(first)):
        return f"{added[0]} trains, and the first graph has no gradient to compare"
    return _of_program(first, other, masks_differ, {} if followed is None else followed)


def trained_by(graph: Graph) -> frozenset[str]:
    """The parameters that have a gradient in a step graph."""
    names = (output.name for output in graph.outputs)
    return frozenset(name.removeprefix(GRADIENTS) for name in names if name.startswith(GRADIENTS))


@dataclass(frozen=True)
class GroupChanges:
    """The numbers of one parameter group's settings that changed: (before, now), as attributes of a graph hold them.

    `decays` are weight decays that were turned on or off.
    """

    numbers: frozenset[tuple[float, float]] = frozenset()
    decays: frozenset[float] = frozenset()

    def judge(self, mine: Node, theirs: Node) -> str:
        """Why the attributes of two nodes of the update do not follow from the changed settings; empty if they do."""
        for name, was in mine.attributes.items():
            is_now = theirs.attributes[name]
            if was != is_now and (was, is_now) not in self.numbers:
                return f"{mine.operator} has {name} {is_now}, and {was} in the first graph"
            if was == is_now and any(was == old for old, _ in self.numbers if _is_number(was)):
                return f"{mine.operator} still has {name} {was}, a setting that the record says was changed"
        return "" if mine.results == theirs.results else f"{mine.operator} has other results"


@dataclass(frozen=True)
class SettingChanges:
    """The changes of an optimizer's settings, by parameter group.

    `of_structure` names a setting that changed in another way than from one number to another, or whose number another
    setting had that did not change alike: an attribute of the graph does not say which of both it holds.
    """

    groups: tuple[GroupChanges, ...] = ()
    of_structure: str = ""

    @classmethod
    def between(cls, before: Sequence[GroupRule], now: Sequence[GroupRule]) -> SettingChanges:
        """The changes from the rules of the spec to those of a step."""
        if [type(rule) for rule in before] != [type(rule) for rule in now]:
            return cls(of_structure="the groups of parameters or their optimizers are others")
        groups = list[GroupChanges]()
        for number, (old, new) in enumerate(zip(before, now, strict=True)):
            renamed, decays = dict[float, float](), set[float]()
            for name, one, two in sorted(_settings(old, new), key=lambda pair: pair[1] == pair[2]):
                if _is_number(one) and _is_number(two) and (one == two or (one and two)):
                    pairs = list(zip(_written(name, one), _written(name, two), strict=True))
                    if any(renamed.get(was, is_now) != is_now for was, is_now in pairs):
                        return cls(of_structure=f"{name} of parameter group {number} had the number of another setting")
                    renamed |= dict(pairs)
                elif name == "weight_decay":
                    decays |= {one or two, -(one or two)}
                elif one != two:
                    return cls(of_structure=f"{name} of parameter group {number} is {two}, and {one} before")
            changed = frozenset((was, is_now) for was, is_now in renamed.items() if was != is_now)
            groups.append(GroupChanges(changed, frozenset(decays)))
        return cls(tuple(groups))

    def of_group(self, number: int | None) -> GroupChanges:
        """The changes of a group; none for what belongs to no group."""
        return self.groups[number] if number is not None and number < len(self.groups) else GroupChanges()


def _settings(old: GroupRule, new: GroupRule) -> Iterator[tuple[str, Any, Any]]:
    """The settings of a group before and now, each number of a pair by itself."""
    for name in type(old).model_fields:
        was, is_now = getattr(old, name), getattr(new, name)
        both = zip(was, is_now, strict=True) if isinstance(was, tuple) else [(was, is_now)]
        yield from ((name, one, two) for one, two in both)


UNCHANGED: Final = SettingChanges()


def _written(name: str, number: float) -> tuple[float, ...]:
    """How attributes of a graph may hold a number of the settings: a share also as what is left of 1."""
    return (number, -number) if name in NO_SHARES else (number, -number, 1 - number)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _of_inputs(first: Graph, other: Graph, moved: Set[str]) -> str:
    wanted, given = (
        {entry.name: (entry.role, entry.spec) for entry in graph.inputs if not entry.name.startswith((BATCH, SCHEDULE))}
        for graph in (first, other)
    )
    wrong = (name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
    strange = sorted(name for name in wrong if name in wanted.keys() & given.keys() or not _is_slot_of(name, moved))
    return f"{strange[0]} is another input" if strange else ""


def _of_outputs(first: Graph, other: Graph, moved: Set[str]) -> str:
    wanted, given = ({output.name for output in graph.outputs} for graph in (first, other))
    wrong = (name for name in wanted ^ given if not name.startswith(GRADIENTS))
    strange = sorted(name for name in wrong if not _is_slot_of(name, moved))
    return f"{strange[0]} is an output of one of them" if strange else ""


def _is_slot_of(name: str, parameters: Set[str]) -> bool:
    return name.startswith("optimizer.") and parameter_of(name) in parameters


def _of_frozen(graph: Graph) -> str:
    """A weight or slot of a parameter without a gradient is what it was."""
    trained = trained_by(graph)
    for output in graph.outputs:
        parameter = parameter_of(output.name)
        if parameter and parameter not in trained and output.value != output.name:
            return f"{output.name} has no gradient, and is changed"
    return ""


def _of_updates(first: Graph, other: Graph, changes: SettingChanges) -> str:
    """Compares what is made of gradients: the nodes between `gradients.<parameter>` and the new weights and slots."""
    mine, theirs = GraphValues.of(first, GRADIENTS), GraphValues.of(other, GRADIENTS)
    groups = dict[int | None, ValuePairs]()
    counting = ValuePairs(mine, theirs, _same_attributes)
    averaging = ValuePairs(GraphValues.of(first, WEIGHTS), GraphValues.of(other, WEIGHTS), _same_attributes)
    both = trained_by(first) & trained_by(other)
    for name in sorted(mine.outputs.keys() & theirs.outputs.keys()):
        parameter = parameter_of(name)
        if name == GENERATOR:  # its draws have the sizes of the batch, as the loss has
            continue
        if name.startswith((COUNTERS, AVERAGES)):
            pairs = averaging if name.startswith(AVERAGES) else counting
        elif parameter in both:
            group = mine.group_of(parameter)
            own = changes.of_group(group)
            skip = partial(GraphValues.without_decay, decays=own.decays, group=group) if own.decays else None
            pairs = groups.setdefault(group, ValuePairs(mine, theirs, own.judge, skip=skip))
        else:
            continue
        if unlike := pairs.unlike(name):
            return f"{name} is updated otherwise ({unlike})"
    return ""


def _of_program(first: Graph, other: Graph, masks_differ: bool, followed: Followed) -> str:
    """Compares what is made of batch and state, up to sizes: loss, gradients, buffers, all but the update."""
    moved = trained_by(first) ^ trained_by(other)
    free = (MASKS if masks_differ else frozenset()) | (TRAINED if moved else frozenset())
    skip = GraphValues.without_repeats if masks_differ else None
    splits = micro_batches(first) != micro_batches(other)
    values = GraphValues.of(first, splits=splits), GraphValues.of(other, splits=splits)
    if splits and min(micro_batches(first), micro_batches(other)) > 1 and values[0].averages != values[1].averages:
        return "loss is a mean over micro-batches in one of them, and a sum in the other"
    missing = values[0].norms_of(moved), values[1].norms_of(moved)
    pairs = ValuePairs(*values, _same_but_integers(free), free, missing, skip)
    for name in sorted(
        pairs.first.outputs.keys() & pairs.other.outputs.keys(), key=lambda name: (name != "loss", name)
    ):
        is_updated = parameter_of(name) or (name.startswith((AVERAGES, COUNTERS)) and name != GENERATOR)
        if not is_updated and name.removeprefix(GRADIENTS) not in moved and (unlike := pairs.unlike(name)):
            return f"{name} is computed otherwise ({unlike})"
    return SizePairs(first, other, followed).unexplained(pairs.nodes)


def _same_attributes(mine: Node, theirs: Node) -> str:
    is_same = (mine.attributes, mine.results) == (theirs.attributes, theirs.results)
    return "" if is_same else f"{mine.operator} with other attributes"


def _same_but_integers(free: Set[str]) -> Judge:
    """Compares attributes and types, and leaves open integers: whether these follow from sizes is asked afterwards."""

    def judge(mine: Node, theirs: Node) -> str:
        for name, value in mine.attributes.items():
            its = theirs.attributes[name]
            if name not in free and value != its and not _is_size_change(value, its):
                return f"{mine.operator} has {name} {its}, and {value} in the first graph"
        kinds = [[spec and (spec.dtype, len(spec.shape)) for spec in node.results] for node in (mine, theirs)]
        return "" if kinds[0] == kinds[1] or free >= TRAINED else f"{mine.operator} gives other types"

    return judge


def _is_size_change(value: object, its: object) -> bool:
    if isinstance(value, tuple) and isinstance(its, tuple):
        return len(value) == len(its) and all(map(_is_size_change, value, its))
    return value == its or (type(value) is int and type(its) is int)
