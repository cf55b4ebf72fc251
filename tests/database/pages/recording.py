"""A run that is still being recorded."""

from __future__ import annotations

from pathlib import Path


class Recording:
    """A finished run in which records are written again, as if it were not finished."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = (path / "transcript.jsonl").read_bytes().splitlines(keepends=True)
        (path / "claim.json").unlink()

    def write(self, records: int, more: bytes = b"") -> None:
        """Leave the first records, and `more` behind them."""
        (self.path / "transcript.jsonl").write_bytes(b"".join(self.lines[:records]) + more)
