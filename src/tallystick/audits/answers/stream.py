"""Judges many receipts of one provider: their order, a computed sample, and the evidence of all together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tallystick.audits.answers.fingerprints import RoundingEvidence, summed
from tallystick.audits.answers.order import CHECK, check_order
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.power import SUBJECTS, CheatPower, power_at, power_lines
from tallystick.audits.answers.reading import UnreadReport
from tallystick.audits.answers.report import ReceiptReport, was_opened
from tallystick.audits.answers.sampler import SamplerEvidence, combine
from tallystick.audits.answers.subject import ReceiptContext, Verification
from tallystick.audits.answers.verify import begin_verification, check_statements, two_rungs
from tallystick.core.canonical_json import Json, encode
from tallystick.core.digests import Digest, digest, digest_bytes
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.formats.claims import ModelCard
from tallystick.verdicts.language_model import LanguageModel
from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import AGREES, Findings, Judgement, Outcome, Verdict, VerdictCoverage
from tallystick.verdicts.words import VerdictText

EVIDENCE: Final = "evidence"
CHOICE: Final = "which answers are judged together was settled by the verifier, and none left out for what it showed"
NAMED: Final = 8
BAD_SHARES: Final = (0.01, 0.05, 0.1)
Judge = Callable[[Verification], ReceiptReport]
"""Continues a verification after its statements were checked."""
Refused = (MalformedError, UnavailableError, UsageError)


@dataclass(frozen=True, repr=False)
class StreamReport(Judgement):
    """The verdict on the receipts of one or several providers.

    `reports` covers all receipts that could be judged; those outside the sample are judged by their statements alone.
    `evidence` sums the evidence about the sampler over all computed receipts of a key, one entry per key and rule;
    `rounding` that of their fingerprints. `power` is what such pools show of a cheat; if it is not known, `unmeasured`
    says why. `unread` are the verdicts on signed receipts that have not the form of one.
    """

    nonce: bytes
    share: float
    receipts: int
    reports: tuple[ReceiptReport, ...]
    computed: int
    verdict: Verdict
    evidence: tuple[SamplerEvidence, ...] = ()
    rounding: tuple[RoundingEvidence, ...] = ()
    power: tuple[CheatPower, ...] = ()
    unmeasured: str = ""
    unread: tuple[UnreadReport, ...] = ()

    @property
    def told(self) -> tuple[str, ...]:
        """What it means that nothing speaks against the answers: one line a subject, with what would have been seen."""
        return tuple(power_lines(SUBJECTS, self.power, self.unmeasured)) if self.accepted else ()

    @property
    def outcome(self) -> Outcome:
        """The verdict's outcome."""
        return self.verdict.outcome

    @property
    def gist(self) -> str:
        """How much was judged."""
        return self.verdict.gist

    @property
    def tokens(self) -> int:
        """The number of computed answer tokens."""
        return sum(each.tokens for each in self.evidence)

    @property
    def detection(self) -> dict[str, float]:
        """The probability that the sample holds a bad receipt, by the share p of bad ones: 1 − (1 − s·p)ⁿ."""
        return {f"{bad:g}": 1.0 - (1.0 - bad * self.share) ** self.receipts for bad in BAD_SHARES}

    def to_json(self) -> dict[str, Json]:
        """The report as JSON values."""
        return {
            **self.verdict.to_json(),
            "nonce": self.nonce.hex(),
            "audit_sample": self.share,
            "receipts": self.receipts,
            "computed": self.computed,
            "tokens": self.tokens,
            "detection": dict(self.detection),
            "power": [each.to_json() for each in self.power],
            "power_unknown": self.unmeasured,
            "reports": [each.to_json() for each in self.reports],
            "unread": [each.to_json() for each in self.unread],
        }


def stream_text(report: StreamReport, startup_seconds: float) -> VerdictText:
    """What the report on many receipts says in lines of text; receipts that are not accepted are named."""
    names: dict[str, list[str]] = defaultdict(list)
    for each in report.reports:
        names[each.outcome].append(f"number {each.sequence}")
    for unread in report.unread:
        names[unread.outcome].append(unread.subject)
    singles = []
    for outcome, named in sorted(names.items()):
        which = ", ".join(named[:NAMED]) + (" …" if named[NAMED:] else "")
        singles.append(f"{len(named)} {outcome}" + ("" if outcome == "accepted" else f" ({which})"))
    return VerdictText(
        report.verdict,
        f"{report.receipts} receipts, {report.computed} computed, {report.tokens} tokens",
        (f"single receipts: {', '.join(singles)}", *report.told),
        (f"repeat with --nonce {report.nonce.hex()}",),
        (),
        {"start-up": startup_seconds, "checking": sum(sum(each.seconds.values()) for each in report.reports)},
    )


