"""One segment that was handed over alone: its records against the claim's root, its steps by replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tallystick.audits.checked_run import CheckedRun, Records, note_record, open_evidence, read_stated
from tallystick.audits.policy import AuditPlan, Policy, Segment, Selection
from tallystick.audits.report import TrainingReport
from tallystick.audits.training import Progress, audit_source, note_origin_not_compared, silent
from tallystick.core.errors import UnavailableError
from tallystick.formats.data.preparation import read_tokenizer
from tallystick.formats.data.samples import Dataset, TokenDataset
from tallystick.formats.data.step_program import open_data
from tallystick.formats.data.tokens import open_chunks, open_corpus_tokens
from tallystick.formats.openings import SegmentStatement
from tallystick.formats.records import AnchorRecord, Record, StepRecord, read_record
from tallystick.formats.spec import Chain, Spec
from tallystick.formats.store.directories import SegmentDirectory
from tallystick.verdicts.replayer import VerifierStack
from tallystick.verdicts.verdict import Findings, bound_by_digest, require

STEPS_MAX = 1 << 20
"""The longest segment that is read: its records are held in memory."""


@dataclass
class SegmentRecords(Records):
    """The records of a segment alone; `final` is the last one of the run, and `span` the segment once it was read."""

    inside: dict[int, StepRecord] = field(default_factory=dict)
    final: AnchorRecord | None = None
    span: Segment | None = None

    @property
    def steps(self) -> int:
        """The number of steps of the run, by the last record of its transcript."""
        return 0 if self.final is None else self.final.index

    @property
    def last_anchor(self) -> AnchorRecord | None:
        """The last record of the transcript."""
        return self.final

    def add(self, record: Record, place: int) -> None:
        """Keep a record that was checked."""
        if isinstance(record, StepRecord):
            self.inside[record.index] = record
        else:
            super().add(record, place)

    def step(self, index: int) -> StepRecord:
        """The record of step `index`; raises `UnavailableError` for a step outside of the segment."""
        if index not in self.inside:
            raise UnavailableError(f"step {index}: its record is not in the segment")
        return self.inside[index]


def audit_opened_segment(
    segment: SegmentDirectory, policy: Policy, stack: VerifierStack, progress: Progress = silent
) -> TrainingReport:
    """Check the records of a segment, replay it whole, and compare the state at its end.

    Nothing else of the run is read.
    """
    sampled = policy.model_copy(update={"full": False})

    def plan(evidence: CheckedRun) -> AuditPlan:
        assert isinstance(evidence.records, SegmentRecords)
        span = evidence.records.span
        note_origin_not_compared(evidence, stack, span.start if span else 0)
        if span is None:
            return AuditPlan(sampled)
        why, last = evidence.claim.why_withdrawn(evidence.steps), evidence.steps
        if why is not None and span.end < last:  # the records of the last steps are elsewhere
            withdrawn = f"the end of the run: the recorder withdrew step {last} ({why})"
            evidence.findings.not_checked.append(f"{withdrawn}, so nothing ties the final weights to the steps")
        chosen = Selection(tuple(range(span.start + 1, span.end + 1)), (span,), ())
        return AuditPlan(sampled, chosen, begins=span.start)

    return audit_source(
        segment.run, lambda findings: read_segment(segment, policy, findings), policy, plan, stack, progress
    )


def read_segment(segment: SegmentDirectory, policy: Policy, findings: Findings) -> CheckedRun | None:
    """Read a segment and check all of it but its anchors; `None` where it states nothing. What fails is in `findings`.

    Raises (with `findings.keeps_going`, leaves open instead):
        MalformedError: a file has no form that is known here.
        UnavailableError: a file is missing or larger than the policy allows.
    """
    stated = read_stated(segment.run, policy, findings)
    if stated is None:
        return None
    statement: SegmentStatement | None = None
    with findings.check("segment"):
        statement = segment.statement()
    records = SegmentRecords(segment.run.transcript_path)
    stated = replace(stated, records=records)
    evidence = open_evidence(stated, policy, lambda spec: _open_dataset(segment, spec))
    if statement is not None:
        with findings.check("records"), bound_by_digest():
            _read_records(segment, evidence, statement, policy)
            records.are_complete, records.span = True, Segment(statement.start, statement.end, True)
    return evidence


def _open_dataset(segment: SegmentDirectory, spec: Spec) -> Dataset:
    """The tokens that the segment shows under the roots of the spec."""
    data, recipe, path = spec.data, spec.recipe, segment.run.data_path
    if data is None or recipe is None or data.tokens is None:
        return open_data(spec, path)
    if data.kind == "corpus":
        return TokenDataset(open_corpus_tokens(path, data, lazily=True), recipe.training.sequence)
    tokenizer = read_tokenizer(path, data)
    require(tokenizer.vocabulary == data.tokens.vocabulary, "the tokenizer has another vocabulary")
    return TokenDataset(open_chunks(segment.chunks_path, data.tokens), recipe.training.sequence)


def _read_records(segment: SegmentDirectory, evidence: CheckedRun, statement: SegmentStatement, policy: Policy) -> None:
    """Check that the records are the header, the step before the segment, the segment, and the last record."""
    if statement.end - statement.start > STEPS_MAX:
        raise UnavailableError(f"segment.json: more than the {STEPS_MAX} steps that are read")
    log, opened = evidence.claim.transcript, dict[int, Record]()
    for number, line in enumerate(segment.records(), 1):
        if number > policy.records_max:
            raise UnavailableError(f"records.jsonl: more than the {policy.records_max} records allowed")
        opened[line.index] = read_record(line.line(log), f"record {line.index}")
    header, last = opened.get(0), opened.get(log.size - 1)
    if header is None or last is None:
        raise UnavailableError("records.jsonl: the header or the last record is not there")
    require(isinstance(last, AnchorRecord), "the transcript ends without the anchor of its last state")
    assert isinstance(last, AnchorRecord)  # required above
    assert isinstance(evidence.records, SegmentRecords)
    evidence.records.final = last
    note_record(evidence, header, 0)
    inside, chain = _inside(opened, statement), Chain(evidence.spec).follow(header)
    if isinstance(inside[0], StepRecord):
        chain = Chain(evidence.spec, opened=True, state=inside[0].index - 1, summary=inside[0].pre)
    for record in inside:
        chain = chain.follow(record)
        note_record(evidence, record, 0)


def _inside(opened: Mapping[int, Record], statement: SegmentStatement) -> list[Record]:
    """The records from the step before the segment, or from behind the header, to the anchor at the end.

    Raises `UnavailableError` where one of them is not there.
    """
    places = {(record.kind, record.index): place for place, record in opened.items() if record.kind != "header"}
    first = places.get(("step", statement.start)) if statement.start else 1
    last = places.get(("anchor", statement.end))
    start = places.get(("anchor", statement.start))
    wanted = range(first, last + 1) if first is not None and last is not None else range(0)
    if start not in wanted or not all(place in opened for place in wanted):
        raise UnavailableError(f"records.jsonl: not all records from step {statement.start} to anchor {statement.end}")
    return [opened[place] for place in wanted]
