"""The steps of a loop that have another graph than that of the spec, or none, or other settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tallystick.judging.findings import require
from tallystick.transcripts.record import StepRecord
from tallystick.transcripts.rule import changed_setting

if TYPE_CHECKING:
    from tallystick.audits.checked_run import CheckedRun


@dataclass
class OtherSettings:
    """The first step with settings that the spec does not state, and how many steps have them."""

    first: int
    steps: int = 0


def note_other_step(evidence: CheckedRun, record: StepRecord) -> None:
    """Count a step that has another graph than that of the spec, or none, or other settings."""
    of_loop = evidence.spec.recipe is None and evidence.spec.graph is not None
    require(of_loop, f"step {record.index} names a step graph of its own, and the spec none of a loop")
    if record.graph is not None or record.no_graph is not None:
        evidence.further[record.graph] = evidence.further.get(record.graph, 0) + 1
    if record.optimizer is not None:
        require(record.optimizer != evidence.spec.optimizer, f"step {record.index} repeats the settings of the spec")
        evidence.settings.setdefault(record.optimizer, OtherSettings(record.index)).steps += 1
    if evidence.odd is None and (record.no_graph is not None or record.optimizer is not None):
        evidence.odd = record.index


def other_settings(evidence: CheckedRun) -> str:
    """Which settings of the optimizer a loop had changed: nothing says who may do that, and when."""
    rules, found = next(iter(evidence.settings.items()))
    count = sum(each.steps for each in evidence.settings.values())
    what = changed_setting(evidence.spec.optimizer or (), rules)
    return f"why {count} steps have other settings of the optimizer than the spec, from step {found.first} on: {what}"
