"""Checks the order of a provider's receipts: numbers and request ids are unique, and each names the one before."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
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

    In a stream that must be `complete`, a missing number or a wrong order is an objection. Otherwise both are normal: a
    customer sees only its own receipts, and may give them in any order.
    """

    complete: bool = False
    findings: Findings = field(default_factory=Findings)
    not_checked: list[str] = field(default_factory=list)


def check_order(receipts: Sequence[ReceiptContext], complete: bool = False) -> ReceiptOrder:
    """Check the receipts of one key, in the order in which they were received."""
    order = ReceiptOrder(complete)
    if not receipts:
        return order
    distinct = list(_without_replays(order, receipts))
    _check_numbers(order, distinct)
    _check_names(order, distinct)
    _check_nonces(order, distinct)
    ascending = sorted(distinct, key=lambda each: each.receipt.sequence)
    _check_sorted(order, distinct, ascending)
    _check_gaps(order, ascending)
    _check_links(order, ascending)
    return order


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


def _check_numbers(order: ReceiptOrder, receipts: Sequence[ReceiptContext]) -> None:
    by_number: dict[int, list[ReceiptContext]] = defaultdict(list)
    for receipt in receipts:
        by_number[receipt.receipt.sequence].append(receipt)
    doubled = [number for number, found in by_number.items() if len(found) > 1]
    for number in doubled:
        line = "two different receipts under one number: the provider equivocates"
        order.findings.note(DIFFERS, CHECK, f"number {number}", line)
    if not doubled:
        order.findings.note(AGREES, CHECK, "numbers", "each once")


def _check_names(order: ReceiptOrder, receipts: Sequence[ReceiptContext]) -> None:
    """Check that no two receipts have the same request id."""
    names = Counter(each.receipt.request.id for each in receipts)
    doubled = sorted(name for name, count in names.items() if count > 1)
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


def _check_sorted(order: ReceiptOrder, receipts: Sequence[ReceiptContext], ascending: Sequence[ReceiptContext]) -> None:
    moved = sum(a is not b for a, b in zip(receipts, ascending, strict=True))
    detail = f"{moved} of {len(receipts)} receipts are not where their numbers put them" if moved else ""
    finding = Finding(float(moved), 0.0, CHECK, "order", detail, advisory=not order.complete)
    order.findings.note(finding)
    if moved and not order.complete:
        order.not_checked.append(f"{detail}; a journal is in their order, and `complete` in a policy demands one")


def _check_gaps(order: ReceiptOrder, ascending: Sequence[ReceiptContext]) -> None:
    numbers = [each.receipt.sequence for each in ascending]
    is_one_response = ascending[0].response.answers == len(ascending)
    edges = numbers if is_one_response and not order.complete else [0, *numbers]
    gaps = [(a + 1, b - 1) for a, b in pairwise(edges) if b > a + 1]
    missing = sum(last - first + 1 for first, last in gaps)
    shown = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in gaps[:SHOWN]) + (" …" if gaps[SHOWN:] else "")
    detail = f"{missing} numbers are missing: {shown}" if missing else ""
    order.findings.note(Finding(float(missing), 0.0, CHECK, "gaps", detail, advisory=not order.complete))
    if missing and not order.complete:
        order.not_checked.append(f"{detail}; they may be other customers'")
    order.not_checked.append(f"whether receipts after number {numbers[-1]} were withheld")


def _check_links(order: ReceiptOrder, ascending: Sequence[ReceiptContext]) -> None:
    """Check that each receipt names the one with the number before it."""
    held: dict[int, set[Digest]] = defaultdict(set)
    for each in ascending:
        held[each.receipt.sequence].add(each.identity)
    links = [each for each in ascending if each.receipt.sequence - 1 in held]
    broken = [each for each in links if each.receipt.previous not in held[each.receipt.sequence - 1]]
    broken += [each for each in ascending if (each.receipt.sequence == 1) != (each.receipt.previous is None)]
    for each in broken[:SHOWN]:
        where = f"number {each.receipt.sequence}"
        order.findings.note(DIFFERS, CHECK, where, "does not name the receipt before it")
    if links and not broken:
        order.findings.note(AGREES, CHECK, f"{len(links)} links", "each names the one before")
