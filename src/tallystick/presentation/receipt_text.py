"""The reports on receipts as text: on one, and on a stream of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tallystick.presentation.verdict_text import CheckCost, VerdictText

if TYPE_CHECKING:
    from tallystick.answers.report import ReceiptReport
    from tallystick.answers.stream import StreamReport

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
