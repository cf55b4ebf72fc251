"""Rung 4: the answer is generated again on the same stack and compared bit for bit.

Equal tokens and equal bits settle every doubt about sampler and model. Unequal tokens are an objection only if the bits
before them are equal: with another kernel, an honest replay may differ at a near tie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tallystick.answers.report import BITS, CheckLog
from tallystick.errors import ProofError
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.environment import Environment
from tallystick.transcripts.receipt import Fingerprint, Receipt, StatesCommitment


@dataclass(frozen=True)
class Replay:
    """The verifier's own generation, with fingerprints and states made with the receipt's settings."""

    tokens: tuple[int, ...]
    fingerprints: tuple[Fingerprint, ...] = ()
    states: StatesCommitment | None = None


class ExactReplayer(Protocol):
    """Generates an answer again exactly as this project's recorder does."""

    @property
    def environment(self) -> Environment:
        """The environment of the verifier's own stack."""

    def replay(self, receipt: Receipt, prompt: tuple[int, ...]) -> Replay:
        """Generate the answer to `prompt` with the receipt's sampler and limit; raises `UnavailableError`."""


def judge_replay(
    log: CheckLog,
    receipt: Receipt,
    prompt: tuple[int, ...],
    answer: tuple[int, ...],
    replayer: ExactReplayer,
    stated: Environment | None,
) -> frozenset[int]:
    """Generate the answer again and compare it; returns the lower rungs that this settles.

    `stated` is the provider's environment, if the verifier has it.
    """
    reasons = differences(receipt, replayer.environment, stated)
    if reasons:
        for reason in reasons:
            log.unavailable("replay", reason)
        return frozenset()
    found = replayer.replay(receipt, prompt)
    place = first_difference(answer, found.tokens)
    if place is None:
        return _same_tokens(log, receipt, found)
    prefix = _same_prefix(receipt, found, place)
    if prefix:
        detail = f"the bits of {prefix} tokens before are the same, and then the tokens are not"
        log.add(Finding(float(len(answer) - place), 0.0, "replay", f"token {place}", detail))
    else:
        log.unavailable("replay", f"parts at token {place}, and nothing shows that the kernels before were the same")
    return frozenset()


def differences(receipt: Receipt, own: Environment, stated: Environment | None) -> list[str]:
    """Why the answer cannot be generated again bit for bit: another stack, or other requests in the batch."""
    found = []
    if receipt.batch.largest > 1:
        found.append(f"computed in a batch of up to {receipt.batch.largest}, whose other prompts are not at hand")
    if stated is not None and stated.digest_as("environment") != receipt.engine.environment:
        raise ProofError("environment: not the one that the receipt names")
    if stated is not None:
        found += [f"another stack: {line}" for line in own.differences(stated)]
    elif own.digest_as("environment") != receipt.engine.environment:
        found.append("another stack than this one; give the provider's environment to see where they differ")
    return found


def first_difference(claimed: tuple[int, ...], replayed: tuple[int, ...]) -> int | None:
    """The first position at which two answers differ; None if they are equal."""
    if claimed == replayed:
        return None
    pairs = zip(claimed, replayed, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(claimed), len(replayed)))


def _same_tokens(log: CheckLog, receipt: Receipt, found: Replay) -> frozenset[int]:
    log.agrees("replay", "tokens", "every token, generated again")
    claimed_bits = (receipt.fingerprints, receipt.states and receipt.states.root)
    if claimed_bits == ((), None):
        return frozenset({1})
    if claimed_bits == (found.fingerprints, found.states and found.states.root):
        log.agrees(BITS, "hidden states", "every bit that the receipt binds")
        return frozenset({1, 2, 3})
    log.unavailable("replay", "the tokens are the same, and the bits of the hidden states are not: other kernels")
    return frozenset({1})


def _same_prefix(receipt: Receipt, found: Replay, place: int) -> int:
    """The number of answer tokens before `place` in fingerprint blocks whose bits are equal; 0 if any bits differ."""
    tokens = 0
    for claimed, own in zip(receipt.fingerprints, found.fingerprints, strict=False):
        whole = (place + 1) // claimed.block
        size = len(claimed.raw) // max(1, -(-claimed.tokens // claimed.block))
        if claimed.raw[: whole * size] != own.raw[: whole * size]:
            return 0
        tokens = max(tokens, whole * claimed.block)
    return tokens
