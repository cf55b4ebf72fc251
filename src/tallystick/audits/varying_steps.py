"""What varies between the steps of a loop: graphs, settings, learning rates, and the generator of dropout."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.audits.policy import Policy
from tallystick.core.digests import Digest
from tallystick.core.tensors import Tensor
from tallystick.formats.optimizers import GroupRule, changed_setting
from tallystick.formats.records import StepRecord
from tallystick.programs.random_words import GOES_ON
from tallystick.verdicts.verdict import require

if TYPE_CHECKING:
    from tallystick.audits.checked_run import CheckedRun


# Which schedule the learning rates of a loop follow, read off the rates themselves.
#
# A loop states no schedule, only the rate of each step. Rates that follow a usual one (a linear warm-up, then constant,
# linear, exponential or cosine decay, then constant) are described by it. A single step that was taken with another
# rate than its neighbours follows none.

RELATIVE_TOLERANCE: Final = 1e-7
"""Of the largest rate: schedules that are computed step by step add up more rounding than one formula."""
POINTS_LEAST: Final = {"linear": 3, "exponential": 3, "cosine": 6}
"""How many rates a curve has to pass through before it describes them: fewer fix its own parameters."""
LAGS: Final = 8
"""A cosine's frequency is read off points that lie this share of the curve apart; neighbours differ by rounding."""

Rates: TypeAlias = "npt.NDArray[np.float64]"


def describe_rates(rates: Sequence[float]) -> str:
    """The schedule of these rates in words, such as "cosine from 0.001 to 0.0001 after 10 warm-up steps"; or empty."""
    x = np.asarray(rates, np.float64)
    if not x.size or not np.all(np.isfinite(x)):
        return ""
    scale = float(np.max(np.abs(x)))
    if _is_near(x, np.full_like(x, x[0]), scale):
        return f"constant {x[0]:.6g}"
    peak = int(np.argmax(x))
    if not _is_near(x[: peak + 1], np.linspace(x[0], x[peak], peak + 1), scale):
        return ""
    if peak == x.size - 1:
        return f"linear from {x[0]:.6g} to {x[-1]:.6g}" if x.size >= POINTS_LEAST["linear"] else ""
    warm = f" after {peak} warm-up step{'s' * (peak != 1)}" if peak else ""
    decay = x[peak:]
    flat = int(np.argmax(np.abs(decay - decay[-1]) <= RELATIVE_TOLERANCE * scale))
    if flat == 0:
        return f"constant {x[peak]:.6g}{warm}"
    decay = decay[: flat + 1]
    for kind, curve in CURVES.items():
        if decay.size >= POINTS_LEAST[kind] and _is_near(decay, curve(decay), scale):
            return f"{kind} from {x[peak]:.6g} to {x[-1]:.6g}{warm}"
    return ""


def first_unexplained(rates: Sequence[float]) -> int:
    """The place of the first rate that ends the longest beginning which follows a schedule; `len(rates)` if all do."""
    known, beyond = 0, len(rates) + 1
    while beyond - known > 1:
        middle = (known + beyond) // 2
        known, beyond = (middle, beyond) if describe_rates(rates[:middle]) else (known, middle)
    return known


def _is_near(x: Rates, curve: Rates, scale: float) -> bool:
    return bool(np.max(np.abs(x - curve), initial=0.0) <= RELATIVE_TOLERANCE * scale)


def _linear(x: Rates) -> Rates:
    return np.linspace(x[0], x[-1], x.size)


def _exponential(x: Rates) -> Rates:
    if x[0] <= 0 or x[-1] <= 0:
        return np.full_like(x, np.nan)
    return np.geomspace(x[0], x[-1], x.size)


