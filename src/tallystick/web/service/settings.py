"""What the operator of a service decides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

PUBLIC: Final = ("nothing", "claims", "read", "open")
"""What anybody may see without a token; each includes those before it."""


@dataclass(frozen=True)
class ServiceOptions:
    """`public` is one of `PUBLIC`; `runs` is the folder for runs that are sent here, none are taken without it.

    `requests_per_minute` limits each address without a token; a body is of JSON, or a piece of a file.
    """

    public: str = "nothing"
    runs: Path | None = None
    requests_per_minute: int = 600
    json_bytes_max: int = 1 << 20
    piece_bytes_max: int = 64 << 20
    body_seconds_max: float = 30.0
    opened_segments_max: int = 8
