"""Directories of calls and of segments, what a claim is about by its folder, and where first weights come from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from tallystick.core.canonical_json import decode, parse
from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.core.files import read_document
from tallystick.core.safetensors import StateFile
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import State, Tensor
from tallystick.formats.claims import InferenceClaim
from tallystick.formats.openings import OPENED_BYTES_MAX, OpenedRecord, Opening, SegmentStatement
from tallystick.formats.records import AnchorRecord, anchor_file, read_record
from tallystick.formats.spec import Environment, Origin
from tallystick.formats.store.folders import RUN, Part, is_kind, looks_like, require_folder
from tallystick.formats.store.log import open_line, read_lines
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.step_names import WEIGHTS, weights_of

# An inference directory: the calls of one model, in the portable form in which they are handed over.
#
# claim.json environment.json          what is claimed
# graphs/model.json                    the model as a graph, its constants beside it
# weights.safetensors                  weights and buffers, by the names of the graph's inputs
# transcript.jsonl tiles/              one record per call, and their tree
# calls/                               what went into each call and what came out


@dataclass(frozen=True)
class InferenceDirectory:
    """Names and reads the parts of an inference directory."""

    path: Path

    claim_path = Part("claim.json")  # written when recording is over
    environment_path = Part("environment.json")
    graph_path = Part("graphs/model.json")
    weights_path = Part("weights.safetensors")  # only if they are handed over
    transcript_path = Part("transcript.jsonl")

    def claim(self) -> InferenceClaim:
        """The claim; raises `UnavailableError` while there is none."""
        return InferenceClaim.from_bytes(read_document(self.claim_path), "claim.json")

    def environment(self) -> Environment:
        """The environment as the prover stated it."""
        return Environment.from_bytes(read_document(self.environment_path), "environment.json")


# What a claim is about, by the folder that holds it: a training run, recorded calls of a model, opened operators.

SEGMENT: Final = "segment.json"
"""The file by which a segment directory is recognised."""


@dataclass(frozen=True)
class OpeningDirectory:
    """The operators of one record with their values, as `tally open --operators` writes them."""

    path: Path

    opening_path = Part("opening.json")

    def opening(self) -> Opening:
        """The opening; raises `UnavailableError` where there is none."""
        return Opening.from_bytes(read_document(self.opening_path), "opening.json")


StatementFolder: TypeAlias = RunDirectory | InferenceDirectory | OpeningDirectory


def read_statement(path: Path, levels: int | None = None) -> StatementFolder:
    """The folder as what it holds; a run that is unfinished or damaged counts as a run.

    A posted claim says by its `levels` whether it is about operators (1) or records (2). Its files are the prover's,
    who may put both into one folder; without `levels` such a folder counts as opened operators.

    Raises `UnavailableError` where the folder holds nothing that a claim can be about.
    """
    if levels != 2 and OpeningDirectory(path).opening_path.is_file():
        return OpeningDirectory(path)
    if levels != 1 and claims_inference(path):
        return InferenceDirectory(path)
    run = RunDirectory(path)
    if levels != 1 and any(part.is_file() for part in (run.claim_path, run.spec_path, run.transcript_path)):
        return run
    require_folder(path, RUN)
    raise UnavailableError(f"{path}: {looks_like(path)}, and the claim is about another kind of folder")


def claims_inference(path: Path) -> bool:
    """Whether the directory holds a claim about calls of a model, rather than about a training."""
    claim = path / "claim.json"
    if not claim.is_file():
        return False
    try:
        stated = decode(read_document(claim), "claim.json")
    except (MalformedError, UnavailableError):
        return False  # whoever reads the claim says what is wrong with it
    return isinstance(stated, dict) and stated.get("claim") == "inference"


# A segment directory: two anchors of a run, and everything that a replay from one to the other needs.
#
# segment.json                               from which step to which
# claim.json spec.json environment.json      what is claimed
# records.jsonl                              the records of the segment, each with its proof
# anchors/ graphs/ batches/ blobs/           as in a run directory
# data/                                      the tokenizer, and the chunks of tokens with their proofs


@dataclass(frozen=True)
class SegmentDirectory:
    """Names and reads the parts of a segment directory."""

    path: Path

    statement_path = Part(SEGMENT)  # written last
    records_path = Part("records.jsonl")
    chunks_path = Part("data/chunks")

    @property
    def run(self) -> RunDirectory:
        """The same folder as a run directory, of which it holds a part."""
        return RunDirectory(self.path)

    def statement(self) -> SegmentStatement:
        """From which step to which."""
        return SegmentStatement.from_bytes(read_document(self.statement_path), SEGMENT)

    def records(self) -> Iterator[OpenedRecord]:
        """The records in the order of the file; raises `MalformedError` at one that has no known form."""
        for number, line in enumerate(read_lines(self.records_path, OPENED_BYTES_MAX), 1):
            yield OpenedRecord.from_bytes(line, f"records.jsonl: line {number}")


# Where the first weights of a training come from: a model directory, or the last state of an earlier run.

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"


def open_origin(path: Path) -> Origin:
    """The weights in a model directory, whose files are mapped into memory, or those that a run arrived at.

    Raises:
        UnavailableError: nothing of the kind is there, or a file of it is missing.
        MalformedError: a file is damaged.
        ProofError: the last anchor of the run is not its claimed final state.
    """
    if is_kind(path, RUN):
        state = _final_state(RunDirectory(path))
        rest = {name: tensor for name, tensor in state.items() if not name.startswith(WEIGHTS)}
        return Origin(path, weights_of(state), rest)
    if not ((path / SINGLE).is_file() or (path / INDEX).is_file()):
        raise UnavailableError(
            f"{path}: {looks_like(path)}, and weights are taken from a directory with {SINGLE} or from a run: "
            "`tally import-model` makes the first of other files"
        )
    return Origin(path, _of_files(weight_files(path)))


def weight_files(path: Path) -> list[Path]:
    """The files from which transformers takes the weights: one, or those of the index.

    Raises `UnavailableError` where there is neither, `MalformedError` for an index of other files.
    """
    if (path / SINGLE).is_file():
        return [path / SINGLE]
    index = parse(read_document(path / INDEX), INDEX)
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or any(str(name) != Path(str(name)).name for name in names.values()):
        raise MalformedError(f"{INDEX}: no files of this directory are listed")
    return [path / name for name in sorted({str(name) for name in names.values()})]


def _of_files(paths: list[Path]) -> State:
    weights: dict[str, Tensor] = {}
    for path in paths:
        with StateFile(path) as file:  # views keep the mapping alive
            more = {name: file.tensor(name) for name in file.names}
        if twice := sorted(weights.keys() & more.keys()):
            raise MalformedError(f"{path.name}: {twice[0][:80]!a} is in another file too")
        weights |= more
    return weights


def _final_state(run: RunDirectory) -> State:
    claim = run.claim()
    last = read_record(open_line(run.transcript_path, claim.transcript.size - 1, claim.transcript.size).line, "record")
    if not isinstance(last, AnchorRecord):
        raise ProofError(f"{run.path}: the last record is no anchor")
    state = run.anchors.read(last.index)
    if state_digest(state) != claim.final_state:
        raise ProofError(f"{run.path}: {anchor_file(last.index)} does not hold the final state of the claim")
    return state
