"""An inference directory: the calls of one model, in the portable form in which they are handed over.

claim.json environment.json          what is claimed
graphs/model.json                    the model as a graph, its constants beside it
weights.safetensors                  weights and buffers, by the names of the graph's inputs
transcript.jsonl tiles/              one record per call, and their tree
calls/                               what went into each call and what came out
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.documents.files import read_document
from tallystick.transcripts.environment import Environment

if TYPE_CHECKING:
    from tallystick.transcripts.inference import InferenceClaim


@dataclass(frozen=True)
class InferenceDirectory:
    """Names and reads the parts of an inference directory."""

    path: Path

    @property
    def claim_path(self) -> Path:
        """The claim, written when recording is over."""
        return self.path / "claim.json"

    @property
    def environment_path(self) -> Path:
        """The stack that the prover states."""
        return self.path / "environment.json"

    @property
    def graph_path(self) -> Path:
        """The model's graph; its constants are in the safetensors file beside it."""
        return self.path / "graphs" / "model.json"

    @property
    def weights_path(self) -> Path:
        """Weights and buffers, if they are handed over."""
        return self.path / "weights.safetensors"

    @property
    def transcript_path(self) -> Path:
        """The records of the calls, one canonical JSON line each."""
        return self.path / "transcript.jsonl"

    def claim(self) -> InferenceClaim:
        """The claim; raises `UnavailableError` while there is none."""
        from tallystick.transcripts.inference import InferenceClaim

        return InferenceClaim.from_bytes(read_document(self.claim_path), "claim.json")

    def environment(self) -> Environment:
        """The environment as the prover stated it."""
        return Environment.from_bytes(read_document(self.environment_path), "environment.json")