def _cosine(x: Rates) -> Rates:
    """A + b·cos(ct) + e·sin(ct): x(t − h) + x(t + h) = 2·cos(ch)·x(t) + d gives c, least squares the rest."""
    lag = max(1, x.size // LAGS)
    middle = x[lag:-lag]
    sides = np.stack([middle, np.ones_like(middle)], axis=1)
    (twice, _), *_ = np.linalg.lstsq(sides, x[2 * lag :] + x[: -2 * lag], rcond=None)
    angle = np.arccos(np.clip(twice / 2, -1.0, 1.0)) / lag * np.arange(x.size)
    basis = np.stack([np.ones_like(angle), np.cos(angle), np.sin(angle)], axis=1)
    weights, *_ = np.linalg.lstsq(basis, x, rcond=None)
    curve: Rates = basis @ weights
    return curve


CURVES: Final[dict[str, Callable[[Rates], Rates]]] = {"linear": _linear, "exponential": _exponential, "cosine": _cosine}


# What varies between the steps of a loop: step graphs, settings of the optimizer, learning rates.
#
# All of it is the prover's word. The pass over the records counts it, the report states it, and a policy can demand one
# graph, one rule, and learning rates that follow a schedule.

GROUPS_SHOWN: Final = 3


@dataclass
class StepUse:
    """The first step that uses something, and how many steps do."""

    first: int
    steps: int = 0


@dataclass
class VaryingSteps:
    """The step graphs, settings and learning rates that the records of a loop name.

    `graphs` holds the graphs other than that of the spec, and under `None` the steps without one. `rates` holds the
    learning rate of every step for each group of parameters, NaN where the group did not exist yet.
    """

    graphs: dict[Digest | None, StepUse] = field(default_factory=dict)
    settings: dict[tuple[GroupRule, ...], StepUse] = field(default_factory=dict)
    rates: dict[int, array[float]] = field(default_factory=dict)
    first_step: int = 0
    first_irregular_step: int | None = None
    """The first step without a graph, or with other settings than the spec: screens end in front of it."""
    impossible: str = ""
    """The first learning rate that no rule takes."""

    @property
    def further_graphs(self) -> int:
        """How many graphs there are besides that of the spec."""
        return len(self.graphs.keys() - {None})

    @property
    def steps_without_graph(self) -> int:
        """How many steps have no graph."""
        return self.graphs[None].steps if None in self.graphs else 0

    def note(self, evidence: CheckedRun, record: StepRecord) -> None:
        """Count one step; raises `ProofError` where the spec has no place for what its record names."""
        if (record.graph, record.no_graph, record.optimizer) != (None, None, None):
            self._note_irregular(evidence, record)
        self.first_step = self.first_step or record.index
        count = len(record.optimizer or evidence.optimizer) or 1
        for group, rate in enumerate(record.learning_rates or (record.learning_rate,) * count):
            before = record.index - self.first_step
            log = self.rates.setdefault(group, array("d"))
            log.extend([math.nan] * (before - len(log)))
            log.append(rate)
            if not self.impossible and not 0 <= rate < math.inf:
                self.impossible = f"step {record.index} states the learning rate {rate:g}, which no rule takes"

    def _note_irregular(self, evidence: CheckedRun, record: StepRecord) -> None:
        of_loop = evidence.spec.recipe is None and evidence.spec.graph is not None
        require(of_loop, f"step {record.index} names a step graph of its own, and the spec none of a loop")
        if record.graph is not None or record.no_graph is not None:
            self.graphs.setdefault(record.graph, StepUse(record.index)).steps += 1
        if record.optimizer is not None:
            require(
                record.optimizer != evidence.spec.optimizer, f"step {record.index} repeats the settings of the spec"
            )
            self.settings.setdefault(record.optimizer, StepUse(record.index)).steps += 1
        if self.first_irregular_step is None and (record.no_graph is not None or record.optimizer is not None):
            self.first_irregular_step = record.index

    def unmet(self, policy: Policy) -> Iterator[str]:
        """What leaves the audit open: a rate that no rule takes, and what the policy demands in vain."""
        if self.impossible:
            yield f"learning rates: {self.impossible}"
        if policy.one_graph and (more := self.further_graphs):
            yield f"the policy demands one step graph, and {_counted(more, 'more is', 'more are')} named"
        if policy.one_rule and (more := len(self.settings)):
            yield f"the policy demands one rule of the optimizer, and {_counted(more, 'more is', 'more are')} stated"
        if policy.scheduled_rates:
            yield from (f"the policy demands rates that follow a schedule: {line}" for line in self.unscheduled())

    def unscheduled(self) -> Iterator[str]:
        """The groups of parameters whose learning rates follow no schedule."""
        several = len(self.rates) > 1
        for group, rates in self.rates.items():
            log = [rate for rate in rates if not math.isnan(rate)]
            if not describe_rates(log):
                step = self.first_step + len(rates) - len(log) + first_unexplained(log)
                which = f"group {group}: " if several else ""
                yield f"{which}{min(log):.6g} to {max(log):.6g}, on no schedule from step {step} on"

    def stated_rates(self) -> str:
        """The learning rates in words: their schedules, or their range and the first step that leaves a schedule."""
        loose = list(self.unscheduled())
        known = dict.fromkeys(describe_rates([r for r in rates if not math.isnan(r)]) for rates in self.rates.values())
        lines = [*loose, *filter(None, known)]
        more = [f"{len(lines) - GROUPS_SHOWN} more"] if len(lines) > GROUPS_SHOWN else []
        return "; ".join([*lines[:GROUPS_SHOWN], *more])

    def changed_settings(self, evidence: CheckedRun) -> str:
        """Which settings of the optimizer a loop had changed: nothing says who may do that, and when."""
        rules, use = next(iter(self.settings.items()))
        steps = sum(other.steps for other in self.settings.values())
        what = changed_setting(evidence.spec.optimizer or (), rules)
        kinds = f"; there are {len(self.settings)} kinds of settings" if len(self.settings) > 1 else ""
        which = f"{steps} steps have other settings of the optimizer than the spec, from step {use.first} on"
        return f"why {which}: {what}{kinds}"

    def graph_counts(self, first: Digest | None, steps: int) -> tuple[tuple[Digest | None, int], ...]:
        """The step graphs of a run that has several, or steps without one: most used first, each with its steps."""
        if not self.graphs:
            return ()
        rest = steps - sum(use.steps for use in self.graphs.values())
        most_used = sorted(self.graphs.items(), key=lambda pair: -pair[1].steps)
        return ((first, rest), *((root, use.steps) for root, use in most_used))


def _counted(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"


# What a run states of the generator from which dropout draws.
#
# Words are drawn between steps too: by a loader that shuffles, by a validation. How many is the prover's word, and by
# it masks could be chosen. So the report says where the generator was moved, and where it was given another seed.


def described_moves(moves: Mapping[int, Tensor]) -> str:
    """The moves before steps, in words; each is I64 [2], a seed or -1 and how many words were skipped."""
    named = {index: tuple(move.array().ravel().tolist()) for index, move in sorted(moves.items())}
    skipped = [index for index, (seed, words) in named.items() if words and seed == GOES_ON]
    seeds = [f"{seed} before step {index}" for index, (seed, *_) in named.items() if seed != GOES_ON]
    begins = f"PyTorch's generator was moved on before {_steps(skipped)} of {len(named)} steps that were read"
    again = f", and given {len(seeds)} further seed{'s' if len(seeds) > 1 else ''} ({', '.join(seeds[:3])})"
    return begins + (again if seeds else "")


def _steps(indices: list[int]) -> str:
    return f"{len(indices)} (first step {indices[0]})" if indices else "none"
