"""The report on receipts: every check with findings, bytes and time; as JSON and as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from tallystick.audits.answers.fingerprints import RoundingEvidence
from tallystick.audits.answers.power import CheatPower, power_lines
from tallystick.audits.answers.sampler import SamplerEvidence
from tallystick.core.canonical_json import Json
from tallystick.core.digests import Digest
from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import Cost, Findings, Judgement, Open, Outcome, Verdict, VerdictCoverage, number
from tallystick.verdicts.words import CheckCost, VerdictText

if TYPE_CHECKING:
    from tallystick.audits.answers.stream import StreamReport


# The report on a receipt as JSON.


def report_json(report: ReceiptReport) -> dict[str, Json]:
    """The report as JSON values."""
    return {
        **report.verdict.to_json(),
        "receipt": str(report.receipt),
        "model": str(report.model),
        "sequence": report.sequence,
        "tokens": report.tokens,
        "rung": report.rung,
        "answers": dict(report.answers),
        "power": [each.to_json() for each in report.power],
        "power_unknown": report.unmeasured,
        "costs": [
            {"check": check, "seconds": number(round(seconds, 6)), "bytes": report.bytes[check]}
            for check, seconds in report.seconds.items()
        ],
        "rungs": [
            {"rung": rung, "name": cost.check, "seconds": number(round(cost.seconds, 6)), "bytes": cost.bytes}
            for rung, cost in report.rung_costs.items()
        ],
    }


# The report on one receipt: every check with findings, bytes and time, and answers to a customer's questions.

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
        return {check: sum(cost.seconds for cost in self.costs if cost.check == check) for check in self._checks()}

    @property
    def bytes(self) -> dict[str, int]:
        """The bytes of evidence that each check read."""
        return {check: sum(cost.bytes for cost in self.costs if cost.check == check) for check in self._checks()}

    @property
    def rung_costs(self) -> dict[int, Cost]:
        """The cost of each climbed rung, with its pass over the tokens."""
        found: dict[int, Cost] = {}
        for cost in self.costs:
            rung = PASSES.get(cost.check) or RUNG_OF.get(cost.check, 0)
            held = found.get(rung, Cost(RUNG_NAMES.get(rung, "statements"), 0.0))
            found[rung] = replace(held, seconds=held.seconds + cost.seconds, bytes=held.bytes + cost.bytes)
        return dict(sorted(found.items()))

    def to_json(self) -> dict[str, Json]:
        """The report as JSON values."""
        return report_json(self)

    def _checks(self) -> list[str]:
        return list(dict.fromkeys(cost.check for cost in self.costs))

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


# The reports on receipts as text: on one, and on a stream of them.

NAMED: Final = 8


def receipt_text(report: ReceiptReport, startup_seconds: float) -> VerdictText:
    """What the report on one receipt says in lines of text; first the replies to a customer's questions."""
    subject = f"receipt {report.receipt}: number {report.sequence}, {report.tokens} tokens"
    replies = "   ".join(f"{question}: {reply}" for question, reply in report.answers.items())
    costs = {check: CheckCost(report.bytes[check], spent) for check, spent in report.seconds.items()}
    seconds = {"start-up": startup_seconds, "checking": sum(report.seconds.values())}
    missing = frozenset(each.check for each in report.missing)
    return VerdictText(
        report.verdict, subject, (replies, *report.told), (), tuple(_rungs(report)), seconds, costs, missing
    )


def stream_text(report: StreamReport, startup_seconds: float) -> VerdictText:
    """What the report on many receipts says in lines of text."""
    single = ", ".join(_singles(report))
    subject = f"{report.receipts} receipts, {report.computed} computed, {report.tokens} tokens"
    checking = sum(sum(each.seconds.values()) for each in report.reports)
    seconds = {"start-up": startup_seconds, "checking": checking}
    repeat = f"repeat with --nonce {report.nonce.hex()}"
    return VerdictText(report.verdict, subject, (f"single receipts: {single}", *report.told), (repeat,), (), seconds)


def _singles(report: StreamReport) -> Iterator[str]:
    """The number of receipts by outcome, and the names of those that are not accepted."""
    names: dict[str, list[str]] = defaultdict(list)
    for each in report.reports:
        names[each.outcome].append(f"number {each.sequence}")
    for unread in report.unread:
        names[unread.outcome].append(unread.subject)
    for outcome, named in sorted(names.items()):
        more = " …" if len(named) > NAMED else ""
        yield f"{len(named)} {outcome}" + ("" if outcome == "accepted" else f" ({', '.join(named[:NAMED])}{more})")


def _rungs(report: ReceiptReport) -> Iterator[str]:
    for rung, cost in report.rung_costs.items():
        name = f"rung {rung}" if rung else "no rung"
        yield f"{name}: {cost.check}, {cost.seconds:.4f} s, {cost.bytes} bytes"
