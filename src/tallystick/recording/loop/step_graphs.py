"""The step graphs of a loop: where they come from, and those of batches of a new kind, noticed before they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from tallystick.audits.same_training import SettingChanges, departure, difference
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import State, Tensor, TensorSpec
from tallystick.engines.torch.randomness import DROPS
from tallystick.engines.torch.tensors import to_tensor
from tallystick.formats.optimizers import GroupRule, changed_setting
from tallystick.formats.records import graph_file
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.step_names import full_masks
from tallystick.programs.templates import Sizes, graph_at
from tallystick.recording.boundary import printed, say, sheltered, unsaid
from tallystick.recording.loop.first_step import FirstStep, GivenLoss
from tallystick.recording.loop.preflight import Blocker, preflight, reason_from
from tallystick.recording.loop.replaced import EagerHook
from tallystick.recording.loop.step_graph import Batches, Recapture, StepGraph
from tallystick.recording.loop.step_watch import KEEP_SETTINGS

# Where the step graph of a loop comes from, and what is said where there is none.


@dataclass(frozen=True)
class GraphSource:
    """A `graph`, or the first step, which `watches` finds it in, or nothing and the reason (`no_graph`).

    `blockers` are what was found before the first step, `seed` is that of the random numbers of a watched one, and
    `given` its loss where that is stated.
    """

    graph: StepGraph | None = None
    no_graph: str | None = None
    watches: bool = False
    blockers: Sequence[Blocker] = ()
    seed: int | None = None
    given: GivenLoss | None = None


def known_blockers(model: torch.nn.Module, optimizer: Any, seed: int | None = None) -> list[Blocker]:
    """The findings of `preflight`; none where it cannot read a model or optimizer that other code has made.

    With a `seed`, dropout is no such finding.
    """
    found: list[Blocker] = []
    with sheltered(unsaid):
        found.extend(preflight(model, optimizer))
    return [each for each in found if seed is None or not each.what.startswith(DROPS)]


def captured(capture: Callable[[], StepGraph], blockers: Sequence[Blocker]) -> GraphSource:
    """The graph that `capture` gives; where it gives none, or `blockers` leave no hope, a warning and the reason.

    A capture runs code of the loop and of other libraries, so any of its errors is a reason, and steps are recorded.
    """
    reasons = list[str]()
    if not any(blocker.is_certain for blocker in blockers):
        with sheltered(reasons.append):
            return GraphSource(capture())
    return without_graph(blockers, "".join(reasons))


def watched(blockers: Sequence[Blocker], seed: int | None = None, given: GivenLoss | None = None) -> GraphSource:
    """The graph that the first step will give; where `blockers` leave no hope, a warning and the reason."""
    if any(blocker.is_certain for blocker in blockers):
        return without_graph(blockers)
    return GraphSource(watches=True, blockers=blockers, seed=seed, given=given)


def without_graph(blockers: Sequence[Blocker], reason: str = "") -> GraphSource:
    """No graph, after a warning that gives every reason at once."""
    no_graph = printed(reason_from(blockers, reason))
    say(f"the audit of this run will be inconclusive: {no_graph}")
    return GraphSource(no_graph=no_graph)


# Notices a batch of a new kind before the model reads it, so that its first step can be checked.
#
# A recorder is told of a batch when its step is over. The check of a step needs the state before it, and to keep that
# of every step costs too much. So the shapes in the calls of the model are noted, and whether their masks are full.

KINDS_MAX: Final = 4096
"""How many kinds of calls are told apart; steps of later ones are checked as steps of old ones are."""


class NewBatches:
    """Calls `comes` before a call of `model` that trains and is the first of its kind, until it is closed.

    A step may call the model several times: the kind of a call is its own shapes after those of the calls before it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        comes: Callable[[], None],
        sheltered: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._comes, self._sheltered = comes, sheltered
        self._kinds, self._step = set[int](), list[object]()
        self._hook = model.register_forward_pre_hook(EagerHook(self._called), with_kwargs=True)

    def next_step(self) -> None:
        """Begin a step."""
        self._step = []

    def close(self) -> None:
        """Notice no more."""
        self._hook.remove()

    def enters(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note a call of the model; hooks that were added inside of a hook miss that."""
        self._step.append(kind_of_call(args, kwargs))
        kind = hash(tuple(self._step))
        if kind not in self._kinds and len(self._kinds) < KINDS_MAX:
            self._kinds.add(kind)
            self._comes()

    def _called(self, _model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if torch.is_grad_enabled():
            with self._sheltered():
                self.enters(args, kwargs)


def kind_of_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    """The shapes of the tensors in a call, and which of its masks are full."""
    given = dict(_tensors({**kwargs, **{f"x{number}": value for number, value in enumerate(args)}}))
    tables: dict[str, Tensor] = {name: to_tensor(value) for name, value in given.items() if _may_mask(value)}
    shapes = tuple((name, value.dtype, tuple(value.shape)) for name, value in sorted(given.items()))
    return shapes, full_masks(tables)


def _tensors(given: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name, value) for name, value in given.items() if isinstance(value, torch.Tensor))


def _may_mask(value: torch.Tensor) -> bool:
    return value.ndim == 2 and not value.is_floating_point()


# Watches later steps of a loop whose first was watched: those whose batches are the first of their kind.


class WatchedAgain:
    """Watches from `start` to `stop`; called then, it captures the step that was watched.

    `watch` makes a watch for a step. `otherwise` captures a step that was not watched.
    """

    def __init__(self, watch: Callable[[], FirstStep], otherwise: Recapture) -> None:
        self._watch, self._otherwise = watch, otherwise
        self._step: FirstStep | None = None

    def start(self) -> None:
        """Watch the step that begins."""
        if self._step is None:
            self._step = self._watch()
            self._step.start()

    def stop(self) -> None:
        """Watch no longer."""
        if self._step is not None:
            self._step.stop()

    def forget(self) -> None:
        """Drop what was watched."""
        self._step = None

    def __call__(self, batch: Batches, count: int) -> StepGraph:
        """The step of a batch; raises `UnavailableError` with the reason why it cannot be captured."""
        if self._step is None:
            return self._otherwise(batch, count)
        return self._step.graph(batch, lambda _: True)


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
