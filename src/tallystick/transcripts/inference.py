"""The claim over calls of a model: a graph with these weights gave these outputs for these inputs."""

from __future__ import annotations

from typing import Literal

from tallystick.commitments.digests import Digest
from tallystick.documents.document import DigestText, Document
from tallystick.transcripts.claim import Log


class InferenceClaim(Document):
    """What a prover signs and publishes about the calls of one model; `weights` is a state digest."""

    claim: Literal["inference"] = "inference"
    version: Literal[1] = 1
    graph: DigestText
    weights: DigestText
    environment: DigestText
    transcript: Log

    @property
    def identity(self) -> Digest:
        """The digest that identifies this claim."""
        return self.digest_as("claim")


def call_file(index: int, part: Literal["inputs", "outputs"]) -> str:
    """The path of the inputs or outputs of call `index` inside an inference directory."""
    return f"calls/{index:08d}.{part}.safetensors"
