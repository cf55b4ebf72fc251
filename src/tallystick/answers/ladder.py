"""The ladder: from the test that costs no bytes to the exact replay, as far up as is asked or needed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tallystick.answers.exact import ExactReplayer, differences, judge_replay
from tallystick.answers.layer import LayerSource, judge_layer
from tallystick.answers.policy import ReceiptPolicy
from tallystick.answers.report import RUNG_OF, RUNGS, ReceiptReport
from tallystick.answers.verify import ReceiptContext, Verification, verify_subject
from tallystick.errors import ProofError, UnavailableError, UsageError
from tallystick.transcripts.environment import Environment
from tallystick.workloads.language_model import LanguageModel

FREE: Final = 2
"""The highest rung that the one pass over prompt and answer pays for."""


@dataclass(frozen=True)
class Tools:
    """What the upper rungs need besides the model: layers as graphs, and a generation on this stack.

    `environment` is the provider's, `layer` the layer to judge where the verifier wants a certain one.
    """

    layers: LayerSource | None = None
    replayer: ExactReplayer | None = None
    environment: Environment | None = None
    layer: int | None = None


def climb(
    subject: ReceiptContext,
    model: LanguageModel,
    policy: ReceiptPolicy | None = None,
    rung: int | None = None,
    tools: Tools | None = None,
) -> ReceiptReport:
    """Judge a receipt up to `rung`; without it, go on as long as there is doubt and the material is there.

    Raises `UsageError` for a rung that the ladder does not have, and otherwise what `verify_receipt` raises.
    """
    if rung is not None and rung not in RUNGS:
        raise UsageError(f"rung {rung}: the ladder has {RUNGS[0]} to {RUNGS[-1]}")
    found = verify_subject(subject, model, policy or ReceiptPolicy(), 1 if rung == 1 else FREE)
    reached = 1 if rung == 1 else FREE
    settled: frozenset[int] = frozenset()
    given = tools or Tools()
    if _wanted(found, rung, 3, _has_layers(subject, given)):
        reached = 3
        _judge_layer(found, given)
    if _wanted(found, rung, 4, _has_replayer(subject, given)):
        reached = 4
        settled = _judge_replay(found, given)
    return _settled(found.report(reached), settled)


def _wanted(found: Verification, asked: int | None, rung: int, is_there: bool) -> bool:
    """Whether to climb: up to the rung that was asked, or for as long as there is doubt and material."""
    if not found.can_compute:
        return False
    if asked is not None:
        return asked == rung or (asked > rung and is_there)
    doubts = [each for each in found.notes.missing if each.check in RUNG_OF and not each.lasting]
    return is_there and bool(doubts) and not found.notes.findings.rejected


def _has_layers(subject: ReceiptContext, tools: Tools) -> bool:
    states = subject.receipt.states
    return tools.layers is not None and subject.challenge is not None and states is not None and states.prompt


def _has_replayer(subject: ReceiptContext, tools: Tools) -> bool:
    """Whether an answer can be generated again at all: on this stack, alone in its batch."""
    if tools.replayer is None:
        return False
    stated = tools.environment
    if stated is not None and stated.digest_as("environment") != subject.receipt.engine.environment:
        return True
    return not differences(subject.receipt, tools.replayer.environment, stated)


def _judge_layer(found: Verification, tools: Tools) -> None:
    prompt, answer, notes = found.tokens.prompt, found.tokens.answer, found.notes
    assert prompt is not None
    assert answer is not None
    if tools.layers is None:
        notes.lacks("layer", "nothing here captures a layer of the model")
        return
    challenge = found.subject.challenge
    size = 0 if challenge is None else sum(len(part.data) * 3 // 4 for part in challenge.opening.parts)
    tokens = (*prompt, *answer[:-1])
    with notes.timing("layer", size):
        try:
            judge_layer(notes, found.subject, tokens, found.policy, tools.layers, tools.layer)
        except UnavailableError as error:
            notes.lacks("layer", str(error))


def _judge_replay(found: Verification, tools: Tools) -> frozenset[int]:
    prompt, answer, notes = found.tokens.prompt, found.tokens.answer, found.notes
    assert prompt is not None
    assert answer is not None
    if tools.replayer is None:
        notes.lacks("replay", "nothing here generates on this stack")
        return frozenset()
    with notes.timing("replay"):
        try:
            return judge_replay(notes, found.subject.receipt, prompt, answer, tools.replayer, tools.environment)
        except UnavailableError as error:
            notes.lacks("replay", str(error))
        except ProofError as error:
            notes.differs("replay", "environment", str(error))
    return frozenset()


def _settled(report: ReceiptReport, rungs: frozenset[int]) -> ReceiptReport:
    """The report after an exact replay agreed: what lower rungs doubted decides nothing any more.

    What the policy demands of a receipt stays missing: equal tokens do not show in which precision they were computed.
    """
    if not rungs:
        return report
    findings = tuple(
        replace(each, advisory=True) if RUNG_OF.get(each.name) in rungs and not each.agrees else each
        for each in report.findings
    )
    doubts = tuple(each for each in report.missing if RUNG_OF.get(each.check) in rungs and not each.lasting)
    noted = tuple(f"{each}; settled by exact replay" for each in doubts)
    return replace(
        report,
        findings=findings,
        missing=tuple(each for each in report.missing if each not in doubts),
        not_checked=(*report.not_checked, *noted),
    )
