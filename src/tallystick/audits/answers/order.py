"""Checks the order of a provider's receipts: in a journal, numbers and request ids are unique, and links hold.

A journal of a key begins with a receipt that is number 1. A receipt belongs to it if held receipts link it to that one.
A provider can begin a journal at any time, so journals are counted, and what is linked to none is not taken for another
one: where it contradicts the others, it stays open.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from tallystick.audits.answers.report import shown
from tallystick.audits.answers.response import split_name
from tallystick.audits.answers.subject import ReceiptContext
from tallystick.core.digests import Digest
from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import DIFFERS, Findings

CHECK: Final = "sequence"
SHOWN: Final = 3


def check_order(receipts: Sequence[ReceiptContext], complete: bool = False, journals: int = 1) -> Findings:
    """Check the receipts of one key, in the order in which they were received.

    In a stream that must be `complete`, a missing number, a wrong order or a journal more than `journals` is an
    objection. Otherwise these are normal: a customer sees only its own receipts, and may give them in any order.
    """
    findings = Findings()
    if not receipts:
        return findings
    distinct = list(_without_replays(findings, receipts))
    firsts = _journals(distinct)
    _check_numbers(findings, distinct, firsts, complete)
    _check_links(findings, distinct, complete)
    _check_names(findings, distinct, firsts)
    _check_nonces(findings, distinct)
    _check_journals(findings, distinct, firsts, complete, journals)
    return findings


def _object_or_leave_open(findings: Findings, number: int, line: str, complete: bool) -> None:
    """Note what honest receipts of two journals can show too: an objection in a complete stream alone."""
    if complete:
        findings.differs(CHECK, f"number {number}", line)
    else:
        findings.leave_open(CHECK, f"number {number}: {line}, or they are of two journals")


def _journals(receipts: Sequence[ReceiptContext]) -> dict[Digest, Digest]:
    """The first receipt of the journal of each receipt that held receipts link to one."""
    firsts: dict[Digest, Digest] = {}
    for each in sorted(receipts, key=lambda each: each.receipt.sequence):
        before = each.receipt.previous
        if each.receipt.sequence == 1 and before is None:
            firsts[each.identity] = each.identity
        elif before in firsts:
            firsts[each.identity] = firsts[before]
    return firsts


def _check_journals(
    findings: Findings,
    receipts: Sequence[ReceiptContext],
    firsts: Mapping[Digest, Digest],
    complete: bool,
    journals: int,
) -> None:
    """Check order and gaps in each journal; receipts that nothing links belong to the journal where there is one."""
    names = list(dict.fromkeys(firsts.values()))
    if len(names) < 2:
        _check_journal(findings, receipts, "", complete)
    else:
        for name in names:
            members = [each for each in receipts if firsts.get(each.identity) == name]
            _check_journal(findings, members, f"{name[:19]}: ", complete)
        more = max(len(names) - journals, 0) if complete else 0
        detail = f"{len(names)} journals of one key, and the policy accepts {journals}" if more else ""
        findings.note(Finding(float(more), 0.0, CHECK, "journals", detail))
        findings.not_checked.append(
            f"{len(names)} journals of one key, each from number 1; which answers came first is not shown between them"
        )
        if unlinked := [each.receipt.sequence for each in receipts if each.identity not in firsts]:
            numbers = ", ".join(map(str, unlinked[:SHOWN])) + (" …" if unlinked[SHOWN:] else "")
            line = f"{len(unlinked)} receipts are linked to none of {len(names)} journals: number {numbers}"
            findings.not_checked.append(line)
            findings.note(Finding(float(len(unlinked)), 0.0, CHECK, "journals", line, advisory=not complete))
    findings.not_checked.append("whether the key has other journals, which were not handed over")


def _check_journal(findings: Findings, receipts: Sequence[ReceiptContext], name: str, complete: bool) -> None:
    """Check that receipts stand in the order of their numbers, and that no number is missing."""
    ascending = sorted(receipts, key=lambda each: each.receipt.sequence)
    moved = sum(a is not b for a, b in zip(receipts, ascending, strict=True))
    detail = f"{name}{moved} of {len(receipts)} receipts are not where their numbers put them" if moved else ""
    findings.note(Finding(float(moved), 0.0, CHECK, "order", detail, advisory=not complete))
    if moved and not complete:
        line = f"{detail}; a journal is in their order, and `complete` in a policy demands one"
        findings.not_checked.append(line)
    numbers = [each.receipt.sequence for each in ascending]
    is_one_response = ascending[0].response.answers == len(ascending)
    edges = numbers if is_one_response and not complete else [0, *numbers]
    gaps = [(a + 1, b - 1) for a, b in pairwise(edges) if b > a + 1]
    missing = sum(last - first + 1 for first, last in gaps)
    spans = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in gaps[:SHOWN]) + (" …" if gaps[SHOWN:] else "")
    detail = f"{name}{missing} numbers are missing: {spans}" if missing else ""
    findings.note(Finding(float(missing), 0.0, CHECK, "gaps", detail, advisory=not complete))
    if missing and not complete:
        findings.not_checked.append(f"{detail}; they may be other customers'")
    findings.not_checked.append(f"{name}whether receipts after number {numbers[-1]} were withheld")


def _without_replays(findings: Findings, receipts: Sequence[ReceiptContext]) -> Iterator[ReceiptContext]:
    """The receipts without repeated ones, which are objections: one answer cannot serve two requests."""
    seen: dict[Digest, int] = {}
    replays = 0
    for place, receipt in enumerate(receipts, 1):
        first = seen.setdefault(receipt.identity, place)
        if first == place:
            yield receipt
        else:
            replays += 1
            where = f"number {receipt.receipt.sequence}"
            findings.differs(CHECK, where, f"receipt {place} is receipt {first} again: replayed")
    if not replays:
        findings.agrees(CHECK, f"{len(receipts)} receipts", "no receipt twice")


def _check_numbers(
    findings: Findings, receipts: Sequence[ReceiptContext], firsts: Mapping[Digest, Digest], complete: bool
) -> None:
    """Check that a journal has each number once, and goes on from each receipt in one way."""
    by_number: dict[int, list[ReceiptContext]] = defaultdict(list)
    for receipt in receipts:
        by_number[receipt.receipt.sequence].append(receipt)
    forks = Counter[Digest | None](each.receipt.previous for each in receipts if each.receipt.previous is not None)
    is_clean = True
    for number, alike in by_number.items():
        if any(forks[each.receipt.previous] > 1 for each in alike):
            line = "two different receipts after one and the same: the provider equivocates"
            findings.differs(CHECK, f"number {number}", line)
            is_clean = False
        elif _may_be_one_journal(alike, firsts):
            _object_or_leave_open(findings, number, "two different receipts under one number", complete)
            is_clean = False
    if is_clean:
        findings.agrees(CHECK, "numbers", "each once in a journal")


def _may_be_one_journal(receipts: Sequence[ReceiptContext], firsts: Mapping[Digest, Digest]) -> bool:
    """Whether two of the receipts may be of one journal: they are of different ones only if links show it."""
    shown = {firsts[each.identity] for each in receipts if each.identity in firsts}
    return len(receipts) > 1 and len(shown) < len(receipts)


def _check_names(findings: Findings, receipts: Sequence[ReceiptContext], firsts: Mapping[Digest, Digest]) -> None:
    """Check that no two receipts of a journal have the same request id."""
    by_name: dict[str, list[ReceiptContext]] = defaultdict(list)
    for each in receipts:
        by_name[each.receipt.request.id].append(each)
    doubled = sorted(name for name, alike in by_name.items() if _may_be_one_journal(alike, firsts))
    for name in doubled[:SHOWN]:
        findings.differs(CHECK, "request.id", f"{name} in more than one receipt")
    if not doubled:
        findings.agrees(CHECK, "request.id")


def _check_nonces(findings: Findings, receipts: Sequence[ReceiptContext]) -> None:
    """Check that each nonce belongs to one request; otherwise a customer used it twice or repeated a request.

    That is not the provider's fault, so the finding is advisory. A receipt with a wrong nonce is found by comparing it
    with its own request.
    """
    by_nonce: dict[str, list[ReceiptContext]] = defaultdict(list)
    for each in receipts:
        if each.receipt.request.nonce is not None:
            by_nonce[each.receipt.request.nonce].append(each)
    doubled = sorted(nonce for nonce, alike in by_nonce.items() if not _is_one_request(alike))
    for nonce in doubled[:SHOWN]:
        count = len(by_nonce[nonce])
        line = f"{shown(nonce)} in {count} receipts of different requests"
        findings.note(DIFFERS, CHECK, "request.nonce", line, advisory=True)
        findings.not_checked.append(f"{line}, so it binds none of them: a nonce is for one request")
    if not doubled:
        findings.agrees(CHECK, "request.nonce")


def _is_one_request(receipts: Sequence[ReceiptContext]) -> bool:
    """Whether receipts are the answers to one request: the same name with numbers, and seeds that count with them."""
    if len(receipts) == 1:
        return True
    return None not in (requests := {_asked(each) for each in receipts}) and len(requests) == 1


def _asked(context: ReceiptContext) -> tuple[object, ...] | None:
    """The values that all answers to one request share; None for a receipt whose name has no number."""
    receipt = context.receipt
    base, number = split_name(receipt.request.id)
    if number is None:
        return None
    sampler = receipt.sampler
    settings = sampler.model_copy(update={"seed": 0}), sampler.seed - number
    return base, receipt.request.prompt.digest, receipt.request.max_tokens, *settings


def _check_links(findings: Findings, receipts: Sequence[ReceiptContext], complete: bool) -> None:
    """Check that each receipt names the one with the number before it, and number 1 none.

    A receipt that names another one than is held under that number may follow it in a journal that is not whole here.
    """
    numbers = {each.identity: each.receipt.sequence for each in receipts}
    known = set(numbers.values())
    broken, open_ones, links = [], [], 0
    for each in sorted(receipts, key=lambda each: each.receipt.sequence):
        number, before = each.receipt.sequence, each.receipt.previous
        links += before in numbers
        if (number == 1) != (before is None) or (before in numbers and numbers[before] != number - 1):
            broken.append(number)
        elif before is not None and before not in numbers and number - 1 in known:
            open_ones.append(number)
    for number in broken[:SHOWN]:
        findings.differs(CHECK, f"number {number}", "does not name the receipt before it")
    for number in open_ones[:SHOWN]:
        line = f"names another receipt before it than the number {number - 1} that is here: one was exchanged"
        _object_or_leave_open(findings, number, line, complete)
    if links and not broken and not open_ones:
        findings.agrees(CHECK, f"{links} links", "each names the one before")
