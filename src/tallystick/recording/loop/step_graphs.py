"""The step graphs of a loop: where the first one comes from, and which one a step has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import torch

from tallystick.audits.same_training import SettingChanges, departure, difference
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.engines.torch.randomness import DROPS
from tallystick.formats.optimizers import GroupRule, changed_setting
from tallystick.formats.records import graph_file
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.step_names import full_masks
from tallystick.programs.templates import Sizes, graph_at
from tallystick.recording.boundary import contain_errors, ignore, printable, warn
from tallystick.recording.loop.preflight import Blocker, preflight, reason_from
from tallystick.recording.loop.program_watch import GivenLoss, ProgramWatch
from tallystick.recording.loop.step_graph import Specs, StepGraph, specs_of
from tallystick.recording.loop.watchers import KEEP_SETTINGS, Settings, StepSeen

# Where the step graph of a loop comes from, and what is said where there is none.


@dataclass(frozen=True)
class GraphSource:
    """A `graph`, or the reason why there is none (`no_graph`); without both, the first step will show it.

    `blockers` are what was found before the first step, `seed` is that of the random numbers of a watched one, and
    `given` its loss where that is stated.
    """

    graph: StepGraph | None = None
    no_graph: str | None = None
    blockers: Sequence[Blocker] = ()
    seed: int | None = None
    given: GivenLoss | None = None


def known_blockers(model: torch.nn.Module, optimizer: Any, seed: int | None = None) -> list[Blocker]:
    """The findings of `preflight`; none where it cannot read a model or optimizer that other code has made.

    With a `seed`, dropout is no such finding.
    """
    found: list[Blocker] = []
    with contain_errors(ignore):
        found.extend(preflight(model, optimizer))
    return [each for each in found if seed is None or not each.what.startswith(DROPS)]


def captured(capture: Callable[[], StepGraph], blockers: Sequence[Blocker]) -> GraphSource:
    """The graph that `capture` gives; where it gives none, or `blockers` leave no hope, a warning and the reason.

    A capture runs code of the loop and of other libraries, so any of its errors is a reason, and steps are recorded.
    """
    reasons = list[str]()
    if not any(blocker.is_certain for blocker in blockers):
        with contain_errors(reasons.append):
            return GraphSource(capture())
    return without_graph(blockers, "".join(reasons))


def watched(blockers: Sequence[Blocker], seed: int | None = None, given: GivenLoss | None = None) -> GraphSource:
    """The graph that the first step will give; where `blockers` leave no hope, a warning and the reason."""
    if any(blocker.is_certain for blocker in blockers):
        return without_graph(blockers)
    return GraphSource(blockers=blockers, seed=seed, given=given)


def without_graph(blockers: Sequence[Blocker], reason: str = "") -> GraphSource:
    """No graph, after a warning that gives every reason at once."""
    no_graph = printable(reason_from(blockers, reason))
    warn(f"the audit of this run will be inconclusive: {no_graph}")
    return GraphSource(no_graph=no_graph)


# The step graphs of a loop: that of its first step, and those of batches that this one cannot read.
#
# Batches of a few shapes have a captured graph each. From two of them the graph of a third length follows
# (`programs.templates`), which takes a small part of the time of a capture.

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


Kind: TypeAlias = tuple[Specs, frozenset[str], Settings]
"""What decides which graph a step has: the specs of its batch, the masks in it that are full, and the settings."""


class StepGraphs:
    """Finds the graph of a step by its batch; a batch of a new kind gets a graph of its own, which is saved.

    Steps that `program` has watched are captured as they were seen.
    """

    def __init__(self, first: StepGraph, run: RunDirectory, program: ProgramWatch | None) -> None:
        self.first = first
        self._run, self._program, self._graphs, self._captured_ones = run, program, [first], [first]
        self._refused: dict[Kind, str] = {}

    def of(self, step: StepSeen) -> StepGraph | str | None:
        """The graph of a step, or in words why it has none; `None` where a step of its kind was not taken before."""
        fitting = [graph for graph in self._graphs[::-1] if not graph.misfit(step.named)]
        alike = [graph for graph in fitting if settings_of(graph) == step.settings]
        if found := next((graph for graph in alike if not graph.other_number(step.numbers)), None):
            return found
        if alike:
            return printable(alike[0].other_number(step.numbers))
        # a setting in which two equal graphs differ, as a weight decay may, is a number that is fed to them
        pairs = [(one, two) for one in self._graphs for two in self._graphs if one.root == two.root]
        fed = set[str]().union(*(_differing(one.rules, two.rules) for one, two in pairs))
        for graph in fitting:
            others = _differing(graph.rules, step.settings.rules)
            is_rescaled = others and others <= fed and graph.trained == step.settings.trained
            if is_rescaled and not graph.other_number(step.numbers):
                return replace(graph, captured=replace(graph.captured, rules=step.settings.rules))
        return self._refused.get(kind_of(step))

    def derived(self, step: StepSeen) -> StepGraph | None:
        """The graph of a batch of other sizes than those that were captured, or `None`; the step has yet to show it."""
        if len(self._graphs) > GRAPHS_MAX:
            return None
        sizes, forms = sizes_of(specs_of(step.named)), forms_of(specs_of(step.named))
        known = [
            (sizes_of(graph.batch_specs), graph)
            for graph in self._captured_ones
            if settings_of(graph) == step.settings
            and not graph.other_number(step.numbers)
            and not graph.other_mask(step.named)
            and forms_of(graph.batch_specs) == forms
        ]
        known.sort(key=lambda pair: sum(one != two for one, two in zip(pair[0], sizes, strict=True)))
        try:
            found = graph_at(sizes, [(at, graph.captured.graph) for at, graph in known])
        except MalformedError:
            return None
        return None if found is None else replace(known[0][1], captured=replace(known[0][1].captured, graph=found))

    def keep(self, graph: StepGraph) -> None:
        """Save and hold a graph that a step has shown to be right."""
        if all(graph.root != known.root for known in self._graphs):
            graph.save(self._run.path / graph_file(graph.root))
        self._graphs.append(graph)

    def refuse(self, step: StepSeen, why: str) -> str:
        """Say of a kind of step that it has no graph, now and later; a graph that it has is not held any more."""
        what = self.first.misfit(step.named) or _changed(settings_of(self.first), step.settings)
        for graphs in (self._graphs, self._captured_ones):
            graphs[1:] = [
                graph for graph in graphs[1:] if graph.misfit(step.named) or settings_of(graph) != step.settings
            ]
        return self._refused.setdefault(kind_of(step), printable(f"{what}; {why}"))

    def captured(self, step: StepSeen) -> StepGraph | str:
        """A further graph, captured from the loop as it is now, or in words why there can be none."""
        found = list[StepGraph | str]()
        with contain_errors(found.append):  # a capture runs code of the loop and of other libraries
            found.append(self._captured(step))
        return found[0]

    def _captured(self, step: StepSeen) -> StepGraph:
        if len(self._captured_ones) > CAPTURES_MAX:
            raise UnavailableError(TOO_MANY.format(CAPTURES_MAX, "captured"))
        if len(self._graphs) > GRAPHS_MAX:
            raise UnavailableError(TOO_MANY.format(GRAPHS_MAX, "kept"))
        if len({graph.rules for graph in self._graphs} | {step.settings.rules}) > SETTINGS_MAX:
            raise UnavailableError(KEEP_SETTINGS)
        is_watched = self._program is not None and self._program.has_step
        found = self._program.graph(step.batch) if self._program and is_watched else self.first.again(step.parts)
        if changed := _changed(step.settings, settings_of(found)):
            raise UnavailableError(f"{changed} when it was to be captured; change that before the next step begins")
        is_updated_alike = found.rules == self.first.rules
        if unlike := difference(self.first.captured.graph, found.captured.graph, is_updated_alike):
            raise UnavailableError(f"its step is another than the first: {unlike}")
        changes = SettingChanges.between(self.first.rules, found.rules)
        masks_differ = bool(self.first.other_mask(step.named))
        if other := departure(self.first.captured.graph, found.captured.graph, changes, masks_differ):
            warn(OTHER_PROGRAM.format(printable(other), found.root))
        self.keep(found)
        self._captured_ones.append(found)
        return found


def kind_of(step: StepSeen) -> Kind:
    """What decides which graph a step has."""
    return specs_of(step.named), full_masks(step.named), step.settings


def sizes_of(specs: Specs) -> Sizes:
    """All sides of the tensors of a batch."""
    return tuple(side for _, spec in specs for side in spec.shape)


def forms_of(specs: Specs) -> list[tuple[str, str, int]]:
    """The tensors of a batch without their sizes: names, dtypes, and how many dimensions they have."""
    return [(name, spec.dtype, len(spec.shape)) for name, spec in specs]


def settings_of(graph: StepGraph) -> Settings:
    """The settings that a graph was captured with."""
    return Settings(graph.rules, graph.trained)


def _differing(before: Sequence[GroupRule], now: Sequence[GroupRule]) -> set[str]:
    """The settings in which two lists of rules differ; all of them where one is turned on or off."""
    found = set[str]()
    for old, new in zip(before, now, strict=False):
        for name in type(old).model_fields:
            was, is_now = getattr(old, name), getattr(new, name, None)
            found |= set() if was == is_now else {name} if was and is_now else {"", name}
    return found if [type(rule) for rule in before] == [type(rule) for rule in now] else {""}


def _changed(before: Settings, now: Settings) -> str:
    """Names the first setting, or parameter with or without a gradient, in which two steps differ."""
    moved = sorted(before.trained ^ now.trained)
    having = "" if not moved else "no gradient" if moved[0] in before.trained else "a gradient"
    return changed_setting(before.rules, now.rules) or (f"{moved[0]} has {having}" if moved else "")
