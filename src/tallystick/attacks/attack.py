"""An attack as data: what it changes, and which audit has to see it by which check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

Audit = Literal["screens", "exact", "full", "claim", "tolerant"]
"""How a run is audited.

screens    every digest, root and binding, and the replay-free screens; nothing is replayed
exact      the same, and the sampled steps are replayed bit for bit; the sample is taken to hit the fraud
full       the same over the whole chain, and the tokens are derived again from their source
claim      an exact audit by somebody who kept the digest of the honest claim
tolerant   the sampled steps are judged by calibrated limits instead of bits
"""
AUDITS: tuple[Audit, ...] = get_args(Audit)
Outcome = Literal["accepted", "rejected", "inconclusive", "refused"]
"""A verdict, or `refused`: the run is malformed and no verdict is given (exit 4)."""
Forger = Callable[[Path, Path], None]


@dataclass(frozen=True)
class Expected:
    """What one audit says to a forged run; every one of `checks` has to object."""

    outcome: Outcome
    checks: tuple[str, ...] = ()
    why: str = ""


def rejected(*checks: str) -> Expected:
    """The audit rejects, and each of `checks` objects."""
    return Expected("rejected", checks)


def accepted(why: str) -> Expected:
    """The audit cannot see the fraud, for the stated reason."""
    return Expected("accepted", why=why)


def inconclusive(why: str) -> Expected:
    """The audit cannot decide, for the stated reason."""
    return Expected("inconclusive", why=why)


def refused(field: str) -> Expected:
    """The run is no run: the audit stops with one line that names `field`."""
    return Expected("refused", (field,))


KEPT_DIGEST = rejected("claim")


@dataclass(frozen=True)
class Attack:
    """One way to forge a run, or an honest control.

    `forge(run, out)` writes the forged run `out` from the honest run directory `run` and leaves `run` alone.
    """

    name: str
    change: str
    forge: Forger
    screens: Expected
    exact: Expected
    tolerant: Expected
    full: Expected | None = None
    claim: Expected = KEPT_DIGEST
    is_honest: bool = False

    def expected(self, audit: Audit) -> Expected:
        """What `audit` says; a full audit says what a sampled one says unless it is stated."""
        answers = {"screens": self.screens, "exact": self.exact, "claim": self.claim, "tolerant": self.tolerant}
        return self.full or self.exact if audit == "full" else answers[audit]

    @property
    def seen_by(self) -> tuple[Audit, ...]:
        """The audits that do not accept the forged run."""
        return tuple(audit for audit in AUDITS if self.expected(audit).outcome != "accepted")
