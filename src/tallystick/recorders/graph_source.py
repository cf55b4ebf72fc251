"""Where the step graph of a loop comes from, and what is said where there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tallystick.frameworks.torch.dropout import DROPS
from tallystick.recorders.boundary import printed, say, sheltered, unsaid
from tallystick.recorders.first_step import GivenLoss
from tallystick.recorders.preflight import Blocker, preflight, reason_from
from tallystick.recorders.step_graph import StepGraph


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