def is_sampled(nonce: bytes, receipt: Digest, share: float) -> bool:
    """Whether a receipt belongs to the sample; repeatable, and unpredictable without the nonce."""
    drawn = digest_bytes(digest("sample", encode({"nonce": nonce.hex(), "receipt": str(receipt)})))
    return int.from_bytes(drawn[:8], "big") < share * 2.0**64


@dataclass
class _Progress:
    """What is known of a stream so far: reports by key, and receipts with a valid signature by key and response."""

    reports: list[ReceiptReport] = field(default_factory=list)
    pools: dict[str, list[ReceiptReport]] = field(default_factory=lambda: defaultdict(list))
    signed: dict[str, list[list[ReceiptContext]]] = field(default_factory=lambda: defaultdict(list))
    refused: list[str] = field(default_factory=list)
    computed: int = 0


def verify_stream(
    contexts: Sequence[ReceiptContext],
    model: LanguageModel,
    policy: ReceiptPolicy,
    nonce: bytes,
    judge: Judge = two_rungs,
    progress: Callable[[int], None] = lambda done: None,
    unread: Sequence[UnreadReport] = (),
) -> StreamReport:
    """Judge the receipts of a provider in the order in which they were received.

    Statements and order are checked for all. `judge` is called for the share `policy.audit_sample` that `nonce`
    selects. Draw the nonce after the receipts are fixed. A stream with a receipt that cannot be judged is not accepted;
    `unread` are the verdicts on those of its receipts that have no form.
    """
    seen = _Progress()
    for done, context in enumerate(contexts, 1):
        case, key = begin_verification(context, model, policy), context.response.receipt.key
        if not case.findings.rejected:  # a signed receipt that cannot be judged still fills its number
            responses = seen.signed[key]
            if context.response.number == 0 or not responses:
                responses.append([])
            responses[-1].append(context)
        try:
            check_statements(case)
            is_drawn = is_sampled(nonce, context.identity, policy.audit_sample)
            report = judge(case) if is_drawn else case.report(0)
            seen.computed += is_drawn and case.numbers_fit
            seen.reports.append(report)
            seen.pools[key].append(report)
        except Refused as error:
            seen.refused.append(f"receipt number {context.receipt.sequence}: {error}")
        progress(done)
    pools, evidence, rounding = [*seen.pools.values()], list[SamplerEvidence](), list[RoundingEvidence]()
    for pool in pools:
        evidence += combined(report.evidence for report in pool if report.evidence is not None)
        rounding += summed(report.rounding for report in pool if report.rounding is not None)
    power, unmeasured = _power(pools, model.card)
    count = len(contexts) + len(unread)
    return StreamReport(
        nonce=nonce,
        share=policy.audit_sample,
        receipts=count,
        reports=tuple(seen.reports),
        computed=seen.computed,
        verdict=_verdict(seen, count, policy, unread, evidence, rounding),
        evidence=tuple(evidence),
        rounding=tuple(rounding),
        power=power,
        unmeasured=unmeasured,
        unread=tuple(unread),
    )


