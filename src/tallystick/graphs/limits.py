"""What a verifier is willing to look at, and to run.

Each limit is checked as early as it can be: the size of a document before it is parsed, its nodes before they are
read, and what an execution would take before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tallystick.commitments.nesting import DEPTH_MAX, nesting
from tallystick.errors import MalformedError

PARSED_BYTES: Final[Mapping[bytes, int]] = {b"{": 240, b"[": 72, b",": 48, b":": 96, b'"': 32}
"""At most so much memory is taken by a parsed document for each such byte of it (CPython 3.11 … 3.14)."""
NODE_MARK: Final = b'"operator":'


@dataclass(frozen=True)
class GraphLimits:
    """Upper limits; a graph beyond one of them is refused.

    `document_bytes` and `parsed_bytes` are about the text and the memory of its parsed form. `depth` is the longest
    chain of nodes that read each other. `memory_bytes` is the largest sum of values alive at one time and of the
    largest intermediate of the running operator, each in its own dtype. `flops` is what `Types` counts.
    """

    document_bytes: int = 16 << 20
    parsed_bytes: int = 112 << 20
    nodes: int = 20_000
    depth: int = 20_000
    memory_bytes: int = 64 << 30
    flops: int = 10**16

    def check_document(self, data: bytes) -> None:
        """Raise `MalformedError` for a text that is too long or would become too large; parses nothing."""
        if len(data) > self.document_bytes:
            raise MalformedError(f"graph: {len(data)} bytes, more than the {self.document_bytes} allowed")
        if data.count(NODE_MARK) > self.nodes:
            raise MalformedError(f"graph: {data.count(NODE_MARK)} nodes, more than the {self.nodes} allowed")
        parsed = sum(data.count(mark) * weight for mark, weight in PARSED_BYTES.items())
        if parsed > self.parsed_bytes:
            raise MalformedError(f"graph: takes up to {parsed} bytes once parsed, more than {self.parsed_bytes}")
        if nesting(data) > DEPTH_MAX:
            raise MalformedError(f"graph: nested deeper than {DEPTH_MAX}")
