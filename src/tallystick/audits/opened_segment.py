"""One segment: chosen by somebody, or handed over alone and checked against the claim's root."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from tallystick.audits.checked_run import (
    CheckedRun,
    Stated,
    check_records,
    check_stated_data,
    note_record,
    open_graph,
    read_stated,
)
from tallystick.audits.policy import AuditPlan, Policy, Segment, Selection
from tallystick.audits.report import Report, report_unread
from tallystick.audits.segments import leave_end_out, leave_withdrawn_end_out
from tallystick.audits.training import Progress, audit_selected, note_origin_not_compared, segments_between
from tallystick.core.errors import UnavailableError, UsageError
from tallystick.formats.data.preparation import read_tokenizer
from tallystick.formats.data.samples import TokenDataset
from tallystick.formats.data.step_program import batch_plan, open_data
from tallystick.formats.data.tokens import open_chunks, open_corpus_tokens
from tallystick.formats.openings import SegmentStatement
from tallystick.formats.records import AnchorRecord, Record, StepRecord, read_record
from tallystick.formats.spec import Chain
from tallystick.formats.store.directories import SegmentDirectory
from tallystick.formats.store.run import RunDirectory
from tallystick.verdicts.replayer import VerifierStack
from tallystick.verdicts.verdict import Findings, bound_by_digest, require

# `tally verify-segment`: replay the segment that the caller names.


def verify_segment(
    run: RunDirectory,
    policy: Policy,
    start: int,
    end: int,
    stack: VerifierStack,
    progress: Progress = lambda *_: None,
) -> Report:
    """Replay the segment between two anchors and ask for equality of every bit of the state.

    Reports what `audit_training` does; raises `UsageError` where `start` or `end` is no anchor.
    """
    started = time.perf_counter()
    findings = Findings(keeps_going=True)
    stated = read_stated(run, policy, findings)
    if stated is None:
        return report_unread(run, policy, findings)
    evidence = check_records(run, stated, policy, findings)
    marks = sorted(evidence.anchors)
    if evidence.findings.rejected or not evidence.ends_as_claimed:
        return audit_selected(evidence, AuditPlan(policy), stack, progress, started)
    if start not in marks or end not in marks or start >= end:
        near = ", ".join(str(mark) for mark in marks[:12])
        raise UsageError(f"--from {start} --to {end}: two anchors in ascending order are needed ({near} …)")
    evidence.begins = start
    note_origin_not_compared(evidence, stack)
    if end < marks[-1]:
        leave_end_out(evidence, policy.model_copy(update={"full": True}))
    chosen = Selection(tuple(range(start + 1, end + 1)), tuple(segments_between(marks, start, end)), ())
    return audit_selected(evidence, AuditPlan(policy, chosen), stack, progress, started)


# The audit of a segment that was handed over alone: its records against the claim's root, its steps by replay.

STEPS_MAX = 1 << 20
"""The longest segment that is read: its records are held in memory."""


@dataclass
class CheckedSegment(CheckedRun):
    """A segment directory with what was found in it; it holds the records of its own steps alone."""

    records: dict[int, StepRecord] = field(default_factory=dict)
    final: AnchorRecord | None = None

    @property
    def steps(self) -> int:
        """The number of steps of the run, by the last record of its transcript."""
        return 0 if self.final is None else self.final.index

    @property
    def last_anchor(self) -> AnchorRecord | None:
        """The last record of the transcript."""
        return self.final

    def step(self, index: int) -> StepRecord:
        """The record of step `index`; raises `UnavailableError` for a step outside of the segment."""
        if index not in self.records:
            raise UnavailableError(f"step {index}: its record is not in the segment")
        return self.records[index]


def audit_opened_segment(
    segment: SegmentDirectory, policy: Policy, stack: VerifierStack, progress: Progress = lambda *_: None
) -> Report:
    """Check the records of a segment, replay it whole, and ask for the state at its end.

    Nothing else of the run is read. Whatever is wrong is in the report: bytes that are not under the claim reject it,
    what is missing leaves it inconclusive.
    """
    started, findings = time.perf_counter(), Findings(keeps_going=True)
    read = read_segment(segment, policy, findings)
    if read is None:
        return report_unread(segment.run, policy, findings)
    evidence, selection = read
    evidence.begins = selection.segments[0].start if selection.segments else 0
    note_origin_not_compared(evidence, stack)
    if selection.segments:
        leave_withdrawn_end_out(evidence, selection.segments[-1].end)
    asked = policy.model_copy(update={"full": False})
    return audit_selected(evidence, AuditPlan(asked, selection), stack, progress, started)


def read_segment(
    segment: SegmentDirectory, policy: Policy, findings: Findings
) -> tuple[CheckedSegment, Selection] | None:
    """Read a segment and check all of it but its anchors; `None` where it states nothing. What fails is in `findings`.

    Raises (with `findings.keeps_going`, leaves open instead):
        MalformedError: a file has no form that is known here.
        UnavailableError: a file is missing or larger than the policy allows.
    """
    stated = read_stated(segment.run, policy, findings)
    if stated is None:
        return None
    evidence = CheckedSegment(segment.run, stated.claim, stated.spec, stated.environment, findings)
    return evidence, _check(segment, evidence, stated, policy)


def _check(segment: SegmentDirectory, evidence: CheckedSegment, stated: Stated, policy: Policy) -> Selection:
    findings, statement = evidence.findings, None
    if stated.claim.no_graph is not None or stated.claim.withdrawn is not None:
        with findings.check("claim"):
            require(stated.spec.recipe is None, "the claim excuses a missing step graph, and a recipe needs none")
    with findings.check("segment"):
        statement = segment.statement()
    with findings.check("data"), bound_by_digest():
        _open_data(segment, evidence)
    if evidence.spec.graph is not None:
        with findings.check("step graph"):
            open_graph(evidence, policy)
    if statement is not None:
        with findings.check("records"), bound_by_digest():
            _read_records(segment, evidence, statement, policy)
            evidence.is_read = True
    if statement is None or not evidence.is_read:
        return Selection((), (), ())
    replayed = Segment(statement.start, statement.end, True)
    return Selection(tuple(range(statement.start + 1, statement.end + 1)), (replayed,), ())


def _open_data(segment: SegmentDirectory, evidence: CheckedSegment) -> None:
    spec = evidence.spec
    require(evidence.claim.data == spec.data_root, "the claim names another data root than the spec")
    if spec.data is None or spec.recipe is None:
        return
    check_stated_data(evidence)
    if spec.data.tokens is None:
        evidence.dataset = open_data(spec, evidence.run.data_path)
    elif spec.data.kind == "corpus":
        tokens = open_corpus_tokens(evidence.run.data_path, spec.data, lazily=True)
        evidence.dataset = TokenDataset(tokens, spec.recipe.training.sequence)
    else:
        tokenizer = read_tokenizer(evidence.run.data_path, spec.data)
        require(tokenizer.vocabulary == spec.data.tokens.vocabulary, "the tokenizer has another vocabulary")
        tokens = open_chunks(segment.chunks_path, spec.data.tokens)
        evidence.dataset = TokenDataset(tokens, spec.recipe.training.sequence)
    evidence.plan = batch_plan(spec, evidence.dataset)


def _read_records(
    segment: SegmentDirectory, evidence: CheckedSegment, statement: SegmentStatement, policy: Policy
) -> None:
    """Check that the records are the header, the step before the segment, the segment, and the last record."""
    if statement.end - statement.start > STEPS_MAX:
        raise UnavailableError(f"segment.json: more than the {STEPS_MAX} steps that are read")
    log, found = evidence.claim.transcript, {}
    for number, opened in enumerate(segment.records(), 1):
        if number > policy.records_max:
            raise UnavailableError(f"records.jsonl: more than the {policy.records_max} records allowed")
        found[opened.index] = read_record(opened.line(log), f"record {opened.index}")
    header, last = found.get(0), found.get(log.size - 1)
    if header is None or last is None:
        raise UnavailableError("records.jsonl: the header or the last record is not there")
    require(isinstance(last, AnchorRecord), "the transcript ends without the anchor of its last state")
    evidence.final = last if isinstance(last, AnchorRecord) else None
    note_record(evidence, header, 0)
    _follow(evidence, Chain(evidence.spec).follow(header), _inside(found, statement))


def _inside(found: Mapping[int, Record], statement: SegmentStatement) -> list[Record]:
    """The records from the step before the segment, or from behind the header, to the anchor at the end.

    Raises `UnavailableError` where one of them is not there.
    """
    places = {(record.kind, record.index): place for place, record in found.items() if record.kind != "header"}
    first = places.get(("step", statement.start)) if statement.start else 1
    last = places.get(("anchor", statement.end))
    start = places.get(("anchor", statement.start))
    wanted = range(first, last + 1) if first is not None and last is not None else range(0)
    if start not in wanted or not all(place in found for place in wanted):
        raise UnavailableError(f"records.jsonl: not all records from step {statement.start} to anchor {statement.end}")
    return [found[place] for place in wanted]


def _follow(evidence: CheckedSegment, opened: Chain, inside: list[Record]) -> None:
    """Check the order of the records, and each of them."""
    chain, first = opened, inside[0]
    if isinstance(first, StepRecord):
        chain = Chain(evidence.spec, opened=True, state=first.index - 1, summary=first.pre)
    for record in inside:
        chain = chain.follow(record)
        if isinstance(record, StepRecord):
            evidence.records[record.index] = record
        note_record(evidence, record, 0)
