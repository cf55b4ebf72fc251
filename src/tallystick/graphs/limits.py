"""Limits on the graphs that a verifier reads and runs.

Each limit is checked as early as possible: the size of a document before it is parsed, the number of its nodes before
they are read, and the costs of an execution before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tallystick.commitments.nesting import DEPTH_MAX, nesting
from tallystick.errors import MalformedError

PARSED_BYTES: Final[Mapping[bytes, int]] = {b"{": 240, b"[": 72, b",": 48, b":": 96, b'"': 32}
"""By kind of byte, the most memory that each such byte of a document takes once parsed (CPython 3.11 … 3.14)."""
NODE_MARK: Final = b'"operator":'


@dataclass(frozen=True)
class GraphLimits:
    """Upper limits; a graph beyond any of them is refused.

    `document_bytes` limits the text, `parsed_bytes` the memory of its parsed form, and `depth` the longest chain of
    nodes in which each reads the one before. `memory_bytes` limits the values in memory at one time plus the largest
    intermediate of the running operator, each in its own dtype. `flops` limits the operations that `Types` counts.
    """

    document_bytes: int = 16 << 20
    parsed_bytes: int = 112 << 20
    nodes: int = 20_000
    depth: int = 20_000
    memory_bytes: int = 64 << 30
    flops: int = 10**16

    def check_document(self, data: bytes) -> None:
        """Raise `MalformedError` for a text that is too long, or too large once parsed. Does not parse it."""
        if len(data) > self.document_bytes:
            raise MalformedError(f"graph: {len(data)} bytes, more than the {self.document_bytes} allowed")
        if data.count(NODE_MARK) > self.nodes:
            raise MalformedError(f"graph: {data.count(NODE_MARK)} nodes, more than the {self.nodes} allowed")
        parsed = sum(data.count(mark) * weight for mark, weight in PARSED_BYTES.items())
        if parsed > self.parsed_bytes:
            raise MalformedError(f"graph: takes up to {parsed} bytes once parsed, more than {self.parsed_bytes}")
        if nesting(data) > DEPTH_MAX:
            raise MalformedError(f"graph: nested deeper than {DEPTH_MAX}")
