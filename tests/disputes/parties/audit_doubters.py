"""Doubters for a process of their own, and a program that has one: python audit_doubters.py FOLDER"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.disputes.game.protocols import DisputeView, Doubt, Ground
from tallystick.disputes.game.state import PostedClaim
from tallystick.disputes.parties.auditing import AuditProcess
from tallystick.disputes.parties.game_view import claim_name
from tallystick.disputes.parties.player import Workspace
from tests.support.toy_game import CountingDoubter

ENDLESS = 5
"""The size of a claim whose audit never ends."""


def claim_of(size: int) -> PostedClaim:
    """A claim of `size` leaves, of which nothing lies anywhere."""
    return PostedClaim("1" * 64, "2" * 64, size, 2, "sha256:" + "3" * 64, "4" * 64, 1000, 1)


class Slow(CountingDoubter):
    """Comes to no end over some claims."""

    def doubt(self, claim: PostedClaim, statement: Path) -> Doubt | None:
        if claim.size == ENDLESS:
            assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())  # Ctrl-C is not for this process
            print("auditing", flush=True)
            time.sleep(3600)
        return super().doubt(claim, statement)


class Killed(CountingDoubter):
    """Is killed from outside."""

    def doubt(self, claim: PostedClaim, statement: Path) -> Doubt | None:
        os.kill(os.getpid(), signal.SIGKILL)
        return None


class Mistaken(CountingDoubter):
    """Has a mistake of its own."""

    def doubt(self, claim: PostedClaim, statement: Path) -> Doubt | None:
        raise IndexError("list index out of range")


@dataclass
class Recaller:
    """A doubter that never audits; keeps what it is told."""

    found: dict[str, Doubt | None] = field(default_factory=dict)

    def recall(self, claim: PostedClaim, statement: Path, found: Doubt | None) -> None:
        self.found[claim_name(claim)] = found

    def unseen(self, claim: PostedClaim, statement: Path) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def doubt(self, claim: PostedClaim, statement: Path) -> Doubt | None:
        return self.found[claim_name(claim)]

    def choose(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> int | Ground:
        return CountingDoubter().choose(answered, children)


def main(folder: str) -> None:
    """Audit without end."""
    auditor = AuditProcess(Workspace(Path(folder)), Slow, Recaller())
    assert auditor.find(claim_of(ENDLESS), Path(folder)) is None
    time.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:])
