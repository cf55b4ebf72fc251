"""Whether two step graphs of one run are one training, and one program.

A run may have several step graphs: for batches of several shapes, for parameters that begin to train later, for other
settings of the optimizer. Which graph a step has is the prover's word. So a graph is compared with that of the spec:

* `difference`: it carries the same state, leaves what has no gradient as it is, and makes of a gradient what the first
  one makes. A graph that does not contradicts the rules that its record states.
* `departure`: loss, gradients and all else that it gives are computed as in the first graph, but for what the verifier
  sees: the sizes of the batch, its masks, the parameters that train, and the numbers of the settings that changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tallystick.graphs.graph import Graph, Node
from tallystick.transcripts.rule import GroupRule
from tallystick.workloads.names import BATCH, GENERATOR, WEIGHTS, parameter_of
from tallystick.workloads.paired_sizes import Followed, SizePairs
from tallystick.workloads.paired_values import (
    GRADIENTS,
    MASKS,
    SCHEDULE,
    TRAINED,
    GraphValues,
    Judge,
    ValuePairs,
    micro_batches,
)

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
            held, decays = dict[float, float](), set[float]()
            for name, one, two in sorted(_settings(old, new), key=lambda each: each[1] == each[2]):
                if _is_number(one) and _is_number(two) and (one == two or (one and two)):
                    pairs = list(zip(_written(name, one), _written(name, two), strict=True))
                    if any(held.get(was, is_now) != is_now for was, is_now in pairs):
                        return cls(of_structure=f"{name} of parameter group {number} had the number of another setting")
                    held |= dict(pairs)
                elif name == "weight_decay":
                    decays |= {one or two, -(one or two)}
                elif one != two:
                    return cls(of_structure=f"{name} of parameter group {number} is {two}, and {one} before")
            changed = frozenset((was, is_now) for was, is_now in held.items() if was != is_now)
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
