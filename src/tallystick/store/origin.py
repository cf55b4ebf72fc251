"""Where the first weights of a training come from: a model directory, or the last state of an earlier run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tallystick.commitments.encoding import parse
from tallystick.documents.files import read_document
from tallystick.errors import MalformedError, ProofError, UnavailableError
from tallystick.store.folders import RUN, is_kind, looks_like
from tallystick.store.log import open_line
from tallystick.store.run import RunDirectory
from tallystick.tensors.digest import state_digest
from tallystick.tensors.safetensors import StateFile
from tallystick.tensors.tensor import State, Tensor
from tallystick.transcripts.record import AnchorRecord, anchor_file, read_record
from tallystick.workloads.names import WEIGHTS, weights_of
from tallystick.workloads.origin import Origin

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
    if not isinstance(names, dict) or any(str(each) != Path(str(each)).name for each in names.values()):
        raise MalformedError(f"{INDEX}: no files of this directory are listed")
    return [path / name for name in sorted({str(each) for each in names.values()})]


def _of_files(paths: list[Path]) -> State:
    weights: dict[str, Tensor] = {}
    for path in paths:
        with StateFile(path) as file:  # views keep the mapping alive
            held = {name: file.tensor(name) for name in file.names}
        if twice := sorted(weights.keys() & held.keys()):
            raise MalformedError(f"{path.name}: {twice[0][:80]!a} is in another file too")
        weights |= held
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
