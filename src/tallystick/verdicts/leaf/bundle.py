"""A leaf bundle: one file from which anybody can judge one contested operator offline.

    opening     which record is opened, and the root over its operators
    graph       the header of the graph with its proof: the inputs, and the digests of constants
    operator    the contested operator: its node and its record, each with an inclusion proof
    edges       the records of the operators that produced its operands, with inclusion proofs
    question    the challenge: a nonce, and the element that the challenger named
    values.<ref>      the operands and results of the operator
    claimed.<name>    small values of the opening by name, such as the loss and the values from the schedule

A canonical safetensors file; the first five are canonical JSON as U8. Format: spec/leaf-bundle.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field

from tallystick.core.canonical_json import encode
from tallystick.core.digests import HASH_BYTES, Digest, digest
from tallystick.core.documents import Count, Document, Proof
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.safetensors import StateFile, write_state
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import Tensor
from tallystick.formats.openings import OpenedOperator, Opening
from tallystick.formats.records import OperatorRecord, RefText
from tallystick.programs.graph import Ref

BUNDLE_BYTES_MAX: Final = 4 << 30
DOCUMENT_BYTES_MAX: Final = 16 << 20
HEADER_BYTES_MAX: Final = 4 << 20
EDGES_MAX: Final = 4096
VALUE, CLAIMED = "values.", "claimed."


class GraphHeader(Document):
    """Leaf 0 of a graph's tree: everything but its nodes, with its inclusion proof."""

    graph: Literal["header"] = "header"
    version: Literal[1] = 1
    record: dict[str, Any]
    proof: Proof


class Edge(Document):
    """The record of an operator that produced a value, and its inclusion proof."""

    index: Count
    record: OperatorRecord
    proof: Proof


class OperandEdges(Document):
    """The operators that produced the operands of the contested one; `producers` are in the order of the graph."""

    edges: Literal["producers"] = "producers"
    version: Literal[1] = 1
    producers: Annotated[tuple[Edge, ...], Field(max_length=EDGES_MAX)] = ()


class Element(Document):
    """One element of a value, by its flat place in row-major order."""

    ref: RefText
    index: Count


class LeafChallenge(Document):
    """The challenge to a leaf: the nonce that selects elements, and the element that the challenger named.

    The nonce is drawn after the prover committed to the leaf. A referee may use another challenge.
    """

    question: Literal["leaf"] = "leaf"
    version: Literal[1] = 1
    nonce: Annotated[str, Field(pattern=r"^([0-9a-f]{2}){0,64}$")] = ""
    element: Element | None = None


@dataclass(frozen=True)
class LeafBundle:
    """One contested operator with everything that a referee reads. Only its form is checked, not its contents."""

    opening: Opening
    header: GraphHeader
    operator: OpenedOperator
    edges: OperandEdges
    challenge: LeafChallenge = field(default_factory=LeafChallenge)
    values: Mapping[Ref, Tensor] = field(default_factory=dict)
    claimed: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def documents(self) -> dict[str, Document]:
        """The documents, which are everything but the values, by their names in the file."""
        named = (self.opening, self.header, self.operator, self.edges, self.challenge)
        return dict(zip(DOCUMENTS, named, strict=True))

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of each part of the bundle, by the names in reports.

        `statement_bytes` are what all leaves of an opening share: the opening, and the header of the graph.
        `proof_bytes` are the documents of this leaf: node, records, proofs. `proof_hash_bytes` are their hashes at 32
        bytes each, as in a compact encoding.
        """
        path = self.operator.node.get("proof")
        proofs = [self.operator.proof, path if isinstance(path, list) else (), *(e.proof for e in self.edges.producers)]
        return {
            "proof_bytes": len(self.operator.to_bytes()) + len(self.edges.to_bytes()),
            "proof_hash_bytes": HASH_BYTES * sum(map(len, proofs)),
            "statement_bytes": len(self.opening.to_bytes()) + len(self.header.to_bytes()),
            "value_bytes": sum(tensor.nbytes for tensor in (*self.values.values(), *self.claimed.values())),
        }

    @property
    def state(self) -> dict[str, Tensor]:
        """The tensors of the file by name: documents as U8, and values."""
        texts = {name: np.frombuffer(document.to_bytes(), np.uint8) for name, document in self.documents.items()}
        state = {name: Tensor.of(text) for name, text in texts.items()}
        state |= {f"{VALUE}{ref}": tensor for ref, tensor in self.values.items()}
        return state | {f"{CLAIMED}{name}": tensor for name, tensor in self.claimed.items()}

    @property
    def identity(self) -> Digest:
        """The digest that names the bundle: it covers every document and every value."""
        return digest("bundle", encode({"state": str(state_digest(self.state))}))


DOCUMENTS: Final[Mapping[str, type[Document]]] = {
    "opening": Opening,
    "graph": GraphHeader,
    "operator": OpenedOperator,
    "edges": OperandEdges,
    "question": LeafChallenge,
}


def write_bundle(path: Path, bundle: LeafBundle) -> None:
    """Write a bundle; the same leaf gives the same bytes.

    Raises `MalformedError` for a reference that cannot be a name, `UnavailableError` if the file cannot be written.
    """
    write_state(path, bundle.state)


def read_bundle(source: bytes | Path, bytes_max: int = BUNDLE_BYTES_MAX) -> LeafBundle:
    """A bundle from a file or from bytes; its values are views, not copies.

    Raises:
        MalformedError: these are not the bytes of a leaf bundle. The party that supplied them is at fault.
        UnavailableError: there is no such file, or it is larger than allowed.
    """
    if isinstance(source, Path):
        return _read_file(source, bytes_max)
    with tempfile.TemporaryDirectory(prefix="tally-leaf-") as folder:
        path = Path(folder) / "bundle"
        _check_size("bundle", len(source), bytes_max)
        path.write_bytes(source)
        return _read_file(path, bytes_max)


def _read_file(path: Path, bytes_max: int) -> LeafBundle:
    if path.is_file():
        _check_size(path.name, path.stat().st_size, bytes_max)
    with StateFile(path, header_bytes_max=HEADER_BYTES_MAX, canonical=True) as file:
        rest = [name for name in file.names if name not in DOCUMENTS]
        unknown = [name for name in rest if not name.startswith((VALUE, CLAIMED))]
        if unknown:
            raise MalformedError(f"{path.name}: {ascii(unknown[0])[:80]} has no place in a leaf bundle")
        documents: list[Any] = [_document(file, path.name, name, kind) for name, kind in DOCUMENTS.items()]
        values, claimed = (
            {name.removeprefix(prefix): file.tensor(name) for name in rest if name.startswith(prefix)}
            for prefix in (VALUE, CLAIMED)
        )
    opening, header, operator, edges, challenge = documents
    return LeafBundle(opening, header, operator, edges, challenge, values, claimed)


def _document(file: StateFile, what: str, name: str, kind: type[Document]) -> Document:
    placement = file.specs.get(name)
    if placement is None:
        raise MalformedError(f"{what}: lacks {name}")
    if placement.dtype != "U8" or len(placement.shape) != 1:
        raise MalformedError(f"{what}: {name} is no line of bytes")
    if placement.shape[0] > DOCUMENT_BYTES_MAX:
        raise MalformedError(f"{what}: {name}: {placement.shape[0]} bytes, more than the {DOCUMENT_BYTES_MAX} allowed")
    return kind.from_bytes(bytes(file.tensor(name).data), f"{what}: {name}")


def _check_size(what: str, size: int, allowed: int) -> None:
    if size > allowed:
        raise UnavailableError(f"{what}: {size} bytes, more than the {allowed} allowed")
