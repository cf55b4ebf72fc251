"""An attack as data: what it changes, and which audit has to see it by which check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

Audit = Literal["screens", "exact", "recipe", "full", "claim", "tolerant"]
"""How a run is audited.

screens    every digest, root and binding, and the replay-free screens; nothing is replayed
exact      the same, and the sampled steps are replayed bit for bit from the step graph, which has to be that of the
           recipe; the sample is taken to hit the fraud
recipe     the same with a trainer that is built from the recipe, and no graph is run
full       the same over the whole chain, and the tokens are derived again from their source
claim      an exact audit by somebody who kept the digest of the honest claim
tolerant   the sampled steps are judged by calibrated limits instead of bits
"""
AUDITS: tuple[Audit, ...] = get_args(Audit)
Outcome = Literal["accepted", "rejected", "inconclusive", "refused"]
"""A verdict, or `refused`: the run is malformed and no verdict is given (exit 4)."""
Forger = Callable[[Path, Path], None]
Reference = Literal["recipe", "bpe", "loop", "gpt2", "gpt2-bf16"]
"""Which honest run an attack forges.

recipe     a Llama-style model by a recipe
bpe        the same on byte pairs, whose encoder is trained on the source
loop       somebody's own loop, with a step graph
gpt2       a GPT-2 by a recipe: no replay determines its key biases
gpt2-bf16  the same in bfloat16
"""


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
    recipe: Expected | None = None
    claim: Expected = KEPT_DIGEST
    is_honest: bool = False
    reference: Reference = "recipe"

    def expected(self, audit: Audit) -> Expected:
        """What `audit` says; a full audit, and one of the recipe, say what `exact` says unless it is stated."""
        answers = {"screens": self.screens, "claim": self.claim, "tolerant": self.tolerant}
        answers |= {"exact": self.exact, "full": self.full or self.exact, "recipe": self.recipe or self.exact}
        return answers[audit]

    @property
    def seen_by(self) -> tuple[Audit, ...]:
        """The audits that do not accept the forged run."""
        return tuple(audit for audit in AUDITS if self.expected(audit).outcome != "accepted")
