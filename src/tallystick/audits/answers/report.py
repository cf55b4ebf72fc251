"""The report on one receipt: every check with findings, bytes and time, and answers to a customer's questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from tallystick.audits.answers.fingerprints import RoundingEvidence
from tallystick.audits.answers.power import CheatPower, power_lines
from tallystick.audits.answers.sampler import SamplerEvidence
from tallystick.core.canonical_json import Json
from tallystick.core.digests import Digest
from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import Cost, Findings, Judgement, Open, Outcome, Verdict, VerdictCoverage, number
from tallystick.verdicts.words import CheckCost, VerdictText

Key = TypeVar("Key")
Reply = Literal["yes", "fits", "no", "unknown"]
"""`fits`: nothing that was checked speaks against it, which a difference that is not seen would not do either."""
RUNGS: Final = (1, 2, 3, 4)
BITS: Final = "replayed bits"
"""The check of an exact replay of hidden states; the check `replay` compares tokens."""
RUNG_OF: Final[Mapping[str, int]] = {
    **dict.fromkeys(("sampler", "surprisal", "evidence"), 1),
    **dict.fromkeys(("fingerprint", "rounding", "states", "rerun"), 2),
    "layer": 3,
    **dict.fromkeys(("replay", BITS), 4),
}
"""The rung of each check on the ladder; checks that compare only statements are on rung 0."""
PASSES: Final[Mapping[str, int]] = {"prefill": 1, "wide pass": 2}
"""The rung to which a pass over the tokens counts."""
RUNG_NAMES: Final = {1: "token test", 2: "fingerprints", 3: "one layer by operators", 4: "exact replay"}
STATED: Final = ("signature", "model")
COUNTED: Final = ("usage", "tokens")
SEEN: Final = ("evidence", "fingerprint", "rounding", "states", "rerun", "replay")
"""Checks that each show that the promised model computed the answer."""
EXACT: Final = ("fingerprint", "rounding", "states", "rerun", BITS)
"""Checks that show the precision; tokens, replayed or not, rarely differ between precisions."""


@dataclass(frozen=True)
class CustomerQuestion:
    """A customer's question as names of checks.

    No check in `first` may be missing, and one of `answers` must agree; any finding of these or of `against` that
    disagrees gives a no. If there are checks in `computed`, one of them must agree too; one that disagrees leaves the
    question open, since it does not say what differs. The reply is yes where one of `shows` agrees, otherwise fits.
    """

    first: tuple[str, ...]
    answers: tuple[str, ...]
    against: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    shows: tuple[str, ...] = (BITS,)


QUESTIONS: Final[Mapping[str, CustomerQuestion]] = {
    "same model": CustomerQuestion(STATED, SEEN, ("sampler", "surprisal", "layer")),
    "same precision": CustomerQuestion(STATED, EXACT, ("sampler", "surprisal", "evidence", "layer", "replay")),
    "same prompt": CustomerQuestion(("signature",), ("prompt",), ("nonce",), SEEN),
    "same sampler": CustomerQuestion(("signature", "settings"), ("evidence", "surprisal", "replay"), ("sampler",)),
    "same token count": CustomerQuestion(("signature", "finish"), COUNTED, shows=COUNTED),
}


def compare(findings: Findings, name: str, where: str, claimed: object, expected: object) -> None:
    """Add whether the receipt's claim equals the expected value."""
    if claimed == expected:
        findings.agrees(name, where)
    else:
        findings.differs(name, where, f"{shown(claimed)} in the receipt, and {shown(expected)} was expected")