def _verdict(
    seen: _Progress,
    count: int,
    policy: ReceiptPolicy,
    unread: Sequence[UnreadReport],
    evidence: Sequence[SamplerEvidence],
    rounding: Sequence[RoundingEvidence],
) -> Verdict:
    order = _order_of(seen, policy)
    findings = [*order.seen, *_of_receipts(seen.reports)]
    findings += [
        replace(each, where=report.subject) for report in unread for each in report.verdict.findings if not each.agrees
    ]
    findings += [finding for each in evidence for finding in each.findings]
    findings += [each.finding for each in rounding]
    # Too few tokens in one receipt are no open point: the evidence of all receipts counts.
    missing = [str(line) for each in seen.reports for line in each.missing if line.check != EVIDENCE]
    missing += order.open_lines
    missing += [f"{report.subject}: {line}" for report in unread for line in report.verdict.unavailable]
    missing += [line for each in evidence for line in each.unavailable]
    not_checked = [*order.not_checked, *(line for each in evidence for line in each.not_excluded)]
    if not seen.computed:
        missing.append(f"{EVIDENCE}: no receipt was computed")
    if seen.computed < len(seen.reports):
        not_checked.append(f"{len(seen.reports) - seen.computed} of {count} receipts beyond what they state")
    lines = [line for each in seen.reports for line in each.not_checked]
    return Verdict(
        tuple(findings),
        (*seen.refused, *_counted(missing)),
        (*not_checked, *_counted(lines)),
        (*dict.fromkeys(line for each in seen.reports for line in each.assumptions), CHOICE),
        VerdictCoverage(seen.computed, count, "receipts", "computed again with the promised model", seen.computed),
    )


def _power(pools: Sequence[Sequence[ReceiptReport]], card: ModelCard) -> tuple[tuple[CheatPower, ...], str]:
    """What the smallest pool shows of a cheat, or why that is not known; the answers of one key are a pool."""
    computed = [[each for each in pool if each.evidence is not None] for pool in pools]
    if not computed or not all(computed):
        return (), "not measured where nothing was computed"
    reasons = [each.unmeasured for pool in computed for each in pool if each.unmeasured]
    if reasons:
        return (), reasons[0]
    least = min(computed, key=lambda pool: sum(each.tokens for each in pool))
    wide = all(each.rounding is not None for each in least)
    opened = sum(was_opened(each.findings) for each in least)
    return power_at(card, sum(each.tokens for each in least), len(least), wide, opened), ""


def combined(evidence: Iterable[SamplerEvidence]) -> tuple[SamplerEvidence, ...]:
    """The evidence of several answers, summed per rule and per reason why it is undecided."""
    groups: dict[object, list[SamplerEvidence]] = defaultdict(list)
    for each in evidence:
        groups[each.rule, each.undecided].append(each)
    return tuple(map(combine, groups.values()))


def _order_of(seen: _Progress, policy: ReceiptPolicy) -> Findings:
    """What is known about the numbers and links of each key's receipts."""
    findings = Findings()
    for key, responses in seen.signed.items():
        order = check_order(_handed_over(responses), policy.complete, policy.journals)
        prefix = f"key {key[:16]}: " if len(seen.signed) > 1 else ""
        findings.seen += [replace(each, where=prefix + each.where) for each in order.seen]
        findings.not_checked += [prefix + line for line in order.not_checked]
        for line in order.open_lines:
            findings.leave_open("", prefix + line)
    if len(seen.signed) > 1:
        findings.not_checked.append(f"the order between receipts of {len(seen.signed)} keys")
    return findings


def _handed_over(responses: Sequence[Sequence[ReceiptContext]]) -> list[ReceiptContext]:
    """The receipts in order. If responses with several answers overlap in time, they are sorted by number."""
    receipts = [each for response in responses for each in response]
    firsts = [min(each.receipt.sequence for each in response) for response in responses]
    is_told_apart = len(receipts) == len(responses) or firsts != sorted(firsts)
    return receipts if is_told_apart else sorted(receipts, key=lambda each: each.receipt.sequence)


def _of_receipts(reports: Sequence[ReceiptReport]) -> list[Finding]:
    """Every objection with its receipt's number, and one finding for each check that always agreed."""
    objections: list[Finding] = []
    agreeing: Counter[str] = Counter()
    for report in reports:
        for finding in report.findings:
            if finding.agrees or finding.advisory:
                agreeing[finding.name] += 1
            else:
                objections.append(replace(finding, where=f"number {report.sequence}, {finding.where}".rstrip(", ")))
    doubtful = {each.name for each in objections} | {CHECK}
    kept = [replace(AGREES, name=name, where=f"{count} times") for name, count in agreeing.items()]
    return [*objections, *(each for each in kept if each.name not in doubtful)]


def _counted(lines: Sequence[str]) -> list[str]:
    """Each line once, with the number of receipts that have it."""
    return [line if count == 1 else f"{line} ({count} receipts)" for line, count in Counter(lines).items()]
