"""The step graphs of a loop: that of its first step, and those of batches that this one cannot read.

Batches of a few shapes have a captured graph each. From two of them the graph of a third length follows
(`graphs.sizes`), which takes a small part of the time of a capture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tallystick.errors import MalformedError, UnavailableError
from tallystick.graphs.sizes import Sizes, graph_at
from tallystick.recorders.boundary import printed, say, sheltered
from tallystick.recorders.step_graph import Batches, StepGraph
from tallystick.recorders.step_watch import KEEP_SETTINGS
from tallystick.store.run import RunDirectory
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import State
from tallystick.transcripts.record import graph_file
from tallystick.transcripts.rule import GroupRule, changed_setting
from tallystick.workloads.masks import full_masks
from tallystick.workloads.same_training import SettingChanges, departure, difference

CAPTURES_MAX: Final = 16
"""How many graphs are captured besides the first: each takes as long as many steps, half a minute on a real model."""
SETTINGS_MAX: Final = 4
"""For how many settings of the optimizer graphs are captured: a schedule that moves one in every step is no graph."""
GRAPHS_MAX: Final = 256
"""How many graphs a run has besides the first: each is a file, and is held in memory, half a kilobyte for a node."""
TOO_MANY: Final = "{} further graphs were {}, and no more are; pad to a few lengths (pad_to_multiple_of=64)"
OTHER_PROGRAM: Final = (
    "a step has another program than the first: {}. An audit of it is inconclusive until the auditor approves its "
    "graph, --graph {}"
)


@dataclass(frozen=True)
class StepSettings:
    """The rules of the optimizer in a step, and which parameters had a gradient."""

    rules: tuple[GroupRule, ...]
    trained: frozenset[str]


@dataclass(frozen=True)
class Consumed:
    """The batch of a step: its tensors by the names of a graph, its other numbers, and its form in the loop.

    `count` says how many micro-batches it has.
    """

    named: State
    numbers: Mapping[str, float]
    batch: Batches
    count: int


Named = tuple[tuple[str, TensorSpec], ...]
Kind = tuple[Named, frozenset[str], StepSettings]


class StepGraphs:
    """Finds the graph of a step by its batch; a batch of a new kind gets a graph of its own, which is saved."""

    def __init__(self, first: StepGraph, run: RunDirectory) -> None:
        self.first = first
        self._run, self._held, self._captured_ones = run, [first], [first]
        self._refused: dict[Kind, str] = {}

    def of(self, step: Consumed, seen: StepSettings) -> StepGraph | str | None:
        """The graph of a step that was taken with these settings, or in words why it has none.

        `None` where a step of its kind was not taken before.
        """
        alike = [graph for graph in self._held[::-1] if not graph.misfit(step.named) and settings_of(graph) == seen]
        if found := next((graph for graph in alike if not graph.other_number(step.numbers)), None):
            return found
        if alike:
            return printed(alike[0].other_number(step.numbers))
        if known := self._rescaled(step, seen):
            return known
        return self._refused.get(kind_of(step, seen))

    def derived(self, step: Consumed, seen: StepSettings) -> StepGraph | None:
        """The graph of a batch of other sizes than those that were captured, or `None`; the step has yet to show it."""
        if len(self._held) > GRAPHS_MAX:
            return None
        sizes, known = sizes_of(specs_of(step.named)), list[tuple[Sizes, StepGraph]]()
        for each in self._captured_ones:
            if settings_of(each) == seen and not each.other_number(step.numbers) and each.has_masks_of(step.named):
                known += (
                    [(sizes_of(each.batch_specs), each)] if _differ_in_sizes_alone(each.batch_specs, step.named) else []
                )
        known.sort(key=lambda pair: sum(one != two for one, two in zip(pair[0], sizes, strict=True)))
        try:
            graph = graph_at(sizes, [(at, each.captured.graph) for at, each in known])
        except MalformedError:
            return None
        return None if graph is None else known[0][1].with_graph(graph)

    def keep(self, graph: StepGraph) -> None:
        """Save and hold a graph that a step has shown to be right."""
        if all(graph.root != each.root for each in self._held):
            graph.save(self._run.path / graph_file(graph.root))
        self._held.append(graph)

    def refuse(self, step: Consumed, seen: StepSettings, why: str) -> str:
        """Say of a kind of step that it has no graph, now and later; a graph that it has is not held any more."""
        what = self.first.misfit(step.named) or _changed(settings_of(self.first), seen)
        for held in (self._held, self._captured_ones):
            held[1:] = [each for each in held[1:] if each.misfit(step.named) or settings_of(each) != seen]
        return self._refused.setdefault(kind_of(step, seen), printed(f"{what}; {why}"))

    def _rescaled(self, step: Consumed, seen: StepSettings) -> StepGraph | None:
        """The graph of a step whose settings only change numbers that are fed to it, as a weight decay may.

        Two graphs that are the same although a setting differs show that it is such a one.
        """
        pairs = [(one, two) for one in self._held for two in self._held if one.root == two.root]
        fed = set[str]().union(*(_differing(one.rules, two.rules) for one, two in pairs))
        for graph in self._held[::-1]:
            others, misfit = _differing(graph.rules, seen.rules), graph.misfit(step.named)
            is_it = others and others <= fed and graph.trained == seen.trained
            if is_it and not misfit and not graph.other_number(step.numbers):
                return replace(graph, captured=replace(graph.captured, rules=seen.rules))
        return None

    def captured(self, step: Consumed, seen: StepSettings) -> StepGraph | str:
        """A further graph, captured from the loop as it is now, or in words why there can be none."""
        found = list[StepGraph | str]()
        with sheltered(found.append):  # a capture runs code of the loop and of other libraries
            found.append(self._captured(step, seen))
        return found[0]

    def _captured(self, step: Consumed, seen: StepSettings) -> StepGraph:
        if self.first.again is None:
            raise UnavailableError("the step of this loop is captured once")
        if len(self._captured_ones) > CAPTURES_MAX:
            raise UnavailableError(TOO_MANY.format(CAPTURES_MAX, "captured"))
        if len(self._held) > GRAPHS_MAX:
            raise UnavailableError(TOO_MANY.format(GRAPHS_MAX, "kept"))
        if len({graph.rules for graph in self._held} | {seen.rules}) > SETTINGS_MAX:
            raise UnavailableError(KEEP_SETTINGS)
        found = self.first.again(step.batch, step.count)
        if changed := _changed(seen, settings_of(found)):
            raise UnavailableError(f"{changed} when it was to be captured; change that before the next step begins")
        is_updated_alike = found.rules == self.first.rules
        if unlike := difference(self.first.captured.graph, found.captured.graph, is_updated_alike):
            raise UnavailableError(f"its step is another than the first: {unlike}")
        changes = SettingChanges.between(self.first.rules, found.rules)
        masks_differ = not self.first.has_masks_of(step.named)
        if other := departure(self.first.captured.graph, found.captured.graph, changes, masks_differ):
            say(OTHER_PROGRAM.format(printed(other), found.root))
        self.keep(found)
        self._captured_ones.append(found)
        return found


def kind_of(step: Consumed, seen: StepSettings) -> Kind:
    """What decides which graph a step has."""
    return specs_of(step.named), full_masks(step.named), seen


def specs_of(named: State) -> Named:
    """The specs of a batch, by name."""
    return tuple((name, TensorSpec.of(each)) for name, each in sorted(named.items()))


def sizes_of(specs: Named) -> Sizes:
    """All sides of the tensors of a batch."""
    return tuple(side for _, spec in specs for side in spec.shape)


def _differ_in_sizes_alone(specs: Named, named: State) -> bool:
    """Whether a batch has the same tensors, of as many dimensions."""
    forms = [[(name, spec.dtype, len(spec.shape)) for name, spec in each] for each in (specs, specs_of(named))]
    return forms[0] == forms[1]


def settings_of(graph: StepGraph) -> StepSettings:
    """The settings that a graph was captured with."""
    return StepSettings(graph.rules, graph.trained)


def _differing(before: Sequence[GroupRule], now: Sequence[GroupRule]) -> set[str]:
    """The settings in which two lists of rules differ; all of them where one is turned on or off."""
    found = set[str]()
    for old, new in zip(before, now, strict=False):
        for name in type(old).model_fields:
            was, is_now = getattr(old, name), getattr(new, name, None)
            found |= set() if was == is_now else {name} if was and is_now else {"", name}
    return found if [type(rule) for rule in before] == [type(rule) for rule in now] else {""}


def _changed(before: StepSettings, now: StepSettings) -> str:
    """Names the first setting, or parameter with or without a gradient, in which two steps differ."""
    moved = sorted(before.trained ^ now.trained)
    having = "" if not moved else "no gradient" if moved[0] in before.trained else "a gradient"
    return changed_setting(before.rules, now.rules) or (f"{moved[0]} has {having}" if moved else "")
