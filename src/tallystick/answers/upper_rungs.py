"""The upper rungs of the ladder: one layer judged by its operators, and the exact replay."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tallystick.answers.exact import ReplayRule, differences, judge_replay
from tallystick.answers.layer import judge_layer
from tallystick.answers.report import RUNG_OF, ReceiptReport
from tallystick.answers.verify import ReceiptContext, Verification
from tallystick.errors import ProofError, UnavailableError

if TYPE_CHECKING:
    from tallystick.answers.ladder import Tools


def climb_on(found: Verification, rung: int | None, tools: Tools) -> ReceiptReport:
    """Continue a verification up to `rung`; without `rung`, climb while there is doubt and `tools` suffice."""
    reached, settled = 2, frozenset[int]()
    if rung == 3 or ((rung == 4 or found.is_doubtful) and _has_layers(found.context, tools)):
        reached = 3
        _judge_layer(found, tools)
    if rung == 4 or (rung is None and found.is_doubtful and _has_replayer(found.context, tools)):
        reached = 4
        settled = _judge_replay(found, tools)
    return _settled(found.report(reached), settled)


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


def _judge_layer(found: Verification, tools: Tools) -> None:
    prompt, answer, log = found.tokens.prompt, found.tokens.answer, found.log
    assert prompt is not None
    assert answer is not None
    if tools.layers is None:
        log.unavailable("layer", "nothing here captures a layer of the model")
        return
    challenge = found.context.challenge
    tokens = (*prompt, *answer[:-1])
    with log.timing("layer", 0 if challenge is None else challenge.size):
        try:
            judge_layer(log, found.context, tokens, found.policy, tools.layers, tools.layer)
        except UnavailableError as error:
            log.unavailable("layer", str(error))


def _judge_replay(found: Verification, tools: Tools) -> frozenset[int]:
    prompt, answer, log = found.tokens.prompt, found.tokens.answer, found.log
    assert prompt is not None
    assert answer is not None
    if tools.replayer is None:
        log.unavailable("replay", "nothing here generates on this stack")
        return frozenset()
    with log.timing("replay"):
        try:
            rule = ReplayRule(found.policy.replay == "bits", found.model.card.layers)
            return judge_replay(log, found.context.receipt, prompt, answer, tools.replayer, tools.environment, rule)
        except UnavailableError as error:
            log.unavailable("replay", str(error))
        except ProofError as error:
            log.differs("replay", "environment", str(error))
    return frozenset()


def _settled(report: ReceiptReport, rungs: frozenset[int]) -> ReceiptReport:
    """The report after an exact replay agreed: objections and doubts of `rungs` decide nothing any more.

    What the policy demands of the receipt stays missing: equal tokens do not show the precision of the computation.
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
