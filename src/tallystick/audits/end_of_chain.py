"""Whether the last segment of a run can be replayed: it alone ties the final weights to the steps before them."""

from __future__ import annotations

from collections.abc import Iterator

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.policy import Policy
from tallystick.transcripts.record import StepRecord, batch_file

MEND = "tell the recorder what the loop does there and record it again, or end the run before these steps"


def check_end(evidence: CheckedRun, policy: Policy) -> None:
    """Leave an audit undecided if nobody can replay the last segment: what was drawn says nothing of the final weights.

    A last segment that the nonce did not draw is none of this: it could have been drawn.
    """
    if (why := _loose_end(evidence, policy)) is not None:
        evidence.findings.undecided.append(f"end of the run: {why}")


def leave_end_out(evidence: CheckedRun, policy: Policy) -> None:
    """Say the same of an audit of a segment that does not reach the end."""
    if (why := _loose_end(evidence, policy)) is not None:
        evidence.left_out.append(f"the end of the run: {why}")


def leave_withdrawn_end_out(evidence: CheckedRun, end: int) -> None:
    """Say of a segment that was handed over alone that the claim withdraws the last step; its records are elsewhere."""
    why = evidence.claim.why_withdrawn(evidence.steps)
    if why is not None and end < evidence.steps:
        evidence.left_out.append(
            f"the end of the run: the recorder withdrew step {evidence.steps} ({why}), so nothing ties the final "
            "weights to the steps"
        )


def _loose_end(evidence: CheckedRun, policy: Policy) -> str | None:
    """Why nobody can replay the last segment, and what mends that; `None` where it can be replayed."""
    marks = evidence.run.anchors.present(evidence.anchors)
    if evidence.findings.rejected or not evidence.ends_as_claimed or evidence.claim.no_graph is not None:
        return None  # said elsewhere
    last = max(evidence.anchors)
    start = max((mark for mark in marks if mark < last), default=None)
    if start is None:
        return None  # there is no segment at all, and the audit says so
    says = f"steps {start + 1}–{last} cannot be replayed up to the last anchor"
    loose = "so nothing ties the final weights to the steps before them"
    if last not in marks:
        return f"{says}, which is not there, {loose}"
    if not policy.full and last - start > policy.window:
        longer = f"they are more than the window of {policy.window}"
        return f"{says}: {longer}, {loose}. --window {last - start} reaches them"
    if evidence.spec.recipe is not None:
        return None
    for step in range(start + 1, last + 1):
        why = next(_reasons(evidence, evidence.step(step)), None)
        if why is not None:
            return f"{says}: {why}, {loose}. The prover can {MEND}"
    return None


def _reasons(evidence: CheckedRun, record: StepRecord) -> Iterator[str]:
    """Why a step of a loop cannot be replayed by anybody."""
    step = f"step {record.index}"
    if record.no_graph is not None:
        yield f"{step} has no step graph ({record.no_graph})"
    if (why := evidence.claim.why_withdrawn(record.index)) is not None:
        yield f"the recorder withdrew the graph of {step} ({why})"
    if record.graph is not None and not evidence.run.graph_path_of(record).is_file():
        yield f"the graph of {step} is not there"
    if record.batch.digest is not None and not (evidence.run.path / batch_file(record.batch.digest)).is_file():
        yield f"the batch of {step} is not there"
