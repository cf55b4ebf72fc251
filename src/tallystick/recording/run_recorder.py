"""Writes observed steps to a run directory: records, anchors, timeline and, at the end, the claim."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from tallystick.core.digests import Digest
from tallystick.core.errors import UnavailableError
from tallystick.core.files import write_atomically
from tallystick.core.tensor_digests import StateDigests, digest_state
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.training.trainer import Summariser
from tallystick.formats.claims import Claim, Log, Withdrawn
from tallystick.formats.records import (
    AnchorRecord,
    Batch,
    FailedRecord,
    HeaderRecord,
    Knobs,
    Record,
    StateSummary,
    StepRecord,
    TraceEntry,
    anchor_file,
    read_record,
)
from tallystick.formats.spec import Environment, Spec
from tallystick.formats.store.keeping import (
    ALL_HERE,
    ANCHOR_MARK,
    AnchorCopies,
    AnchorKeeping,
    AnchorWriter,
    recorded_anchors,
    thin_anchors,
)
from tallystick.formats.store.log import LogWriter, cut_log
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.step_names import weights_of
from tallystick.verdicts.exact import not_finite, quantise

# Appends records, or checks that a resumed run reproduces the records that are already there.
#
# A transcript is append-only. A resumed run repeats the steps since its last anchor, and each record must equal, byte
# for byte, the one that was written before the interruption.


class RunJournal:
    """The end of a transcript: first the records still to be reproduced, then new ones."""

    def __init__(self, log: LogWriter, to_reproduce: Iterable[bytes] = ()) -> None:
        self._log = log
        self._pending = deque(to_reproduce)

    def add(self, record: Record) -> None:
        """Append `record`; while reproducing, raise `UnavailableError` if it differs from the record already there."""
        self._skip_failures()
        line = record.to_bytes()
        if not self._pending:
            self._log.append(line)
            return
        if self._pending.popleft() != line:
            raise UnavailableError(
                f"this machine does not reproduce the {record.kind} record {getattr(record, 'index', 0)} of the "
                "interrupted run; resume it on the stack named in environment.json"
            )

    def fail(self, index: int, error: str) -> None:
        """Append that step `index` crashed."""
        self._skip_failures()
        if not self._pending:
            self._log.append(FailedRecord(index=index, error=error[:1024]).to_bytes())

    def sync(self) -> None:
        """Make everything appended so far survive a loss of power."""
        self._log.sync()

    def _skip_failures(self) -> None:
        while self._pending and isinstance(read_record(self._pending[0], "transcript.jsonl"), FailedRecord):
            self._pending.popleft()


State = Callable[[], Mapping[str, Tensor]]


@dataclass(frozen=True)
class _Anchored:
    """The last complete anchor: its step, the digests of its state and weights, and the number of records up to it."""

    index: int
    digest: Digest
    weights: Digest
    records: int


class RunRecorder:
    """Records one run; `state()` returns the full state of the live model.

    `keeping` says which anchors stay on the disk, by default all, and where copies of them go. Two stay until the end:
    a run resumes from the last one.
    """

    def __init__(
        self,
        run: RunDirectory,
        spec: Spec,
        environment: Environment,
        summariser: Summariser,
        state: State,
        keeping: AnchorKeeping = ALL_HERE,
    ) -> None:
        self.run, self.spec, self.environment = run, spec, environment
        self.seconds_recording = 0.0
        self._data_root, self._recorded = spec.data_root, spec.recorded  # both properties compute anew on each access
        self._summariser, self._state = summariser, state
        self._summary = StateSummary()
        self._noted: str | None = None
        self._logs: list[LogWriter] = []
        self._anchored: _Anchored | None = None
        self._anchors, self._marks, self._keep = AnchorWriter(run.path), list[int](), keeping.retention
        self._copies = None if keeping.url is None else AnchorCopies(keeping.url)

    def begin(self, state: Mapping[str, Tensor] | None = None, summary: StateSummary | None = None) -> Self:
        """Write spec, environment, header and the anchor of the initial state, which is that of the live model.

        A recorder that begins after the first step passes the `state` before it, and its `summary`.
        """
        write_atomically(self.run.spec_path, self.spec.to_bytes())
        write_atomically(self.run.environment_path, self.environment.to_bytes())
        self._open(reproduce=())
        self._journal.add(header_of(self.spec, self.environment))
        self._summary = summary or self._summariser.at_anchor()
        self._anchor(0, state)
        return self

    def resume(self, summary: StateSummary, to_reproduce: list[bytes]) -> Self:
        """Continue after an anchor whose state has the recorded `summary`."""
        ahead = sum(ANCHOR_MARK in line for line in to_reproduce)
        marks = recorded_anchors(self.run)
        self._marks = marks[: len(marks) - ahead]
        self._open(reproduce=to_reproduce)
        self._summary = summary
        return self

    def step(
        self,
        index: int,
        batch: Batch,
        loss: float,
        *,
        seconds: float = 0.0,
        is_last: bool = False,
        gradient_norm: float | None = None,
        activation: tuple[float, float] | None = None,
        **stated: Any,
    ) -> StepRecord:
        """Append the record of step `index`, and write its anchor if one is due; returns the record.

        `stated` are further fields of the record, as it has them: the learning rate, tags, and what differs in the
        graph of the step. The step took `seconds`.
        """
        started = time.perf_counter()
        post = self._summariser.after_step(index, self._noted)
        self._noted = None
        record = StepRecord(
            index=index,
            data=self._data_root,
            batch=batch,
            pre=self._summary,
            post=post,
            loss=quantise(loss, self._recorded.loss_decimals),
            gradient_norm=None if gradient_norm is None else quantise(gradient_norm, 12),
            activation=None if activation is None else (quantise(activation[0], 12), quantise(activation[1], 12)),
            **stated,
        )
        self._journal.add(record)
        self._summary = post
        if is_last or index % self._recorded.anchor_stride == 0:
            self._anchor(index)
        recording = time.perf_counter() - started
        self.seconds_recording += recording
        entry = TraceEntry(step=index, seconds=round(seconds, 6), recording_seconds=round(recording, 6))
        self._trace.append(entry.to_bytes())
        return record

    def anchor(self, index: int) -> None:
        """Write an anchor of the state after step `index` although none is due: at the end of a custom loop."""
        self._anchor(index)

    def holds_weights(self) -> bool:
        """Whether the weights have the projection in the last record; `False` if it has none."""
        recorded = self._summary.projection
        return recorded is not None and self._summariser.projection() == recorded

    @property
    def sketch(self) -> str | None:
        """The sketch of the weights in the last record; `None` if it has none."""
        return self._summary.projection

    def forget_noted(self) -> None:
        """Take the next sketch from the weights as they are at the record, as an anchor does."""
        self._noted = None

    @property
    def has_sketch(self) -> bool:
        """Whether a sketch of the weights is known."""
        return (self._noted or self._summary.projection) is not None

    def note_weights(self) -> None:
        """Take the sketch of the weights now, right after an optimizer's step, for the next record."""
        self._noted = self._summariser.projection()

    def has_other_weights(self) -> bool:
        """Whether the weights differ from the last sketch, noted or recorded; `False` if none is recorded."""
        known = self._noted or self._summary.projection
        return known is not None and self._summariser.projection() != known

    def fail(self, index: int, error: BaseException) -> None:
        """Append that step `index` crashed, and close the run without a claim."""
        try:
            if self._logs:
                self._journal.fail(index, f"{type(error).__name__}: {error}")
        finally:
            self.close()

    def finish(self, no_graph: str | None = None, withdrawn: Sequence[Withdrawn] = ()) -> Claim:
        """Close the transcript and write its claim.

        `no_graph` is the reason why the step graph was withdrawn, and `withdrawn` are steps that have none after all.
        """
        final = self._anchored or _Anchored(0, *_digests(digest_state(self._state())), records=0)
        if self._keep is not None:
            thin_anchors(self.run.path, self._marks, self._keep.kept(self._marks))
        return self._claim(self._transcript.close(), self._trace.close(), final, no_graph, withdrawn)

    def finish_at_anchor(self, no_graph: str | None = None, withdrawn: Sequence[Withdrawn] = ()) -> int:
        """Claim a run that cannot be recorded further, up to its last anchor; later records are cut off.

        Returns the step of that anchor. 0 means that there is no anchor after a step, and no claim.
        """
        self.close()
        last = self._anchored
        if last is None or last.index == 0:
            return 0
        for draft in self.run.path.rglob(".*.draft"):
            draft.unlink()  # an incomplete file, whose disk space may be needed
        transcript = cut_log(self.run.transcript_path, last.records)
        trace = cut_log(self.run.trace_path, last.index)
        self._claim(transcript, trace, last, no_graph, [each for each in withdrawn if each.first <= last.index])
        return last.index

    def close(self) -> None:
        """Close the logs and ignore disk errors: an unfinished run can be resumed, which writes the tiles anew."""
        for log in self._logs:
            with suppress(OSError):
                log.close()

    def _claim(
        self, transcript: Log, trace: Log, final: _Anchored, no_graph: str | None, withdrawn: Sequence[Withdrawn]
    ) -> Claim:
        claim = Claim(
            spec=self.spec.identity,
            environment=self.environment.digest_as("environment"),
            data=self.spec.data_root,
            transcript=transcript,
            trace=trace,
            final_state=final.digest,
            weights=final.weights,
            no_graph=no_graph,
            withdrawn=tuple(withdrawn) or None if no_graph is None else None,
        )
        write_atomically(self.run.claim_path, claim.to_bytes())
        return claim

    def _open(self, reproduce: tuple[bytes, ...] | list[bytes]) -> None:
        self._logs.append(LogWriter(self.run.transcript_path))
        self._logs.append(LogWriter(self.run.trace_path))
        self._transcript, self._trace = self._logs
        self._journal = RunJournal(self._transcript, reproduce)

    def _anchor(self, index: int, state: Mapping[str, Tensor] | None = None) -> None:
        state = self._state() if state is None else state
        if bad := not_finite(state):
            raise UnavailableError(f"step {index}: {bad[0]} is not finite: the training has diverged")
        found = digest_state(state)
        self._anchors.write(index, state, found)
        if self._copies is not None:
            self._copies.put(self.run.path, index)
        summary = self._summary if index == 0 else self._summariser.at_anchor()
        digest, weights = _digests(found)
        self._journal.add(AnchorRecord(index=index, file=anchor_file(index), digest=digest, summary=summary))
        self._journal.sync()
        self._anchored = _Anchored(index, digest, weights, self._transcript.frontier.size)
        self._marks.append(index)
        if self._keep is not None and index:
            thin_anchors(self.run.path, self._marks, self._keep.kept(self._marks) | {*self._marks[-2:]})


def _digests(found: StateDigests) -> tuple[Digest, Digest]:
    """The digest of a state, and that of the weights in it."""
    return found.digest, StateDigests(tuple(sorted(weights_of(dict(found.entries)).items()))).digest


def header_of(spec: Spec, environment: Environment) -> HeaderRecord:
    """The first record of a run."""
    recorded = spec.recorded
    return HeaderRecord(
        spec=spec.identity,
        environment=environment.digest_as("environment"),
        data=spec.data_root,
        knobs=Knobs(
            bucket_mode=recorded.bucket_mode,
            grid_eps=recorded.grid_eps,
            loss_decimals=recorded.loss_decimals,
            anchor_stride=recorded.anchor_stride,
        ),
    )
