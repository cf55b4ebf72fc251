"""Checks the order of a provider's receipts: in a journal, numbers and request ids are unique, and links hold.

A journal of a key begins with a receipt that is number 1. A receipt belongs to it if held receipts link it to that one.
A provider can begin a journal at any time, so journals are counted, and what is linked to none is not taken for another
one: where it contradicts the others, it stays open.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tallystick.answers.report import shown
from tallystick.answers.response import split_name
from tallystick.answers.verify import ReceiptContext
from tallystick.commitments.digests import Digest
from tallystick.judging.findings import AGREES, DIFFERS, Findings
from tallystick.tolerances.tolerance import Finding

CHECK: Final = "sequence"
SHOWN: Final = 3


@dataclass
class ReceiptOrder:
    """Findings about the numbers of one key's receipts.

    In a stream that must be `complete`, a missing number, a wrong order or a journal more than `journals` is an
    objection. Otherwise these are normal: a customer sees only its own receipts, and may give them in any order.
    """

    complete: bool = False
    journals: int = 1
    findings: Findings = field(default_factory=Findings)
    not_checked: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def leave_open(self, where: str, line: str) -> None:
        """Note what honest receipts of two journals can show too: an objection in a complete stream alone."""
        if self.complete:
            self.findings.note(DIFFERS, CHECK, where, line)
        else:
            self.missing.append(f"{CHECK}: {where}: {line}, or they are of two journals")


def check_order(receipts: Sequence[ReceiptContext], complete: bool = False, journals: int = 1) -> ReceiptOrder:
    """Check the receipts of one key, in the order in which they were received."""
    order = ReceiptOrder(complete, journals)
    if not receipts:
        return order
    distinct = list(_without_replays(order, receipts))
    firsts = _journals(distinct)
    _check_numbers(order, distinct, firsts)
    _check_links(order, distinct)
    _check_names(order, distinct, firsts)
    _check_nonces(order, distinct)
    _check_journals(order, distinct, firsts)
    return order


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


def _check_journals(order: ReceiptOrder, receipts: Sequence[ReceiptContext], firsts: Mapping[Digest, Digest]) -> None:
    """Check order and gaps in each journal; receipts that nothing links belong to the journal where there is one."""
    names = list(dict.fromkeys(firsts.values()))
    if len(names) < 2:
        _check_journal(order, receipts, "")
    else:
        for name in names:
            _check_journal(order, [each for each in receipts if firsts.get(each.identity) == name], f"{name[:19]}: ")
        _count_journals(order, names, [each for each in receipts if each.identity not in firsts])
    order.not_checked.append("whether the key has other journals, which were not handed over")


def _count_journals(order: ReceiptOrder, names: Sequence[Digest], unlinked: Sequence[ReceiptContext]) -> None:
    line = f"{len(names)} journals of one key, each from number 1; which answers came first is not shown between them"
    more = max(len(names) - order.journals, 0) if order.complete else 0
    detail = f"{len(names)} journals of one key, and the policy accepts {order.journals}" if more else ""
    order.findings.note(Finding(float(more), 0.0, CHECK, "journals", detail))
    order.not_checked.append(line)
    if unlinked:
        numbers = ", ".join(str(each.receipt.sequence) for each in unlinked[:SHOWN])
        more_of_them = " …" if len(unlinked) > SHOWN else ""
        line = f"{len(unlinked)} receipts are linked to none of {len(names)} journals: number {numbers}{more_of_them}"
        order.not_checked.append(line)
        order.findings.note(Finding(float(len(unlinked)), 0.0, CHECK, "journals", line, advisory=not order.complete))


def _check_journal(order: ReceiptOrder, receipts: Sequence[ReceiptContext], name: str) -> None:
    ascending = sorted(receipts, key=lambda each: each.receipt.sequence)
    _check_sorted(order, receipts, ascending, name)
    _check_gaps(order, ascending, name)


def _without_replays(order: ReceiptOrder, receipts: Sequence[ReceiptContext]) -> Iterator[ReceiptContext]:
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
            order.findings.note(DIFFERS, CHECK, where, f"receipt {place} is receipt {first} again: replayed")
    if not replays:
        order.findings.note(AGREES, CHECK, f"{len(receipts)} receipts", "no receipt twice")


def _check_numbers(order: ReceiptOrder, receipts: Sequence[ReceiptContext], firsts: Mapping[Digest, Digest]) -> None:
    """Check that a journal has each number once, and goes on from each receipt in one way."""
    by_number: dict[int, list[ReceiptContext]] = defaultdict(list)
    for receipt in receipts:
        by_number[receipt.receipt.sequence].append(receipt)
    forks = Counter[Digest | None](each.receipt.previous for each in receipts if each.receipt.previous is not None)
    is_clean = True
    for number, found in by_number.items():
        if any(forks[each.receipt.previous] > 1 for each in found):
            line = "two different receipts after one and the same: the provider equivocates"
            order.findings.note(DIFFERS, CHECK, f"number {number}", line)
            is_clean = False
        elif _may_be_one_journal(found, firsts):
            order.leave_open(f"number {number}", "two different receipts under one number")
            is_clean = False
    if is_clean:
        order.findings.note(AGREES, CHECK, "numbers", "each once in a journal")


def _may_be_one_journal(receipts: Sequence[ReceiptContext], firsts: Mapping[Digest, Digest]) -> bool:
    """Whether two of the receipts may be of one journal: they are of different ones only if links show it."""
    shown = {firsts[each.identity] for each in receipts if each.identity in firsts}
    return len(receipts) > 1 and len(shown) < len(receipts)


def _check_names(order: ReceiptOrder, receipts: Sequence[ReceiptContext], firsts: Mapping[Digest, Digest]) -> None:
    """Check that no two receipts of a journal have the same request id."""
    by_name: dict[str, list[ReceiptContext]] = defaultdict(list)
    for each in receipts:
        by_name[each.receipt.request.id].append(each)
    doubled = sorted(name for name, found in by_name.items() if _may_be_one_journal(found, firsts))
    for name in doubled[:SHOWN]:
        order.findings.note(DIFFERS, CHECK, "request.id", f"{name} in more than one receipt")
    if not doubled:
        order.findings.note(AGREES, CHECK, "request.id")


def _check_nonces(order: ReceiptOrder, receipts: Sequence[ReceiptContext]) -> None:
    """Check that each nonce belongs to one request; otherwise a customer used it twice or repeated a request.

    That is not the provider's fault, so the finding is advisory. A receipt with a wrong nonce is found by comparing it
    with its own request.
    """
    by_nonce: dict[str, list[ReceiptContext]] = defaultdict(list)
    for each in receipts:
        if each.receipt.request.nonce is not None:
            by_nonce[each.receipt.request.nonce].append(each)
    doubled = sorted(nonce for nonce, found in by_nonce.items() if not _is_one_request(found))
    for nonce in doubled[:SHOWN]:
        count = len(by_nonce[nonce])
        line = f"{shown(nonce)} in {count} receipts of different requests"
        order.findings.note(DIFFERS, CHECK, "request.nonce", line, advisory=True)
        order.not_checked.append(f"{line}, so it binds none of them: a nonce is for one request")
    if not doubled:
        order.findings.note(AGREES, CHECK, "request.nonce")


def _is_one_request(receipts: Sequence[ReceiptContext]) -> bool:
    """Whether receipts are the answers to one request: the same name with numbers, and seeds that count with them."""
    if len(receipts) == 1:
        return True
    return None not in (asked := {_asked(each) for each in receipts}) and len(asked) == 1


def _asked(context: ReceiptContext) -> tuple[object, ...] | None:
    """The values that all answers to one request share; None for a receipt whose name has no number."""
    receipt = context.receipt
    base, number = split_name(receipt.request.id)
    if number is None:
        return None
    sampler = receipt.sampler
    settings = sampler.model_copy(update={"seed": 0}), sampler.seed - number
    return base, receipt.request.prompt.digest, receipt.request.max_tokens, *settings


def _check_sorted(
    order: ReceiptOrder, receipts: Sequence[ReceiptContext], ascending: Sequence[ReceiptContext], name: str
) -> None:
    moved = sum(a is not b for a, b in zip(receipts, ascending, strict=True))
    detail = f"{name}{moved} of {len(receipts)} receipts are not where their numbers put them" if moved else ""
    finding = Finding(float(moved), 0.0, CHECK, "order", detail, advisory=not order.complete)
    order.findings.note(finding)
    if moved and not order.complete:
        order.not_checked.append(f"{detail}; a journal is in their order, and `complete` in a policy demands one")


def _check_gaps(order: ReceiptOrder, ascending: Sequence[ReceiptContext], name: str) -> None:
    numbers = [each.receipt.sequence for each in ascending]
    is_one_response = ascending[0].response.answers == len(ascending)
    edges = numbers if is_one_response and not order.complete else [0, *numbers]
    gaps = [(a + 1, b - 1) for a, b in pairwise(edges) if b > a + 1]
    missing = sum(last - first + 1 for first, last in gaps)
    shown = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in gaps[:SHOWN]) + (" …" if gaps[SHOWN:] else "")
    detail = f"{name}{missing} numbers are missing: {shown}" if missing else ""
    order.findings.note(Finding(float(missing), 0.0, CHECK, "gaps", detail, advisory=not order.complete))
    if missing and not order.complete:
        order.not_checked.append(f"{detail}; they may be other customers'")
    order.not_checked.append(f"{name}whether receipts after number {numbers[-1]} were withheld")


def _check_links(order: ReceiptOrder, receipts: Sequence[ReceiptContext]) -> None:
    """Check that each receipt names the one with the number before it, and number 1 none.

    A receipt that names another one than is held under that number may follow it in a journal that is not whole here.
    """
    numbers = {each.identity: each.receipt.sequence for each in receipts}
    held = set(numbers.values())
    broken, open_ones, links = [], [], 0
    for each in sorted(receipts, key=lambda each: each.receipt.sequence):
        number, before = each.receipt.sequence, each.receipt.previous
        links += before in numbers
        if (number == 1) != (before is None) or (before in numbers and numbers[before] != number - 1):
            broken.append(number)
        elif before is not None and before not in numbers and number - 1 in held:
            open_ones.append(number)
    for number in broken[:SHOWN]:
        order.findings.note(DIFFERS, CHECK, f"number {number}", "does not name the receipt before it")
    for number in open_ones[:SHOWN]:
        line = f"names another receipt before it than the number {number - 1} that is here: one was exchanged"
        order.leave_open(f"number {number}", line)
    if links and not broken and not open_ones:
        order.findings.note(AGREES, CHECK, f"{links} links", "each names the one before")
