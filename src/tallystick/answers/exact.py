"""Rung 4: the answer is generated again on the same stack and compared bit for bit.

Equal tokens and equal bits settle every doubt about sampler and model. Unequal tokens are an objection only if the bits
before them are equal: with another kernel, an honest replay may differ at a near tie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from tallystick.answers.report import BITS, CheckLog, shown
from tallystick.errors import ProofError
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.environment import Environment
from tallystick.transcripts.receipt import EngineStatement, Fingerprint, Receipt, StatesCommitment

ENGINE: Final = ("name", "device", "attention", "kv_cache")


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

    @property
    def engine(self) -> EngineStatement:
        """What a receipt of the verifier's own generation would state."""

    def replay(self, receipt: Receipt, prompt: tuple[int, ...]) -> Replay:
        """Generate the answer to `prompt` with the receipt's sampler and limit; raises `UnavailableError`."""


@dataclass(frozen=True)
class ReplayRule:
    """How a replay is judged: `bits` says whether other bits reject; `final` is the layer number of the final norm."""

    bits: bool
    final: int


def judge_replay(
    log: CheckLog,
    receipt: Receipt,
    prompt: tuple[int, ...],
    answer: tuple[int, ...],
    replayer: ExactReplayer,
    stated: Environment | None,
    rule: ReplayRule,
) -> frozenset[int]:
    """Generate the answer again and compare it; returns the lower rungs that this settles.

    `stated` is the provider's environment, if the verifier has it.
    """
    reasons = differences(receipt, replayer, stated)
    if reasons:
        for reason in reasons:
            log.unavailable("replay", reason)
        return frozenset()
    found = replayer.replay(receipt, prompt)
    place = first_difference(answer, found.tokens)
    if place is None:
        return _same_tokens(log, receipt, found, rule)
    prefix = _same_prefix(receipt, found, place, rule.final)
    if prefix:
        detail = f"the bits of {prefix} tokens before are the same, and then the tokens are not"
        log.add(Finding(float(len(answer) - place), 0.0, "replay", f"token {place}", detail))
    else:
        _other_bits(log, rule, f"parts at token {place}, and nothing shows that the kernels before were the same")
    return frozenset()


def differences(receipt: Receipt, replayer: ExactReplayer, stated: Environment | None) -> list[str]:
    """Why the answer cannot be generated again bit for bit: another stack or engine, or other requests in the batch."""
    found, own, engine = [], replayer.environment, receipt.engine
    if receipt.batch.largest > 1:
        found.append(f"computed in a batch of up to {receipt.batch.largest}, whose other prompts are not at hand")
    if receipt.sampler.grammar is not None:
        found.append("it follows a grammar, and answers are generated again without one; rung 2 judges its tokens")
    if stated is not None and not stated.is_named_by(engine.environment):
        raise ProofError("environment: not the one that the receipt names")
    for name in ENGINE:
        theirs, ours = getattr(engine, name), getattr(replayer.engine, name)
        if theirs != ours:
            found.append(f"another engine: {name} {shown(theirs)}, here {ours}")
    if stated is not None or own.is_named_by(engine.environment):
        found += [f"another stack: {line}" for line in own.differences(stated or own)]
    else:
        found.append("another stack than this one; give the provider's environment to see where they differ")
    return found


def first_difference(claimed: tuple[int, ...], replayed: tuple[int, ...]) -> int | None:
    """The first position at which two answers differ; None if they are equal."""
    if claimed == replayed:
        return None
    pairs = zip(claimed, replayed, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(claimed), len(replayed)))


def _same_tokens(log: CheckLog, receipt: Receipt, found: Replay, rule: ReplayRule) -> frozenset[int]:
    log.agrees("replay", "tokens", "every token, generated again")
    claimed_bits = (receipt.fingerprints, receipt.states and receipt.states.root)
    if claimed_bits == ((), None):
        return frozenset({1})
    if claimed_bits == (found.fingerprints, found.states and found.states.root):
        log.agrees(BITS, "hidden states", "every bit that the receipt binds")
        return frozenset({1, 2, 3})
    _other_bits(log, rule, "the tokens are the same, and the bits of the hidden states are not")
    return frozenset({1})


def _other_bits(log: CheckLog, rule: ReplayRule, line: str) -> None:
    """Other bits on an equal stack: another computation; whether that is held against a provider, its customer says."""
    if rule.bits:
        log.differs(BITS, "hidden states", line)
    else:
        log.unavailable(
            "replay", f'{line}: other kernels, or another computation; a policy with `replay = "bits"` rejects'
        )


def _same_prefix(receipt: Receipt, found: Replay, place: int, final: int) -> int:
    """The answer tokens before `place` in fingerprint blocks with equal bits; 0 if those of any hidden state differ.

    The logits are left out: with another output matrix they differ, and the states before them do not.
    """
    tokens = 0
    for claimed, own in zip(receipt.fingerprints, found.fingerprints, strict=False):
        whole = (place + 1) // claimed.block
        if any(
            _parts(claimed, layer, whole) != _parts(own, layer, whole) for layer in claimed.layers if layer <= final
        ):
            return 0
        tokens = max(tokens, whole * claimed.block)
    return tokens


def _parts(fingerprint: Fingerprint, layer: int, blocks: int) -> list[bytes]:
    """The bytes of one layer in the first blocks; empty if the layer is not there."""
    if layer not in fingerprint.layers:
        return []
    each, place = len(fingerprint.layers), fingerprint.layers.index(layer)
    size = len(fingerprint.raw) // max(1, each * -(-fingerprint.tokens // fingerprint.block))
    starts = [(block * each + place) * size for block in range(blocks)]
    return [fingerprint.raw[start : start + size] for start in starts]
