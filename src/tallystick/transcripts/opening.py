"""An opening: the operators of one step or call of a run, under one root.

    opening.json       which record of which claim is opened, and the root over the operators
    operators.jsonl    one operator record per node, in the order of the graph
    graph.json         the graph that ran, and its constants beside it
    values.safetensors the opened values, each named by its tensor digest

One operator alone is opened by `operator.json` in place of `operators.jsonl`, with both inclusion proofs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from tallystick.commitments.digests import Digest, digest, digest_bytes
from tallystick.commitments.encoding import encode
from tallystick.commitments.proofs import check_inclusion
from tallystick.commitments.tree import Hash, leaf_hash, tree_root
from tallystick.documents.document import Count, DigestText, Document
from tallystick.errors import MalformedError
from tallystick.transcripts.claim import Log
from tallystick.transcripts.model_card import Label
from tallystick.transcripts.record import CallRecord, OperatorRecord, RefText, StepRecord, read_record

HashText = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Proof = Annotated[tuple[HashText, ...], Field(max_length=64)]
Named = dict[RefText, DigestText]
CALL_MARK = b'"kind":"call"'


class Opening(Document):
    """The prover's answer to a request: the opened record with its proof, and the root over the operator records.

    `sources` has the digests of the graph's inputs and constants by name, `results` those of its outputs.
    `rest_before` and `rest_after` have those of the tensors of the state that the graph neither reads nor writes.
    `engine` names the engine that computed the operators, if it was not PyTorch. Version 1 had a file for each value;
    only leaf bundles still hold it.
    """

    opening: Literal["operators"] = "operators"
    version: Literal[1, 2] = 2
    claim: DigestText
    transcript: Log
    index: Count
    record: Annotated[str, Field(max_length=1 << 20)]
    proof: Proof
    graph: DigestText
    operators: Log
    sources: Named
    results: Named
    rest_before: Named = {}
    rest_after: Named = {}
    engine: Label | None = None

    @property
    def identity(self) -> Digest:
        """The digest that commits the prover to this answer."""
        return self.digest_as("opening")

    def opened_record(self) -> StepRecord | CallRecord:
        """The opened step or call; raises `ProofError` unless it is under the transcript's root."""
        line = self.record.encode()
        check_leaf(self.transcript, self.index, line, self.proof)
        if CALL_MARK in line:
            return CallRecord.from_bytes(line, "opening.json: record")
        record = read_record(line, "opening.json: record")
        if not isinstance(record, StepRecord):
            raise MalformedError(f"opening.json: record: a {record.kind} record has no operators")
        return record


class OpenedOperator(Document):
    """One operator of an opening: its node and its record, each with its inclusion proof (`NodeProof`, `Log`)."""

    opening: Literal["operator"] = "operator"
    version: Literal[1] = 1
    node: dict[str, Any]
    index: Count
    record: OperatorRecord
    proof: Proof

    def check_record(self, opening: Opening) -> None:
        """Raise `ProofError` unless the record is under the root of `opening`."""
        check_leaf(opening.operators, self.index, self.record.to_bytes(), self.proof)


def check_leaf(log: Log, index: int, line: bytes, proof: tuple[str, ...]) -> None:
    """Raise `ProofError` unless `line` is line `index` of `log`."""
    hashes = [Hash(bytes.fromhex(text)) for text in proof]
    check_inclusion(hashes, leaf_hash(line), index, log.size, Hash(digest_bytes(log.root)))


def state_digest_of(entries: Mapping[str, Digest]) -> Digest:
    """The state digest of named tensors, from their digests alone."""
    leaves = [leaf_hash(encode([name, str(entries[name])])) for name in sorted(entries)]
    return digest("state", encode({"root": tree_root(leaves).hex(), "size": len(leaves)}))
