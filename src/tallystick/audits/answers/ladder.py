"""The ladder of checks on a receipt, up to one layer and the exact replay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Protocol

from tallystick.audits.answers.layer import LayerSource, judge_layer
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.report import BITS, RUNG_OF, RUNGS, ReceiptReport, shown
from tallystick.audits.answers.subject import Ids, ReceiptContext, Verification
from tallystick.audits.answers.verify import begin_verification, check_statements, compute
from tallystick.core.errors import ProofError, UnavailableError, UsageError
from tallystick.formats.receipt import EngineStatement, Fingerprint, Receipt, StatesCommitment
from tallystick.formats.spec import Environment
from tallystick.verdicts.language_model import LanguageModel
from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import Findings

# Rung 4: the answer is generated again on the same stack and compared bit for bit.
#
# Equal tokens and equal bits settle every doubt about sampler and model. Unequal tokens are an objection only if the
# bits before them are equal: with another kernel, an honest replay may differ at a near tie.

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
    findings: Findings,
    receipt: Receipt,
    prompt: Ids,
    answer: Ids,
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
            findings.leave_open("replay", reason)
        return frozenset()
    own = replayer.replay(receipt, prompt)
    if answer == own.tokens:
        return _same_tokens(findings, receipt, own, rule)
    pairs = enumerate(zip(answer, own.tokens, strict=False))
    place = next((place for place, (a, b) in pairs if a != b), min(len(answer), len(own.tokens)))
    prefix = _same_prefix(receipt, own, place, rule.final)
    if prefix:
        detail = f"the bits of {prefix} tokens before are the same, and then the tokens are not"
        findings.note(Finding(float(len(answer) - place), 0.0, "replay", f"token {place}", detail))
    else:
        _note_other_bits(
            findings, rule, f"parts at token {place}, and nothing shows that the kernels before were the same"
        )
    return frozenset()


def differences(receipt: Receipt, replayer: ExactReplayer, stated: Environment | None) -> list[str]:
    """Why the answer cannot be generated again bit for bit: another stack or engine, or other requests in the batch."""
    reasons, own, engine = [], replayer.environment, receipt.engine
    if receipt.batch.largest > 1:
        reasons.append(f"computed in a batch of up to {receipt.batch.largest}, whose other prompts are not at hand")
    if receipt.sampler.grammar is not None:
        reasons.append("it follows a grammar, and answers are generated again without one; rung 2 judges its tokens")
    if stated is not None and not stated.is_named_by(engine.environment):
        raise ProofError("environment: not the one that the receipt names")
    for name in ENGINE:
        theirs, ours = getattr(engine, name), getattr(replayer.engine, name)
        if theirs != ours:
            reasons.append(f"another engine: {name} {shown(theirs)}, here {ours}")
    if stated is not None or own.is_named_by(engine.environment):
        reasons += [f"another stack: {line}" for line in own.differences(stated or own)]
    else:
        reasons.append("another stack than this one; give the provider's environment to see where they differ")
    return reasons


def _same_tokens(findings: Findings, receipt: Receipt, own: Replay, rule: ReplayRule) -> frozenset[int]:
    findings.agrees("replay", "tokens", "every token, generated again")
    claimed_bits = (receipt.fingerprints, receipt.states and receipt.states.root)
    if claimed_bits == ((), None):
        return frozenset({1})
    if claimed_bits == (own.fingerprints, own.states and own.states.root):
        findings.agrees(BITS, "hidden states", "every bit that the receipt binds")
        return frozenset({1, 2, 3})
    _note_other_bits(findings, rule, "the tokens are the same, and the bits of the hidden states are not")
    return frozenset({1})


def _note_other_bits(findings: Findings, rule: ReplayRule, line: str) -> None:
    """Other bits on an equal stack: another computation; whether that is held against a provider, its customer says."""
    if rule.bits:
        findings.differs(BITS, "hidden states", line)
    else:
        findings.leave_open(
            "replay", f'{line}: other kernels, or another computation; a policy with `replay = "bits"` rejects'
        )


def _same_prefix(receipt: Receipt, replayed: Replay, place: int, final: int) -> int:
    """The answer tokens before `place` in fingerprint blocks with equal bits; 0 if those of any hidden state differ.

    The logits are left out: with another output matrix they differ, and the states before them do not.
    """
    tokens = 0
    for claimed, own in zip(receipt.fingerprints, replayed.fingerprints, strict=False):
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


# The ladder of checks on a receipt: tokens, fingerprints, one layer, exact replay; up to a rung, or while in doubt.

FREE: Final = 2
"""The highest rung that needs only the one pass over prompt and answer."""


@dataclass(frozen=True)
class Tools:
    """What the upper rungs need in addition to the model: layers as graphs, and a generator on this stack.

    `environment` is the provider's. `layer` is the layer to judge, if the verifier chooses it.
    """

    layers: LayerSource | None = None
    replayer: ExactReplayer | None = None
    environment: Environment | None = None
    layer: int | None = None


def climb(
    context: ReceiptContext,
    model: LanguageModel,
    policy: ReceiptPolicy | None = None,
    rung: int | None = None,
    tools: Tools | None = None,
) -> ReceiptReport:
    """Judge a receipt up to `rung`; without `rung`, climb while there is doubt and `tools` has what the rung needs.

    Raises `UsageError` for a rung that does not exist, and what `verify_receipt` raises.
    """
    check_rung(rung)
    case = begin_verification(context, model, policy or ReceiptPolicy())
    check_statements(case)
    return climb_from(case, rung, tools)


def climb_from(case: Verification, rung: int | None = None, tools: Tools | None = None) -> ReceiptReport:
    """As `climb`, for a receipt whose statements were checked already."""
    check_rung(rung)
    reached = 1 if rung == 1 else FREE
    compute(case, 1 if rung == 1 else FREE)
    if not (case.is_doubtful if rung is None else case.can_compute and rung > FREE):
        return case.report(reached)
    tools, settled = tools or Tools(), frozenset[int]()
    if rung == 3 or ((rung == 4 or case.is_doubtful) and _has_layers(case.context, tools)):
        reached = 3
        _judge_layer(case, tools)
    if rung == 4 or (rung is None and case.is_doubtful and _has_replayer(case.context, tools)):
        reached = 4
        settled = _judge_replay(case, tools)
    return _settled(case.report(reached), settled)


def check_rung(rung: int | None) -> None:
    """Raise `UsageError` for a rung that the ladder does not have."""
    if rung is not None and rung not in RUNGS:
        raise UsageError(f"rung {rung}: the ladder has {RUNGS[0]} to {RUNGS[-1]}")


def _has_layers(context: ReceiptContext, tools: Tools) -> bool:
    states = context.receipt.states
    return tools.layers is not None and context.challenge is not None and states is not None and states.prompt


def _has_replayer(context: ReceiptContext, tools: Tools) -> bool:
    """Whether the answer can be generated again: same stack, and alone in its batch."""
    if tools.replayer is None:
        return False
    stated = tools.environment
    if stated is not None and not stated.is_named_by(context.receipt.engine.environment):
        return True
    return not differences(context.receipt, tools.replayer, stated)


def _judge_layer(case: Verification, tools: Tools) -> None:
    findings, challenge = case.findings, case.context.challenge
    if tools.layers is None:
        findings.leave_open("layer", "nothing here captures a layer of the model")
        return
    with findings.timing("layer", 0 if challenge is None else challenge.size):
        try:
            judge_layer(case, tools.layers, tools.layer)
        except UnavailableError as error:
            findings.leave_open("layer", str(error))


def _judge_replay(case: Verification, tools: Tools) -> frozenset[int]:
    findings, rule = case.findings, ReplayRule(case.policy.replay == "bits", case.model.card.layers)
    if tools.replayer is None:
        findings.leave_open("replay", "nothing here generates on this stack")
        return frozenset()
    with findings.timing("replay"):
        try:
            return judge_replay(findings, case.receipt, *case.known, tools.replayer, tools.environment, rule)
        except UnavailableError as error:
            findings.leave_open("replay", str(error))
        except ProofError as error:
            findings.differs("replay", "environment", str(error))
    return frozenset()


def _settled(report: ReceiptReport, rungs: frozenset[int]) -> ReceiptReport:
    """The report after an exact replay agreed: objections and doubts of `rungs` decide nothing any more.

    What the policy demands of the receipt stays missing: equal tokens do not show the precision of the computation.
    """
    findings = tuple(
        replace(each, advisory=True) if RUNG_OF.get(each.name) in rungs and not each.agrees else each
        for each in report.findings
    )
    doubts = tuple(each for each in report.missing if RUNG_OF.get(each.check) in rungs and not each.lasting)
    return replace(
        report,
        findings=findings,
        missing=tuple(each for each in report.missing if each not in doubts),
        not_checked=(*report.not_checked, *(f"{each}; settled by exact replay" for each in doubts)),
    )
