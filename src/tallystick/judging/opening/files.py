"""Reads the files of an opening that `tally open --operators` wrote; the format is in `transcripts.opening`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tallystick.commitments.digests import Digest
from tallystick.documents.files import read_document
from tallystick.errors import MalformedError, ProofError, UnavailableError
from tallystick.graphs.graph import Ref
from tallystick.store.log import read_lines
from tallystick.tensors.digest import tensor_digest
from tallystick.tensors.safetensors import StateFile
from tallystick.tensors.single import VALUE, read_single
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.opening import Opening

OPENING: Final = "opening.json"
OPERATORS: Final = "operators.jsonl"
OPERATOR: Final = "operator.json"
GRAPH: Final = "graph.json"
VALUES: Final = "tensors"
OPERATORS_MAX: Final = 1 << 20


def read_opening(folder: Path) -> Opening:
    """The statement of an opening; raises `UnavailableError` if the file is missing, `MalformedError` if invalid."""
    return Opening.from_bytes(read_document(folder / OPENING), OPENING)


def read_operator_lines(folder: Path) -> list[bytes]:
    """The lines of the operator records; raises `UnavailableError` if there is no file, or if there are too many."""
    lines: list[bytes] = []
    for line in read_lines(folder / OPERATORS):
        if len(lines) >= OPERATORS_MAX:
            raise UnavailableError(f"{OPERATORS}: more than the {OPERATORS_MAX} records allowed")
        lines.append(line)
    return lines


def value_file(name: Digest) -> str:
    """The path inside an opening of the value with this tensor digest."""
    return f"{VALUES}/{name.removeprefix('sha256:')}.safetensors"


def read_values(folder: Path, wanted: Mapping[Ref, Digest]) -> dict[Ref, Tensor]:
    """Those of the wanted values that are opened; raises `ProofError` if one has another digest."""
    paths = {ref: folder / value_file(name) for ref, name in wanted.items()}
    return {ref: read_value(path, wanted[ref]) for ref, path in paths.items() if path.is_file()}


def read_value(path: Path, name: Digest, spec: TensorSpec | None = None) -> Tensor:
    """An opened value; raises `ProofError` unless it has the digest `name`.

    It may have any spec, and is read faster if it has the expected one.
    """
    tensor = None if spec is None else read_single(path, spec)
    if tensor is None:
        with StateFile(path, canonical=True) as file:
            if list(file.names) != [VALUE]:
                raise MalformedError(f"{path.name}: holds something else than one value")
            tensor = file.tensor(VALUE).copy()
    if tensor_digest(tensor) != name:
        raise ProofError(f"{path.name} does not hold the bytes it is named after")
    return tensor
