"""The location of a contract in one line of text: `ethereum:URL[,URL…]:0xADDRESS[@BLOCK][#BOARD]`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from tallystick.disputes.coordinators.ethereum.endpoints import URLS_MAX
from tallystick.errors import UsageError

SCHEME: Final = "ethereum:"
_FORM: Final = re.compile(
    r"(?P<urls>.+):(?P<contract>0x[0-9a-fA-F]{40})(@(?P<block>[0-9]{1,15}))?(#(?P<board>https?://.+))?"
)


@dataclass(frozen=True)
class ContractLocation:
    """The RPC servers of a chain, a contract's address on it, the block that made it, and the URL of its board."""

    urls: tuple[str, ...]
    contract: str
    block: int | None = None
    board: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a location, with or without `ethereum:` before it; raises `UsageError`."""
        found = _FORM.fullmatch(text.removeprefix(SCHEME))
        if found is None:
            raise UsageError("a contract is named by ethereum:URL:0xADDRESS, with 40 hexadecimal digits")
        urls = tuple(found["urls"].split(","))
        if len(urls) > URLS_MAX or not all(url.startswith(("http://", "https://")) for url in urls):
            raise UsageError(f"between one and {URLS_MAX} URLs of RPC servers, each http:// or https://")
        block = int(found["block"]) if found["block"] else None
        return cls(urls, found["contract"].lower(), block, found["board"])

    def __str__(self) -> str:
        block = "" if self.block is None else f"@{self.block}"
        board = "" if self.board is None else f"#{self.board}"
        return f"{SCHEME}{','.join(self.urls)}:{self.contract}{block}{board}"
