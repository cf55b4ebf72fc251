"""Domain-separated digests: SHA-256 over `tallystick/<noun>/v1`, a line feed, and the bytes."""

from __future__ import annotations

import hashlib
import re
from typing import Final, NewType

from tallystick.errors import MalformedError

Digest = NewType("Digest", str)
"""`sha256:` and 64 lower-case hexadecimal digits."""

# fmt: off
NOUNS: Final = frozenset({
    "batch", "blob", "bucket", "bundle", "calibration", "challenge", "claim", "cluster", "coordinator", "dataset",
    "directions", "dispute", "draw", "entry", "environment", "evidence", "graph", "header", "hidden", "manifest",
    "model", "move", "nonce", "opening", "permutation", "policy", "projection", "receipt", "record", "report", "rules",
    "rows", "sample", "sampler", "seal", "seed", "spec", "state", "summary", "tensor", "tokenizer", "tokens", "trace",
    "vote",
})
# fmt: on
PREFIX: Final = "sha256:"
NO_DIGEST: Final = "not a digest: sha256: and 64 lower-case hexadecimal digits"
_FORM: Final = re.compile(r"sha256:[0-9a-f]{64}")


def digest(noun: str, data: bytes) -> Digest:
    """The digest of `data` in the domain `noun`; the same bytes in two domains have two digests."""
    assert noun in NOUNS, f"{noun} is not in the table of domains"
    return digest_from(hashlib.sha256(f"tallystick/{noun}/v1\n".encode() + data).digest())


def parse_digest(text: object, what: str) -> Digest:
    """`text` as a digest; raises `MalformedError` naming `what` unless it is `sha256:` and 64 lower-case digits."""
    if not isinstance(text, str) or not is_digest(text):
        raise MalformedError(f"{what}: {NO_DIGEST}")
    return Digest(text)


def is_digest(text: str) -> bool:
    """Whether `text` is `sha256:` and 64 lower-case hexadecimal digits."""
    return _FORM.fullmatch(text) is not None


def digest_bytes(name: Digest) -> bytes:
    """The digest as 32 raw bytes."""
    return bytes.fromhex(name.removeprefix(PREFIX))


def digest_from(raw: bytes) -> Digest:
    """The digest written from its 32 raw bytes."""
    assert len(raw) == 32
    return Digest(PREFIX + raw.hex())
