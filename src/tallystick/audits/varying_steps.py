"""What varies between the steps of a loop: step graphs, settings of the optimizer, learning rates.

All of it is the prover's word. The pass over the records counts it, the report states it, and a policy can demand one
graph, one rule, and learning rates that follow a schedule.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tallystick.audits.policy import Policy
from tallystick.commitments.digests import Digest
from tallystick.judging.findings import require
from tallystick.transcripts.record import StepRecord
from tallystick.transcripts.rule import GroupRule, changed_setting
from tallystick.workloads.rate_curves import describe_rates, first_unexplained

if TYPE_CHECKING:
    from tallystick.audits.checked_run import CheckedRun

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
