"""An attack as data: what it changes, and which audit must detect it by which check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tallystick.judging.verdict import Outcome

Audit = Literal["screens", "exact", "recipe", "full", "claim", "tolerant"]
"""How a run is audited.

screens    every digest, root and commitment, and the screens that need no replay
exact      as `screens`, and the sampled steps are replayed bit for bit from the step graph, which must be that of the
           recipe; the sample is chosen to hit the fraud
recipe     as `exact`, but with a trainer built from the recipe; no graph is run
full       as `exact` over the whole chain, and the tokens are derived again from their source
claim      an exact audit by a verifier who kept the digest of the honest claim
tolerant   the sampled steps are judged by calibrated limits instead of bits
"""
AUDITS: tuple[Audit, ...] = get_args(Audit)
Forger = Callable[[Path, Path], None]
Reference = Literal["recipe", "bpe", "corpus", "loop", "checkpoint", "rows", "gpt2", "gpt2-bf16"]
"""Which honest run an attack forges.

recipe     a Llama-style model, trained from a recipe
bpe        the same with a byte-pair tokenizer that is trained on the source
corpus     the same on a corpus of shards, which the auditor has
loop       a custom training loop with a step graph
checkpoint the same from the weights of a directory, which the auditor has
rows       the same on packed rows of conversations, whose corpus, tokenizer and template the auditor has
gpt2       a GPT-2, trained from a recipe: no replay determines its key biases
gpt2-bf16  the same in bfloat16
"""


@dataclass(frozen=True)
class Expected:
    """The outcome of one audit of a forged run; every one of `checks` must fail."""

    outcome: Outcome
    checks: tuple[str, ...] = ()
    why: str = ""


def rejected(*checks: str) -> Expected:
    """The audit rejects the run, and each of `checks` fails."""
    return Expected("rejected", checks)


def accepted(why: str) -> Expected:
    """The audit cannot detect the fraud, for the stated reason."""
    return Expected("accepted", why=why)


def inconclusive(why: str) -> Expected:
    """The audit cannot decide, for the stated reason."""
    return Expected("inconclusive", why=why)


MISSING = inconclusive("what is not there cannot be checked, and what is there agrees")
KEPT_DIGEST = rejected("claim")


@dataclass(frozen=True)
class Attack:
    """One way to forge a run, or an honest control.

    `forge(run, out)` reads the honest run directory `run`, and writes the forged run to `out`.
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
        """The expected outcome of `audit`; `full` and `recipe` default to that of `exact`."""
        outcomes = {"screens": self.screens, "claim": self.claim, "tolerant": self.tolerant}
        outcomes |= {"exact": self.exact, "full": self.full or self.exact, "recipe": self.recipe or self.exact}
        return outcomes[audit]

    @property
    def seen_by(self) -> tuple[Audit, ...]:
        """The audits that do not accept the forged run."""
        return tuple(audit for audit in AUDITS if self.expected(audit).outcome != "accepted")
