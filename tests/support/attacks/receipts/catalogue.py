"""Every forgery of receipts, and what a customer's checks say to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.reading import read_response
from tallystick.audits.answers.stream import verify_stream
from tallystick.audits.answers.subject import ReceiptContext
from tallystick.audits.answers.verify import verification_of
from tallystick.core.errors import MalformedError
from tallystick.verdicts.language_model import LanguageModel
from tallystick.verdicts.verdict import Verdict
from tests.support.attacks.receipts import adjustments, answers, bodies, evasions, requests, settings, states, streams
from tests.support.attacks.receipts.forgery import HONEST, Forge, Forgery, Outcome
from tests.support.attacks.receipts.scene import NONCE, Presented, Scene

FORGERIES: Final[tuple[Forgery, ...]] = (
    *HONEST,
    *answers.FORGERIES,
    *bodies.FORGERIES,
    *requests.FORGERIES,
    *settings.FORGERIES,
    *adjustments.FORGERIES,
    *evasions.FORGERIES,
    *streams.FORGERIES,
    *states.FORGERIES,
)


@dataclass(frozen=True)
class Played:
    """What came of it: the checks that objected, or were missing where nothing did, and the first line of why."""

    outcome: Outcome
    checks: tuple[str, ...]
    detail: str = ""

    def is_as_expected(self, forgery: Forgery) -> bool:
        """Whether the forgery was answered as it has to be."""
        if forgery.outcome == "refused":
            return self.outcome == "refused" and all(each in self.detail for each in forgery.checks)
        if (self.outcome, forgery.outcome) == ("rejected", "inconclusive"):
            return True  # a longer answer, or a larger model, shows more than has to be seen
        return self.outcome == forgery.outcome and set(forgery.checks) <= set(self.checks)


def forgery_named(name: str) -> Forgery:
    """The forgery of that name."""
    return next(each for each in FORGERIES if each.name == name)


def play(forgery: Forgery, scene: Scene) -> Played:
    """Forge, hand over, and judge."""
    return _judged(forgery.forge, scene, forgery.shared)


def play_twin(forgery: Forgery, scene: Scene) -> Played:
    """The same handed over honestly."""
    return _judged(forgery.twin, scene, forgery.shared)


def judge(presented: tuple[Presented, ...], model: LanguageModel, policy: ReceiptPolicy) -> Verdict:
    """The verdict on one response, or on several as a stream; raises `MalformedError` for what is no response."""
    subjects = [_subject(each) for each in presented]
    if len(subjects) == 1:
        return verification_of(subjects[0], presented[0].model or model, policy).report(2).verdict
    report = verify_stream(subjects, model, policy, NONCE)
    return report.verdict


def _judged(forge: Forge, scene: Scene, is_shared: bool) -> Played:
    policy = scene.policy.model_copy(update={"complete": not is_shared})
    try:
        verdict = judge(forge(scene), scene.promised, policy)
    except MalformedError as error:
        return Played("refused", (), str(error))
    objections = {finding.name: f"{finding.where}: {finding.detail}" for finding in reversed(verdict.objections)}
    missing = {line.partition(":")[0]: line for line in reversed(verdict.unavailable)}
    found = objections or missing
    return Played(verdict.outcome, tuple(reversed(found)), next(reversed(found.values()), ""))


def _subject(presented: Presented) -> ReceiptContext:
    return ReceiptContext(read_response(presented.body), presented.request, presented.challenge)
