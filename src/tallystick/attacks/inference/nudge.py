"""A bound-aware adversary: every result is moved within what a judge allows, so that the final answer changes.

Projected steepest ascent (Madry et al. 2018, §2.1) on the margin of a chosen wrong answer. Within a region that allows
shares by rank the best step matches the largest gradients with the largest shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tallystick.attacks.inference.regions import Radii, Ranks
from tallystick.attacks.inference.workload import Values, Workload, answer, run_values
from tallystick.graphs import Ref
from tallystick.tensors import Tensor

INSIDE = 0.97
"""Radii are those of the honest values; the adversary's own differ a little, so it stays inside."""


@dataclass(frozen=True)
class Effort:
    """How hard the adversary tries."""

    steps: int = 100
    restarts: int = 3
    momentum: float = 0.9


@dataclass(frozen=True)
class Nudged:
    """What the adversary claims, and what it achieved.

    `gained` is the largest share of the honest margin that was overcome; above 1 the answer changed.
    """

    values: Values
    flipped: bool
    gained: float


def nudge(workload: Workload, radii: Radii, ranks: Callable[[Ref, int], Ranks], effort: Effort, seed: int) -> Nudged:
    """The best claim found; `ranks` says what the judge allows a result of so many elements."""
    honest = run_values(workload)
    search = _Search(workload, radii, {ref: ranks(ref, radius.size) for ref, radius in radii.items()}, honest)
    best = max((search.climb(effort, seed + i) for i in range(effort.restarts)), key=lambda found: found[0])
    values = {**honest, **search.claimed(best[1])}
    return Nudged(values, answer(workload, values) != answer(workload, honest), best[0])


class _Search:
    def __init__(self, workload: Workload, radii: Radii, ranks: Mapping[Ref, Ranks], honest: Values) -> None:
        import torch

        from tallystick.frameworks.torch.perturbation import PerturbedRun

        self.workload = workload
        self.run = PerturbedRun(workload.graph, workload.bindings, radii)
        self.ranks = {ref: (torch.from_numpy(rank.shares), rank.bias) for ref, rank in ranks.items()}
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
        for _ in range(effort.steps):
            shares = {ref: self._projected(ref, direction).requires_grad_() for ref, direction in momentum.items()}
            scores = self._scores(self.run.values(shares))
            gain = scores[self.second] - scores[self.first]
            gradients = torch.autograd.grad(gain, list(shares.values()), allow_unused=True)
            best = max(best, (self._gained(gain), shares), key=lambda found: found[0])
            for ref, gradient in zip(shares, gradients, strict=True):
                if gradient is not None:
                    unit = gradient / gradient.abs().max().clamp(min=1e-300)
                    momentum[ref] = effort.momentum * momentum[ref] + (1 - effort.momentum) * unit
        return best

    def claimed(self, shares: Mapping[Ref, Any]) -> dict[Ref, Tensor]:
        """All values of the run with these shares."""
        import torch

        specs = self.workload.graph.specs()
        with torch.no_grad():
            values = self.run.values(shares)
        return {ref: self.workload.engine.unload(value, specs[ref].dtype).copy() for ref, value in values.items()}

    def _projected(self, ref: Ref, direction: Any) -> Any:
        """The shares of this region that lie furthest along `direction`."""
        import torch

        allowed, bias = self.ranks[ref]
        shares = torch.empty_like(direction).flatten()
        order = direction.abs().flatten().argsort(descending=True)
        shares[order] = allowed * INSIDE
        shares = shares.reshape(direction.shape) * direction.sign()
        mean = float(shares.mean())
        return shares - (mean - max(-bias, min(bias, mean)))

    def _scores(self, values: Mapping[Ref, Any]) -> Any:
        scores = values[self.workload.decision_ref]
        return scores.reshape(-1, scores.shape[-1])[-1]

    def _gained(self, gain: Any) -> float:
        return 1.0 + float(gain) / self.margin if self.margin > 0 else 2.0
