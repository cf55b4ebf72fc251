"""Where the step graph of a loop comes from, and what is said where there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tallystick.errors import UnavailableError
from tallystick.recorders.boundary import say, sheltered, unsaid
from tallystick.recorders.graph_guard import printed
from tallystick.recorders.preflight import Blocker, preflight, reason_from
from tallystick.recorders.step_graph import StepGraph


@dataclass(frozen=True)
class GraphSource:
    """A `graph`, or the first step, which `watches` finds it in, or nothing and the reason (`no_graph`).

    `blockers` are what was found before the first step.
    """

    graph: StepGraph | None = None
    no_graph: str | None = None
    watches: bool = False
    blockers: Sequence[Blocker] = ()


def known_blockers(model: torch.nn.Module, optimizer: Any) -> list[Blocker]:
    """The findings of `preflight`; none where it cannot read a model or optimizer that other code has made."""
    found: list[Blocker] = []
    with sheltered(unsaid):
        found.extend(preflight(model, optimizer))
    return found


def captured(capture: Callable[[], StepGraph], blockers: Sequence[Blocker]) -> GraphSource:
    """The graph that `capture` gives; where it gives none, or `blockers` leave no hope, a warning and the reason."""
    reason = ""
    if not any(blocker.is_certain for blocker in blockers):
        try:
            return GraphSource(capture())
        except UnavailableError as error:
            reason = str(error)
    return without_graph(blockers, reason)


def watched(blockers: Sequence[Blocker]) -> GraphSource:
    """The graph that the first step will give; where `blockers` leave no hope, a warning and the reason."""
    if any(blocker.is_certain for blocker in blockers):
        return without_graph(blockers)
    return GraphSource(watches=True, blockers=blockers)


def without_graph(blockers: Sequence[Blocker], reason: str = "") -> GraphSource:
    """No graph, after a warning that gives every reason at once."""
    no_graph = printed(reason_from(blockers, reason))
    say(f"the audit of this run will be inconclusive: {no_graph}")
    return GraphSource(no_graph=no_graph)
