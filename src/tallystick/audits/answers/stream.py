"""Judges many receipts of one provider: their order, a computed sample, and the evidence of all together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Final, TypeVar

from tallystick.audits.answers.fingerprints import RoundingEvidence, summed
from tallystick.audits.answers.order import CHECK, check_order
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.power import SUBJECTS, CheatPower, power_at, power_lines
from tallystick.audits.answers.report import ReceiptReport, was_opened
from tallystick.audits.answers.sampler import SamplerEvidence, SamplerRule
from tallystick.audits.answers.verify import ReceiptContext, Verification, begin_verification, check_statements, compute
from tallystick.core.canonical_json import Json, encode
from tallystick.core.digests import Digest, digest, digest_bytes
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.formats.claims import ModelCard
from tallystick.verdicts.language_model import LanguageModel
from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import AGREES, Judgement, Outcome, Verdict, VerdictCoverage

if TYPE_CHECKING:
    from tallystick.audits.answers.reading import UnreadReport


EVIDENCE: Final = "evidence"
CHOICE: Final = "which answers are judged together was settled by the verifier, and none left out for what it showed"
Part = TypeVar("Part")
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


@dataclass
class StreamProgress:
    """Results of a stream so far, with the key of each report; receipts by key, grouped by response."""

    reports: list[ReceiptReport] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    computed: int = 0
    signed: dict[str, list[list[ReceiptContext]]] = field(default_factory=lambda: defaultdict(list))
    refused: list[str] = field(default_factory=list)

    def add_signed(self, context: ReceiptContext) -> None:
        """Add a receipt with a valid signature."""
        held = self.signed[context.response.receipt.key]
        if context.response.number == 0 or not held:
            held.append([])
        held[-1].append(context)


def is_sampled(nonce: bytes, receipt: Digest, share: float) -> bool:
    """Whether a receipt belongs to the sample; repeatable, and unpredictable without the nonce."""
    drawn = digest_bytes(digest("sample", encode({"nonce": nonce.hex(), "receipt": str(receipt)})))
    return int.from_bytes(drawn[:8], "big") < share * 2.0**64


def two_rungs(found: Verification) -> ReceiptReport:
    """Judge tokens and fingerprints with one pass."""
    compute(found)
    return found.report(2)


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
    seen = StreamProgress()
    for done, context in enumerate(contexts, 1):
        found = begin_verification(context, model, policy)
        if not found.findings.rejected:  # a signed receipt that cannot be judged still fills its number
            seen.add_signed(context)
        try:
            check_statements(found)
            if is_sampled(nonce, context.identity, policy.audit_sample):
                seen.reports.append(judge(found))
                seen.computed += found.numbers_fit
            else:
                seen.reports.append(found.report(0))
            seen.keys.append(context.response.receipt.key)
        except Refused as error:
            seen.refused.append(f"receipt number {context.receipt.sequence}: {error}")
        progress(done)
    return _report(seen, len(contexts) + len(unread), policy, nonce, model.card, unread)


def _report(
    seen: StreamProgress,
    count: int,
    policy: ReceiptPolicy,
    nonce: bytes,
    card: ModelCard,
    unread: Sequence[UnreadReport],
) -> StreamReport:
    pools = [*_pools(seen)]
    evidence = tuple(each for pool in pools for each in combined(_present(report.evidence for report in pool)))
    rounding = tuple(each for pool in pools for each in summed(_present(report.rounding for report in pool)))
    findings, not_checked, unplaced = _order_of(seen, policy)
    findings += _of_receipts(seen.reports)
    findings += [
        replace(each, where=report.subject) for report in unread for each in report.verdict.findings if not each.agrees
    ]
    findings += [finding for each in evidence for finding in each.findings]
    findings += [each.finding for each in rounding]
    # Too few tokens in one receipt are no open point: the evidence of all receipts counts.
    missing = [str(line) for each in seen.reports for line in each.missing if line.check != EVIDENCE]
    missing += unplaced
    missing += [f"{report.subject}: {line}" for report in unread for line in report.verdict.unavailable]
    missing += [line for each in evidence for line in each.unavailable]
    not_checked += [line for each in evidence for line in each.not_excluded]
    if not seen.computed:
        missing.append(f"{EVIDENCE}: no receipt was computed")
    if seen.computed < len(seen.reports):
        not_checked.append(f"{len(seen.reports) - seen.computed} of {count} receipts beyond what they state")
    lines = [line for each in seen.reports for line in each.not_checked]
    verdict = Verdict(
        tuple(findings),
        (*seen.refused, *_counted(missing)),
        (*not_checked, *_counted(lines)),
        (*dict.fromkeys(line for each in seen.reports for line in each.assumptions), CHOICE),
        VerdictCoverage(seen.computed, count, "receipts", "computed again with the promised model", seen.computed),
    )
    power, unmeasured = _power(pools, card)
    return StreamReport(
        nonce,
        policy.audit_sample,
        count,
        tuple(seen.reports),
        seen.computed,
        verdict,
        evidence,
        rounding,
        power,
        unmeasured,
        tuple(unread),
    )


def _pools(seen: StreamProgress) -> Iterator[list[ReceiptReport]]:
    """The reports on answers that are judged together: those of one key, all of the promised model."""
    for key in dict.fromkeys(seen.keys):
        yield [report for report, signer in zip(seen.reports, seen.keys, strict=True) if signer == key]


def _present(found: Iterable[Part | None]) -> Iterator[Part]:
    return (each for each in found if each is not None)


def _power(pools: Sequence[Sequence[ReceiptReport]], card: ModelCard) -> tuple[tuple[CheatPower, ...], str]:
    """What the smallest pool shows of a cheat, or why that is not known."""
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
    groups: dict[tuple[SamplerRule, str], list[SamplerEvidence]] = defaultdict(list)
    for each in evidence:
        groups[each.rule, each.undecided].append(each)
    return tuple(reduce(add, group) for group in groups.values())


def _order_of(seen: StreamProgress, policy: ReceiptPolicy) -> tuple[list[Finding], list[str], list[str]]:
    """What is found about numbers and links, what stays unchecked, and what could not be checked."""
    findings: list[Finding] = []
    not_checked: list[str] = []
    missing: list[str] = []
    for key, receipts in seen.signed.items():
        order = check_order(_handed_over(receipts), policy.complete, policy.journals)
        prefix = f"key {key[:16]}: " if len(seen.signed) > 1 else ""
        findings += [replace(each, where=prefix + each.where) for each in order.findings.seen]
        not_checked += [prefix + line for line in order.not_checked]
        missing += [prefix + line for line in order.missing]
    if len(seen.signed) > 1:
        not_checked.append(f"the order between receipts of {len(seen.signed)} keys")
    return findings, not_checked, missing


def _handed_over(responses: Sequence[Sequence[ReceiptContext]]) -> list[ReceiptContext]:
    """The receipts in order. If responses with several answers overlap in time, they are sorted by number."""
    receipts = [each for response in responses for each in response]
    firsts = [min(each.receipt.sequence for each in response) for response in responses]
    is_told_apart = len(receipts) == len(responses) or firsts != sorted(firsts)
    return receipts if is_told_apart else sorted(receipts, key=lambda each: each.receipt.sequence)


def _of_receipts(reports: Sequence[ReceiptReport]) -> list[Finding]:
    """Every objection with its receipt's number, and one finding for each check that always agreed."""
    found: list[Finding] = []
    agreeing: Counter[str] = Counter()
    for report in reports:
        for finding in report.findings:
            if finding.agrees or finding.advisory:
                agreeing[finding.name] += 1
            else:
                found.append(replace(finding, where=f"number {report.sequence}, {finding.where}".rstrip(", ")))
    doubtful = {each.name for each in found} | {CHECK}
    kept = [replace(AGREES, name=name, where=f"{count} times") for name, count in agreeing.items()]
    return [*found, *(each for each in kept if each.name not in doubtful)]


def _counted(lines: Sequence[str]) -> list[str]:
    """Each line once, with the number of receipts that have it."""
    return [line if count == 1 else f"{line} ({count} receipts)" for line, count in Counter(lines).items()]
