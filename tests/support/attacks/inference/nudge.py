"""A bound-aware adversary: every result is moved within what a judge allows, so that the final answer changes.

Projected steepest ascent (Madry et al. 2018, §2.1) on the margin of the second-best answer. Within a region that allows
shares by rank the best step matches the largest gradients with the largest shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tallystick.programs.graph import Ref
from tallystick.programs.operators.rounding import Model
from tests.support.attacks.inference.regions import Radii, Ranks, place
from tests.support.attacks.inference.workload import StudyWorkload, ValuesByRef, answer, run_values

SCALES: Final = (0.98, 0.9, 0.8, 0.65, 0.5)
"""Rounding to the dtype of a result takes a part of small regions, so less than the whole is tried as well."""
WORTH: Final = 0.5
"""The share of a margin that has to be overcome in the search before a claim is made of it."""
BETTER: Final = 1e-3


@dataclass(frozen=True)
class Effort:
    """How hard the adversary tries: a climb ends early after `patience` steps without a gain."""

    steps: int = 200
    restarts: int = 10
    patience: int = 4
    momentum: float = 0.7


@dataclass(frozen=True)
class Nudged:
    """What the adversary claims, and what it achieved.

    `gained` is the largest share of the honest margin that the search overcame; the claim is the widest one whose
    answer changed and that the judge `accepted`, else the widest one of all.
    """

    values: ValuesByRef
    flipped: bool
    accepted: bool
    gained: float
    steps: int


@dataclass(frozen=True)
class Target:
    """The judge that the adversary knows: its model, the radii on honest values, the ranks, and what it says."""

    model: Model
    radii: Radii
    ranks: Callable[[Ref, int], Ranks]
    accepts: Callable[[ValuesByRef], bool]


def nudge(workload: StudyWorkload, target: Target, effort: Effort, seed: int) -> Nudged:
    """The best claim found."""
    honest = run_values(workload)
    search = _Search(workload, target)
    climbs = [search.climb(effort, seed + i) for i in range(effort.restarts)]
    gained, shares = max(climbs, key=lambda found: found[0])
    values, flipped, accepted = honest, False, True
    for scale in SCALES if gained > WORTH else ():
        tried = place(workload, {ref: scale * share.numpy() for ref, share in shares.items()}, target.model)
        changed, passes = answer(workload, tried) != answer(workload, honest), target.accepts(tried)
        if scale == SCALES[0] or (changed and passes):
            values, flipped, accepted = tried, changed, passes
        if not changed or passes:
            break
    return Nudged(values, flipped, accepted, gained, search.steps)


class _Search:
    def __init__(self, workload: StudyWorkload, target: Target) -> None:
        import torch

        from research.perturbation import PerturbedRun

        self.workload = workload
        self.run = PerturbedRun(workload.graph, workload.bindings, target.radii)
        ranks = {ref: target.ranks(ref, radius.size) for ref, radius in target.radii.items()}
        self.ranks = {ref: (torch.from_numpy(rank.shares), rank.bias) for ref, rank in ranks.items()}
        self.steps = 0
        scores = self._scores(self.run.values({}))
        self.first, self.second = (int(i) for i in scores.topk(2).indices)
        self.margin = float(scores[self.first] - scores[self.second])

    def climb(self, effort: Effort, seed: int) -> tuple[float, dict[Ref, Any]]:
        """The share of the margin overcome, and the shares that did it."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        momentum = {
            ref: torch.randn(self.run.radii[ref].shape, generator=generator, dtype=torch.float64) for ref in self.ranks
        }
        best: tuple[float, dict[Ref, Any]] = (-float("inf"), {})
        idle = 0
        for _ in range(effort.steps):
            shares = {ref: self._projected(ref, direction).requires_grad_() for ref, direction in momentum.items()}
            scores = self._scores(self.run.values(shares))
            gain = scores[self.second] - scores[self.first]
            gradients = torch.autograd.grad(gain, list(shares.values()), allow_unused=True)
            found = self._gained(gain.detach()), {ref: share.detach() for ref, share in shares.items()}
            idle = 0 if found[0] > best[0] + BETTER * abs(best[0]) else idle + 1
            best = max(best, found, key=lambda one: one[0])
            self.steps += 1
            if idle > effort.patience:
                break
            self._turn(momentum, shares, gradients, effort.momentum)
        return best

    def _turn(self, momentum: dict[Ref, Any], shares: Mapping[Ref, Any], gradients: Any, kept: float) -> None:
        for ref, gradient in zip(shares, gradients, strict=True):
            if gradient is not None:
                unit = gradient / gradient.abs().max().clamp(min=1e-300)
                momentum[ref] = kept * momentum[ref] + (1 - kept) * unit

    def _projected(self, ref: Ref, direction: Any) -> Any:
        """The shares of this region that lie furthest along `direction`."""
        import torch

        allowed, bias = self.ranks[ref]
        if allowed[0] == allowed[-1]:
            shares = allowed[0] * direction.sign()
        else:
            shares = torch.empty_like(direction).flatten()
            shares[direction.abs().flatten().argsort(descending=True)] = allowed
            shares = shares.reshape(direction.shape) * direction.sign()
        mean = float(shares.mean())
        return shares - (mean - max(-bias, min(bias, mean)))

    def _scores(self, values: Mapping[Ref, Any]) -> Any:
        scores = values[self.workload.decision_ref]
        return scores.reshape(-1, scores.shape[-1])[-1]

    def _gained(self, gain: Any) -> float:
        return 1.0 + float(gain) / self.margin if self.margin > 0 else 2.0
