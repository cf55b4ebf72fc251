"""Openings: the operators of one step or call under one root, and segments that are handed over."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring as _quoted
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from tallystick.core.canonical_json import encode
from tallystick.core.digests import (
    Digest,
    Hash,
    check_inclusion,
    digest,
    digest_bytes,
    hashes_from,
    leaf_hash,
    tree_root,
)
from tallystick.core.documents import Count, DigestText, Document, Label, Positive, Proof
from tallystick.core.errors import MalformedError
from tallystick.formats.claims import Log
from tallystick.formats.records import CallRecord, OperatorRecord, RefText, StepRecord, read_record
from tallystick.programs.graph import Node, Ref

# An opening: the operators of one step or call of a run, under one root.
#
#     opening.json       which record of which claim is opened, and the root over the operators
#     operators.jsonl    one operator record per node, in the order of the graph
#     graph.json         the graph that ran, and its constants beside it
#     values.safetensors the opened values, each named by its tensor digest
#
# One operator alone is opened by `operator.json` in place of `operators.jsonl`, with both inclusion proofs.

Named = dict[RefText, DigestText]
CALL_MARK = b'"kind":"call"'


class Opening(Document):
    """The prover's answer to a request: the opened record with its proof, and the root over the operator records.

    `sources` has the digests of the graph's inputs and constants by name, `results` those of its outputs.
    `rest_before` and `rest_after` have those of the tensors of the state that the graph neither reads nor writes.
    `engine` names the engine that computed the operators, if it was not PyTorch. Version 1 had a file for each value;
    only leaf bundles still hold it.
    """

    digest_noun: ClassVar[str] = "opening"

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
    check_inclusion(hashes_from(proof), leaf_hash(line), index, log.size, Hash(digest_bytes(log.root)))


def state_digest_of(entries: Mapping[str, Digest]) -> Digest:
    """The state digest of named tensors, from their digests alone."""
    leaves = [leaf_hash(encode([name, str(entries[name])])) for name in sorted(entries)]
    return digest("state", encode({"root": tree_root(leaves).hex(), "size": len(leaves)}))


# Writes and reads the line of an operator record without a JSON library, for speed.
#
# Besides digests, a record holds nothing that its node does not hold, and the digests of a node's operands are known
# from the nodes before. So a reader that follows the operators in order knows each line except the digests of the
# results. It compares bytes instead of parsing them.

_GIVEN: Final = re.compile(r'"([^"\\]+)":"(sha256:[0-9a-f]{64})"')
_OUTPUTS: Final = '"outputs":'


def operator_line(node: Node, read: Mapping[Ref, Digest], given: Mapping[Ref, Digest]) -> bytes:
    """The canonical bytes of the `OperatorRecord` of a node of a checked graph.

    `read` and `given` hold the digests of the values that it reads and gives, and may hold more.
    """
    inputs = _object(set(node.refs), read)
    outputs = _object((ref for ref in node.outputs if ref is not None), given)
    operator = _quoted(node.operator)
    return (
        f'{{"inputs":{inputs},"kind":"operator","node":{node.number},"operator":{operator},"outputs":{outputs}}}'
    ).encode()


def _object(refs: Iterable[Ref], digests: Mapping[Ref, Digest]) -> str:
    return "{" + ",".join([f'{_quoted(ref)}:"{digests[ref]}"' for ref in sorted(refs)]) + "}"


def given_in(line: bytes, node: Node, read: Mapping[Ref, Digest]) -> dict[Ref, Digest] | None:
    """The digests of the results of `node`, if `line` is its record over the digests in `read`; else `None`.

    For the reason, parse the line with `OperatorRecord.from_bytes` and compare the fields.
    """
    text = line.decode("ascii", "replace")
    results = {ref: Digest(name) for ref, name in _GIVEN.findall(text, max(text.rfind(_OUTPUTS), 0))}
    is_known = read.keys() >= set(node.refs) and results.keys() == {ref for ref in node.outputs if ref is not None}
    return results if is_known and operator_line(node, read, results) == line else None


# A segment of a run as it is handed over alone: which steps it holds, and its records with their proofs.

OPENED_BYTES_MAX = 4 << 20
"""A record of 1 MiB, its quotation marks escaped, and its proof."""


class SegmentStatement(Document):
    """Steps `start + 1` … `end`, from the anchor `start` to the anchor `end`."""

    segment: Literal["training"] = "training"
    version: Literal[1] = 1
    start: Count
    end: Positive

    @model_validator(mode="after")
    def _goes_forward(self) -> Self:
        if self.start >= self.end:
            raise ValueError("start lies before end")
        return self


class OpenedRecord(Document):
    """One record of a transcript, with the proof that it stands at `index`."""

    index: Count
    proof: Proof
    record: Annotated[str, Field(max_length=1 << 20)]

    def line(self, log: Log) -> bytes:
        """The record; raises `ProofError` unless it is record `index` of `log`."""
        line = self.record.encode()
        check_leaf(log, self.index, line, self.proof)
        return line
