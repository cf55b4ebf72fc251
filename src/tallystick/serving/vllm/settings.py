"""Settings of the receipts that `vllm serve` issues, as environment variables: all processes of vLLM inherit them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallystick.errors import UsageError
from tallystick.store.folders import RECEIPTS

KEY: Final = "TALLY_KEY"
JOURNAL: Final = "TALLY_JOURNAL"
AUDITOR_KEYS: Final = "TALLY_AUDITOR_KEYS"
PRIVATE: Final = "TALLY_PRIVATE"
LAYERS: Final = "TALLY_LAYERS"


@dataclass(frozen=True)
class ReceiptVariables:
    """What receipts contain and where they go.

    `TALLY_KEY` is the file of the signing key; without one, receipts are signed by a key that is forgotten at the end.
    `TALLY_JOURNAL` is a directory, `TALLY_AUDITOR_KEYS` a file with one key a line, `TALLY_PRIVATE` is 0 or 1.
    `TALLY_LAYERS` are numbers of layers such as `10,30,31`, or `none`; without them, the standard layers are recorded.
    """

    key: Path | None = None
    journal: Path | None = None
    auditors: Path | None = None
    private: bool = False
    layers: tuple[int, ...] | None = None

    @property
    def receipts(self) -> Path | None:
        """The file of receipts in the journal's directory."""
        return None if self.journal is None else self.journal / RECEIPTS.marks[0]

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> ReceiptVariables:
        """The settings in an environment; raises `UsageError` for a value that has no meaning."""
        key, journal, auditors = (_path(environment.get(name)) for name in (KEY, JOURNAL, AUDITOR_KEYS))
        private, layers = environment.get(PRIVATE) or "0", environment.get(LAYERS)
        if private not in ("0", "1"):
            raise UsageError(f"{PRIVATE}={private}: 0 or 1")
        if journal is not None and key is None:
            raise UsageError(f"{JOURNAL}: a journal goes on under one key; give it with {KEY}")
        return cls(key, journal, auditors, private == "1", read_layers(layers))

    def environment(self) -> dict[str, str]:
        """The variables that state these settings."""
        given = {KEY: self.key, JOURNAL: self.journal, AUDITOR_KEYS: self.auditors, PRIVATE: "1" * self.private or None}
        layers = None if self.layers is None else ",".join(map(str, self.layers)) or "none"
        return {name: str(value) for name, value in (given | {LAYERS: layers}).items() if value is not None}


def _path(value: str | None) -> Path | None:
    return Path(value) if value else None


def read_layers(value: str | None) -> tuple[int, ...] | None:
    """The numbers in a list of layers, none in `none`; None stands for the standard layers."""
    if not value:
        return None
    if value == "none":
        return ()
    numbers = value.split(",")
    if not all(each.isdecimal() and each.isascii() and len(each) < 5 for each in numbers):
        raise UsageError(f"{LAYERS}={value}: numbers such as 10,30,31, or none")
    return tuple(sorted({int(each) for each in numbers}))
