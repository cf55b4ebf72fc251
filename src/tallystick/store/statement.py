"""What a claim is about, by the folder that holds it: a training run, recorded calls of a model, opened operators."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from tallystick.commitments.encoding import decode
from tallystick.documents.files import read_document
from tallystick.errors import MalformedError, UnavailableError
from tallystick.store.run import RunDirectory

if TYPE_CHECKING:
    from tallystick.store.inference import InferenceDirectory
    from tallystick.transcripts.opening import Opening


SEGMENT: Final = "segment.json"
"""What a segment directory is known by (`store.segment`)."""


@dataclass(frozen=True)
class OpeningDirectory:
    """The operators of one record with their values, as `tally open --operators` writes them."""

    path: Path

    @property
    def opening_path(self) -> Path:
        """Where the opening stands."""
        return self.path / "opening.json"

    def opening(self) -> Opening:
        """The opening; raises `UnavailableError` where there is none."""
        from tallystick.transcripts.opening import Opening

        return Opening.from_bytes(read_document(self.opening_path), "opening.json")


StatementFolder: TypeAlias = "RunDirectory | InferenceDirectory | OpeningDirectory"


def read_statement(path: Path, levels: int | None = None) -> StatementFolder:
    """The folder as what it holds; a run that is unfinished or damaged counts as a run.

    A posted claim says by its `levels` whether it is about operators (1) or records (2). Its files are the prover's,
    who may put both into one folder; without `levels` such a folder counts as opened operators.

    Raises `UnavailableError` where the folder holds nothing that a claim can be about.
    """
    if levels != 2 and OpeningDirectory(path).opening_path.is_file():
        return OpeningDirectory(path)
    if levels != 1 and claims_inference(path):
        from tallystick.store.inference import InferenceDirectory

        return InferenceDirectory(path)
    run = RunDirectory(path)
    if levels != 1 and any(part.is_file() for part in (run.claim_path, run.spec_path, run.transcript_path)):
        return run
    from tallystick.store.folders import RUN, looks_like, require_folder

    require_folder(path, RUN)
    raise UnavailableError(f"{path}: {looks_like(path)}, and the claim is about another kind of folder")


def claims_inference(path: Path) -> bool:
    """Whether the directory holds a claim about calls of a model, rather than about a training."""
    claim = path / "claim.json"
    if not claim.is_file():
        return False
    try:
        found = decode(read_document(claim), "claim.json")
    except (MalformedError, UnavailableError):
        return False  # whose it was cannot be known; whoever reads the claim says what is wrong with it
    return isinstance(found, dict) and found.get("claim") == "inference"
