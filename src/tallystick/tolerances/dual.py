"""Arknet's dual bucket (§4.2): both bucket functions have to agree."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from tallystick.errors import MalformedError
from tallystick.tolerances.bucket import Bucket
from tallystick.tolerances.tolerance import Finding, Replayed, ReplayedState, States, Values

LENGTH: Final = struct.Struct("<Q")


@dataclass(frozen=True)
class DualBucket:
    """Agreement of two buckets at once.

    A forger must match both. An honest prover must too, and the two expected numbers of mismatches Λ add up.
    """

    first: Bucket = field(default_factory=lambda: Bucket("fp16_rne"))
    second: Bucket = field(default_factory=lambda: Bucket("grid"))

    def summarize(self, value: Values | States) -> bytes:
        """The length of the first claim (u64, little-endian), the first claim, the second claim."""
        first = self.first.summarize(value)
        return LENGTH.pack(len(first)) + first + self.second.summarize(value)

    def compare(self, claimed: bytes, replayed: Replayed | ReplayedState) -> Finding:
        """The number of buckets that differ; 0 is allowed. Raises `MalformedError` for a truncated claim."""
        if len(claimed) < LENGTH.size:
            raise MalformedError(f"dual bucket summary: {len(claimed)} bytes")
        (length,) = LENGTH.unpack_from(claimed)
        if length > len(claimed) - LENGTH.size:
            raise MalformedError("dual bucket summary: ends in the middle of the first claim")
        body = claimed[LENGTH.size :]
        findings = (
            self.first.compare(body[:length], replayed),
            self.second.compare(body[length:], replayed),
        )
        differing = [finding for finding in findings if not finding.agrees]
        return Finding(float(len(differing)), 0.0, "bucket-dual", differing[0].name if differing else "")
