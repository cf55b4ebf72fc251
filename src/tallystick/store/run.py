"""A run directory: the portable form in which a run is kept and handed over.

    claim.json spec.json environment.json      what is claimed
    transcript.jsonl tiles/ transcript.index   the records, their tree, where each line starts
    anchors/ blobs/                            full states, and bytes named by their digest
    graphs/ batches/                           the graphs of steps, and the tensors that steps consumed
    data/                                      the source, its tokenizer and its tokens
    trace.jsonl                                how long each step took: a statement, under a root of its own

Everything an auditor needs is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote

from tallystick.commitments.digests import Digest, digest
from tallystick.documents.files import read_document, write_atomically
from tallystick.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.store.anchors import Anchors
from tallystick.store.log import open_line
from tallystick.transcripts.claim import Claim
from tallystick.transcripts.environment import Environment
from tallystick.transcripts.record import HeaderRecord, Record, StepRecord, graph_file, read_record
from tallystick.transcripts.spec import Spec

BLOB_BYTES_MAX = 1 << 30


@dataclass(frozen=True)
class RunDirectory:
    """Names and reads the parts of a run directory; anchors that it lacks are read from `anchors_url`, if given."""

    path: Path
    anchors_url: str | None = None

    @cached_property
    def anchors(self) -> Anchors:
        """The states that were kept; raises `UnavailableError` where the store at `anchors_url` cannot be read."""
        if self.anchors_url is None:
            return Anchors(self.path)
        from tallystick.store.remote_anchors import RemoteAnchors

        return Anchors(self.path, RemoteAnchors(self.anchors_url))

    @property
    def claim_path(self) -> Path:
        """The claim, written when the run is finished."""
        return self.path / "claim.json"

    @property
    def spec_path(self) -> Path:
        """All that was fixed before the run."""
        return self.path / "spec.json"

    @property
    def environment_path(self) -> Path:
        """The stack that the prover states."""
        return self.path / "environment.json"

    @property
    def transcript_path(self) -> Path:
        """The records, one canonical JSON line each."""
        return self.path / "transcript.jsonl"

    @property
    def trace_path(self) -> Path:
        """The timeline, one canonical JSON line a step."""
        return self.path / "trace.jsonl"

    @property
    def data_path(self) -> Path:
        """The folder of source, tokenizer and tokens."""
        return self.path / "data"

    @property
    def graph_path(self) -> Path:
        """The step graph, if the spec names one; its constants are in the safetensors file beside it."""
        return self.path / "graphs" / "step.json"

    def graph_path_of(self, step: StepRecord) -> Path:
        """The graph of a step: the one that its record names, or that of the spec."""
        return self.graph_path if step.graph is None else self.path / graph_file(step.graph)

    @property
    def has_recipe(self) -> bool:
        """Whether the spec has a recipe: a command can resume only such a run."""
        try:
            return self.spec().recipe is not None
        except (MalformedError, UnavailableError):
            return False

    def claim(self) -> Claim:
        """The claim; raises `UnavailableError` while the run is unfinished."""
        return Claim.from_bytes(self.claim_bytes(), "claim.json")

    def claim_bytes(self) -> bytes:
        """The claim as it stands on disk; raises `UnavailableError` while the run is unfinished."""
        if self.transcript_path.is_file() and not self.claim_path.exists():
            mend = "record the loop anew into another directory"
            if self.has_recipe:
                mend = f"`tally train --resume {quote(str(self.path))}` goes on with it"
            raise UnavailableError(f"claim.json: not there; {self.path} is unfinished, {mend}")
        return read_document(self.claim_path)

    def spec(self) -> Spec:
        """The spec as the prover wrote it."""
        return Spec.from_bytes(read_document(self.spec_path), "spec.json")

    def environment(self) -> Environment:
        """The environment as the prover stated it."""
        return Environment.from_bytes(read_document(self.environment_path), "environment.json")

    def place_of_step(self, step: int, size: int) -> int:
        """The place of a step among the `size` records; raises `UsageError` where there is none.

        Binary search: the places of records grow with their steps.
        """
        low, high = 0, size
        while low < high:
            middle = (low + high) // 2
            record, reached = self._record(middle, size)
            is_before = reached < step or (reached == step and record.kind == "failed")
            low, high = (middle + 1, high) if is_before else (low, middle)
        if low < size:
            record, reached = self._record(low, size)
            if isinstance(record, StepRecord) and reached == step:
                return low
        raise UsageError(f"--step {step}: the transcript ends at step {max(self._record(size - 1, size)[1], 0)}")

    def _record(self, place: int, size: int) -> tuple[Record, int]:
        """The record at a place, and the step that the run has reached there; -1 in its header."""
        record = read_record(open_line(self.transcript_path, place, size).line, f"record {place}")
        return record, -1 if isinstance(record, HeaderRecord) else record.index

    def write_blob(self, data: bytes) -> Digest:
        """Keep `data` under its digest."""
        name = digest("blob", data)
        path = self._blob_path(name)
        if not path.exists():
            write_atomically(path, data)
        return name

    def read_blob(self, name: Digest) -> bytes:
        """The bytes named by `name`; raises `ProofError` when other bytes stand there."""
        data = read_document(self._blob_path(name), BLOB_BYTES_MAX)
        if digest("blob", data) != name:
            raise ProofError(f"blobs/{self._blob_path(name).name} does not hold the bytes it is named after")
        return data

    def _blob_path(self, name: Digest) -> Path:
        return self.path / "blobs" / name.removeprefix("sha256:")