@dataclass(frozen=True, repr=False)
class ReceiptReport(Judgement):
    """The verdict on one receipt, with all findings and costs.

    `rung` is the highest rung that was climbed. `evidence` and `rounding` can be added up over receipts. `power` is
    what such checks see of such answers; if it is not known, `unmeasured` says why.
    """

    receipt: Digest
    model: Digest
    sequence: int
    tokens: int
    rung: int
    findings: tuple[Finding, ...]
    missing: tuple[Open, ...] = ()
    not_checked: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    costs: tuple[Cost, ...] = ()
    evidence: SamplerEvidence | None = None
    rounding: RoundingEvidence | None = None
    power: tuple[CheatPower, ...] = ()
    unmeasured: str = ""

    @property
    def verdict(self) -> Verdict:
        """Accepted, rejected or inconclusive."""
        missing = tuple(map(str, self.missing))
        not_excluded = () if self.evidence is None else self.evidence.not_excluded
        return Verdict(self.findings, missing, (*self.not_checked, *not_excluded), self.assumptions, self.coverage)

    @property
    def coverage(self) -> VerdictCoverage:
        """The answer's tokens, all of them or none: there is one pass over them."""
        computed = self.tokens if any(cost.check == "prefill" for cost in self.costs) else 0
        return VerdictCoverage(computed, self.tokens, "answer tokens", "computed again with the promised model")

    @property
    def gist(self) -> str:
        """How much was judged, and of which receipt."""
        return f"{self.coverage}, receipt {self.receipt[:15]}…"

    @property
    def outcome(self) -> Outcome:
        """The verdict's outcome."""
        return self.verdict.outcome

    @property
    def answers(self) -> dict[str, Reply]:
        """The answer to each question of a customer; unknown if the evidence is not enough."""
        return {name: self._reply(question) for name, question in QUESTIONS.items()}

    @property
    def told(self) -> tuple[str, ...]:
        """What it means that an answer fits: one line for each such question, with what would have been seen."""
        fitting = [name.removeprefix("same ") for name, reply in self.answers.items() if reply == "fits"]
        return tuple(power_lines(fitting, self.power, self.unmeasured))

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds that each check took."""
        return {check: cost.seconds for check, cost in self._costs_by(lambda cost: cost.check).items()}

    @property
    def bytes(self) -> dict[str, int]:
        """The bytes of evidence that each check read."""
        return {check: cost.bytes for check, cost in self._costs_by(lambda cost: cost.check).items()}

    @property
    def rung_costs(self) -> dict[int, Cost]:
        """The cost of each climbed rung, with its pass over the tokens."""
        by_rung = self._costs_by(lambda cost: PASSES.get(cost.check) or RUNG_OF.get(cost.check, 0))
        return {
            rung: Cost(RUNG_NAMES.get(rung, "statements"), cost.seconds, cost.bytes)
            for rung, cost in sorted(by_rung.items())
        }

    def to_json(self) -> dict[str, Json]:
        """The report as JSON values."""
        return {
            **self.verdict.to_json(),
            "receipt": str(self.receipt),
            "model": str(self.model),
            "sequence": self.sequence,
            "tokens": self.tokens,
            "rung": self.rung,
            "answers": dict(self.answers),
            "power": [each.to_json() for each in self.power],
            "power_unknown": self.unmeasured,
            "costs": [
                {"check": check, "seconds": number(round(cost.seconds, 6)), "bytes": cost.bytes}
                for check, cost in self._costs_by(lambda cost: cost.check).items()
            ],
            "rungs": [
                {"rung": rung, "name": cost.check, "seconds": number(round(cost.seconds, 6)), "bytes": cost.bytes}
                for rung, cost in self.rung_costs.items()
            ],
        }

    def _costs_by(self, key: Callable[[Cost], Key]) -> dict[Key, Cost]:
        """The sums of costs with an equal key."""
        sums: dict[Key, Cost] = {}
        for cost in self.costs:
            before = sums.get(key(cost), Cost(cost.check, 0.0))
            sums[key(cost)] = Cost(before.check, before.seconds + cost.seconds, before.bytes + cost.bytes)
        return sums

    def _reply(self, question: CustomerQuestion) -> Reply:
        decisive = [each for each in self.findings if not each.advisory]
        concerned = {*question.first, *question.answers, *question.against}
        against = {each.name for each in decisive if not each.agrees}
        if against & concerned:
            return "no"
        is_open = {each.check for each in self.missing}
        agreeing = {each.name for each in decisive} - is_open - against
        if is_open & set(question.first) or not agreeing & set(question.answers):
            return "unknown"
        if question.computed and (against & set(question.computed) or not agreeing & set(question.computed)):
            return "unknown"
        return "yes" if agreeing & set(question.shows) else "fits"


def shown(value: object) -> str:
    """A value as text of at most 90 characters."""
    text = str(value)
    return text if len(text) <= 90 else f"{text[:87]}…"


def was_opened(findings: Iterable[Finding]) -> bool:
    """Whether an opened layer was run again, and decides."""
    return any(each.name == "rerun" and not each.advisory for each in findings)


def receipt_text(report: ReceiptReport, startup_seconds: float) -> VerdictText:
    """What the report on one receipt says in lines of text; first the replies to a customer's questions."""
    replies = "   ".join(f"{question}: {reply}" for question, reply in report.answers.items())
    return VerdictText(
        report.verdict,
        f"receipt {report.receipt}: number {report.sequence}, {report.tokens} tokens",
        (replies, *report.told),
        (),
        tuple(
            f"{f'rung {rung}' if rung else 'no rung'}: {cost.check}, {cost.seconds:.4f} s, {cost.bytes} bytes"
            for rung, cost in report.rung_costs.items()
        ),
        {"start-up": startup_seconds, "checking": sum(report.seconds.values())},
        {check: CheckCost(report.bytes[check], spent) for check, spent in report.seconds.items()},
        frozenset(each.check for each in report.missing),
    )
