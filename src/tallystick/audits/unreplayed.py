"""Says which of the selected steps were not replayed, and why."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.policy import Policy
from tallystick.audits.replay import Lost
from tallystick.audits.sampling import Selection

LINES_SHOWN: Final = 6


def unreplayed(
    selection: Selection, policy: Policy, evidence: CheckedRun, lost: Iterable[Lost]
) -> tuple[list[str], list[Lost]]:
    """Lines about sampled steps that were not replayed, and the lost steps among which no sampled one is."""
    drawn, others = list[Lost](), list[Lost]()
    for each in lost:
        is_drawn = any(each.start <= step <= each.end for step in selection.sampled)
        (drawn if is_drawn else others).append(each)
    more = len(drawn) - LINES_SHOWN
    shown = [*map(str, drawn[:LINES_SHOWN]), *([f"{more} more such segments"] if more > 0 else [])]
    return [*_out_of_reach(selection, policy, evidence), *shown], others


def _out_of_reach(selection: Selection, policy: Policy, evidence: CheckedRun) -> Iterable[str]:
    if not selection.sampled:
        yield "no step could be sampled"
    lost = selection.out_of_reach
    if not lost:
        return
    marks = evidence.run.anchors.present(evidence.anchors)
    steps, behind = ", ".join(str(step) for step in lost[:8]), [bisect_left(marks, step) for step in lost]
    which = f"{len(lost)} of {len(selection.sampled)} sampled steps"
    if not all(behind):
        yield f"{which} cannot be replayed (step {steps}): no anchor before them is there"
        return
    needed = max(step - marks[place - 1] for step, place in zip(lost, behind, strict=True))
    yield (
        f"{which} lie more than {policy.window} steps behind their anchor (step {steps}): "
        f"--window {needed} reaches them"
    )
