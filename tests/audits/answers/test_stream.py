"""Many receipts of one provider: order, sample, and the evidence of all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tallystick.audits.answers import statements, verify
from tallystick.audits.answers.order import check_order
from tallystick.audits.answers.response import Response
from tallystick.audits.answers.stream import is_sampled, verify_stream
from tallystick.audits.answers.subject import ReceiptContext
from tallystick.core.digests import digest
from tallystick.formats.receipt import Receipt
from tallystick.formats.signing import SigningKey, sign_receipt

COUNT = 5
NONCE = bytes(range(32))


@pytest.fixture(scope="module")
def receipts(answered: Callable[..., Any], language_model: Any, provider_key: Any) -> list[Any]:
    """Five signed receipts of one key, numbered and linked."""
    from tallystick.recording.receipts import ReceiptIssuer

    issuer = ReceiptIssuer(language_model, provider_key)
    return [
        answered(issuer=issuer, seed=seed, request_id=f"r{seed}", nonce=f"{seed:02x}").issued.signed
        for seed in range(COUNT)
    ]


@pytest.fixture(scope="module")
def verified(language_model: Any, short_policy: Any) -> Callable[..., Any]:
    """The report on a stream: `verified(receipts, complete=True, audit_sample=0.5)`."""

    def report_on(signed: list[Any], nonce: bytes = NONCE, **policy: Any) -> Any:
        asked = short_policy.model_copy(update={"demands": ()} | policy)
        subjects = contexts(signed)
        return verify_stream(subjects, language_model, asked, nonce)

    return report_on


def contexts(signed: list[Any]) -> list[ReceiptContext]:
    return [ReceiptContext(Response(receipt=each)) for each in signed]


def outcome_of(signed: list[Any], complete: bool = True) -> list[str]:
    order = check_order(contexts(signed), complete)
    return [each.where for each in order.seen if not each.agrees and not each.advisory]


def test_an_honest_stream_is_accepted(receipts: list[Any], verified: Callable[..., Any]) -> None:
    report = verified(receipts, complete=True)
    assert report.outcome == "accepted", report.verdict
    assert (report.receipts, report.computed, report.tokens) == (COUNT, COUNT, 16 * COUNT)
    assert {"sequence", "evidence", "signature"} <= {finding.name for finding in report.verdict.findings}
    assert json.dumps(report.to_json())
    assert report
    assert repr(report).startswith(f"<StreamReport accepted: {COUNT} of {COUNT} receipts computed again")


def test_every_receipt_is_encoded_and_checked_once(
    receipts: list[Any], verified: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()

    def counted(owner: Any, name: str) -> None:
        known = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            counts[name] += 1
            return known(*arguments)

        monkeypatch.setattr(owner, name, call)

    counted(Receipt, "to_bytes")
    counted(statements, "check_signature")
    for name in ("check_consistency", "check_model", "known_tokens", "judge_sampler"):
        counted(verify, name)
    assert verified(receipts, complete=True).computed == COUNT
    assert counts == dict.fromkeys(counts, COUNT)
    assert len(counts) == 6
    counts.clear()
    assert verified(receipts, audit_sample=0.0).computed == 0
    assert counts["check_signature"] == counts["to_bytes"] == counts["known_tokens"] == COUNT
    assert counts["judge_sampler"] == 0


def test_evidence_adds_up_until_it_is_enough(
    receipts: list[Any], verified: Callable[..., Any], short_policy: Any
) -> None:
    strict = short_policy.sampler.model_copy(update={"dishonest": 0.1, "beta": 0.01})
    one = verified(receipts[:1], sampler=strict)
    assert one.outcome == "inconclusive"
    assert any(line.startswith("evidence: ") for line in one.verdict.unavailable)
    assert verified(receipts, sampler=strict).outcome == "accepted"


def test_one_dishonest_receipt_rejects_the_stream(
    receipts: list[Any], verified: Callable[..., Any], resigned: Callable[..., Any]
) -> None:
    forged = [*receipts[:4], resigned(receipts[4], {"sampler.seed": 77})]
    report = verified(forged)
    assert report.outcome == "rejected"
    assert any("number 5" in finding.where for finding in report.verdict.objections)


def test_a_signed_token_that_the_model_lacks_rejects_the_stream(
    receipts: list[Any], verified: Callable[..., Any], resigned: Callable[..., Any], tokens_of: Callable[..., Any]
) -> None:
    strange = resigned(receipts[4], {"answer.tokens": tokens_of([300] * 16)})
    report = verified([*receipts[:4], strange])
    assert report.outcome == "rejected"
    (objection,) = report.verdict.objections
    assert (objection.name, objection.where) == ("numbers", "number 5")
    assert (report.computed, report.receipts) == (4, 5)


def test_a_receipt_beyond_what_the_policy_spends_leaves_no_gap(
    receipts: list[Any], verified: Callable[..., Any], answered: Callable[..., Any], language_model: Any
) -> None:
    from tallystick.recording.receipts import ReceiptIssuer

    issuer = ReceiptIssuer(language_model, SigningKey(bytes(range(32))))
    lengths = (16, 18, 16)
    signed = [
        answered(issuer=issuer, seed=number, request_id=f"r{number}", max_tokens=length).issued.signed
        for number, length in enumerate(lengths)
    ]
    most = signed[0].receipt.request.prompt.count + 16
    report = verified(signed, complete=True, tokens_max=most)
    assert report.outcome == "inconclusive", report.verdict
    assert "tokens_max" in report.verdict.unavailable[0]
    assert verified([signed[0], signed[2]], complete=True, tokens_max=most).outcome == "rejected"
    assert verified(signed, complete=True).outcome == "accepted"


def test_a_complete_stream_in_order_has_no_objection(receipts: list[Any]) -> None:
    assert outcome_of(receipts) == []
    assert outcome_of(receipts[1:3], complete=False) == []


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda found: [*found, found[1]], "number 2"),
        (lambda found: [found[0], *found[2:]], "gaps"),
        (lambda found: found[1:], "gaps"),
        (lambda found: [found[1], found[0], *found[2:]], "order"),
    ],
    ids=["replayed", "dropped", "first dropped", "reordered"],
)
def test_a_stream_that_is_not_whole_or_not_in_order_is_rejected(
    receipts: list[Any], verified: Callable[..., Any], change: Callable[[list[Any]], list[Any]], where: str
) -> None:
    assert outcome_of(change(receipts)) == [where]
    assert verified(change(receipts), complete=True).outcome == "rejected"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found[1:], "1 numbers are missing: 1"),
        (lambda found: [found[1], found[0], *found[2:]], "2 of 5 receipts are not where their numbers put them"),
    ],
    ids=["first dropped", "exchanged"],
)
def test_a_journal_without_its_first_record_or_with_two_exchanged_says_so_by_default(
    receipts: list[Any], verified: Callable[..., Any], change: Callable[[list[Any]], list[Any]], said: str
) -> None:
    report = verified(change(receipts))
    assert report.outcome == "accepted"  # a customer has its own receipts alone, in any order
    assert any(said in line for line in report.verdict.not_checked)
    assert not any("missing" in line or "not where" in line for line in verified(receipts).verdict.not_checked)


def test_gaps_are_named_where_they_are_to_be_expected(receipts: list[Any], verified: Callable[..., Any]) -> None:
    report = verified([receipts[0], receipts[3]])
    assert report.outcome == "accepted"
    assert any("2 numbers are missing: 2 to 3" in line for line in report.verdict.not_checked)


def test_two_receipts_under_one_number_are_rejected(receipts: list[Any], resigned: Callable[..., Any]) -> None:
    other = resigned(receipts[2], {"request.id": "other", "request.nonce": "ff"})
    assert outcome_of([*receipts, other], complete=False) == ["number 3"]


def test_two_answers_of_one_name_are_rejected(receipts: list[Any], resigned: Callable[..., Any]) -> None:
    again = resigned(receipts[2], {"request.id": receipts[0].receipt.request.id})
    assert "request.id" in outcome_of([receipts[0], again], complete=False)


def numbered(receipts: list[Any], resigned: Callable[..., Any], count: int = 3, **changes: Any) -> list[Any]:
    """Receipts as a server gives them to one request of several answers; `changes` are of the last."""
    found = []
    for number, each in enumerate(receipts[:count]):
        alike = {"request.id": f"r-{number}", "request.nonce": "ab"}
        found.append(resigned(each, alike | (changes if number == count - 1 else {})))
    return found


def test_the_answers_of_one_request_share_a_nonce(receipts: list[Any], resigned: Callable[..., Any]) -> None:
    """The seeds of these count upward, as those of the choices of one request do."""
    order = check_order(contexts(numbered(receipts, resigned)))
    [nonce] = [each for each in order.seen if each.where == "request.nonce"]
    assert nonce.agrees
    assert not any("nonce" in line or "binds none" in line for line in order.not_checked)


@pytest.mark.parametrize(
    "changes",
    [
        {"request.id": "other"},
        {"request.id": "q-2"},
        {"request.id": "r-3"},
        {"request.max_tokens": 17},
        {"request.prompt": {"count": 1, "digest": str(digest("tokens", b"another"))}},
        {"sampler.temperature": 0.5},
        {"sampler.seed": 9},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_nonce_under_which_two_requests_were_answered_is_told_and_accuses_nobody(
    receipts: list[Any], resigned: Callable[..., Any], changes: dict[str, Any]
) -> None:
    found = numbered(receipts, resigned, **changes)
    order = check_order(contexts(found))
    [nonce] = [each for each in order.seen if each.where == "request.nonce"]
    assert not nonce.agrees
    assert nonce.advisory
    assert any("ab in 3 receipts of different requests" in line for line in order.not_checked)


def test_a_nonce_that_a_customer_used_twice_rejects_no_stream(
    answered: Callable[..., Any], language_model: Any, provider_key: Any, verified: Callable[..., Any]
) -> None:
    from tallystick.recording.receipts import ReceiptIssuer

    issuer = ReceiptIssuer(language_model, provider_key)
    made = [answered(issuer=issuer, seed=9, request_id=name, nonce="ab").issued.signed for name in ("x", "y")]
    assert verified(made).outcome == "accepted"
    assert verified([*made, made[0]]).outcome == "rejected"  # one receipt for two requests


def test_a_link_that_no_honest_journal_has_is_rejected(receipts: list[Any], resigned: Callable[..., Any]) -> None:
    first = resigned(receipts[0], {"previous": str(digest("receipt", b"another"))})
    assert outcome_of([first], complete=False) == ["number 1"]
    none = resigned(receipts[2], {"previous": None})
    assert outcome_of([none], complete=False) == ["number 3"]
    skipped = resigned(receipts[3], {"previous": str(receipts[0].receipt.identity)})
    assert outcome_of([receipts[0], skipped], complete=False) == ["number 4"]


@pytest.fixture(scope="module")
def others(answered: Callable[..., Any], language_model: Any, provider_key: Any) -> list[Any]:
    """Three receipts of another journal of the same key."""
    from tallystick.recording.receipts import ReceiptIssuer

    issuer = ReceiptIssuer(language_model, provider_key)
    return [
        answered(issuer=issuer, seed=seed, request_id=f"s{seed}", nonce=f"{seed:02x}ff").issued.signed
        for seed in range(10, 13)
    ]


@pytest.mark.parametrize("mix", [lambda a, b: [*a, *b], lambda a, b: [b[0], a[0], *b[1:], *a[1:]]])
def test_two_whole_journals_of_one_key_are_accepted_and_counted(
    receipts: list[Any], others: list[Any], verified: Callable[..., Any], mix: Callable[..., list[Any]]
) -> None:
    report = verified(mix(receipts, others))
    assert report.outcome == "accepted", report.verdict
    told = " / ".join(report.verdict.not_checked)
    assert "2 journals of one key, each from number 1" in told
    assert told.count("were withheld") == 2
    assert "missing" not in told
    assert verified(mix(receipts, others), complete=True, journals=2).outcome == "accepted"


def test_a_stream_that_must_be_complete_has_as_many_journals_as_the_policy_accepts(
    receipts: list[Any], others: list[Any], verified: Callable[..., Any]
) -> None:
    report = verified([*receipts, *others], complete=True)
    assert report.outcome == "rejected"
    assert [each.detail for each in report.verdict.objections] == ["2 journals of one key, and the policy accepts 1"]


def test_a_journal_for_each_answer_is_counted_and_never_complete(
    answered: Callable[..., Any], language_model: Any, provider_key: Any, verified: Callable[..., Any]
) -> None:
    from tallystick.recording.receipts import ReceiptIssuer

    made = [
        answered(issuer=ReceiptIssuer(language_model, provider_key), seed=seed, request_id=f"t{seed}").issued.signed
        for seed in range(3)
    ]
    assert {each.receipt.sequence for each in made} == {1}
    report = verified(made)
    assert any("3 journals of one key" in line for line in report.verdict.not_checked)
    assert any("whether the key has other journals" in line for line in report.verdict.not_checked)
    assert verified(made, complete=True).outcome == "rejected"


def test_a_fork_within_one_journal_is_rejected_beside_a_second_journal(
    receipts: list[Any], others: list[Any], resigned: Callable[..., Any]
) -> None:
    fork = resigned(receipts[3], {"request.id": "other", "request.nonce": "ee"})
    assert outcome_of([*receipts, *others, fork], complete=False) == ["number 4"]
    assert outcome_of([fork, receipts[3], *others], complete=False) == [
        "number 4"
    ]  # also where the one before is not here


@pytest.mark.parametrize(
    ("place", "where"),
    [(1, "number 3"), (2, "number 4")],
)
def test_an_exchanged_record_is_no_record_of_a_second_journal(
    receipts: list[Any],
    others: list[Any],
    resigned: Callable[..., Any],
    verified: Callable[..., Any],
    place: int,
    where: str,
) -> None:
    """The liar signs another answer in the place of one, and may say that the rest is of another journal."""
    exchanged = [*receipts]
    exchanged[place] = resigned(
        receipts[place], {"sampler.seed": receipts[place].receipt.sampler.seed, "request.nonce": "ee"}
    )
    for stream in (exchanged, [*exchanged, *others]):
        report = verified(stream)
        assert report.outcome == "inconclusive"
        assert any(
            f"sequence: {where}: " in line and "one was exchanged" in line for line in report.verdict.unavailable
        )
        assert verified(stream, complete=True, journals=2).outcome == "rejected"


def test_one_number_twice_stays_open_where_no_link_shows_two_journals(
    receipts: list[Any], others: list[Any], verified: Callable[..., Any]
) -> None:
    report = verified([receipts[2], others[2]])
    assert report.outcome == "inconclusive"
    assert any("number 3: two different receipts under one number" in line for line in report.verdict.unavailable)
    assert verified([*receipts[:3], others[2]]).outcome == "inconclusive"
    assert verified([*receipts[:3], *others]).outcome == "accepted"


def test_a_missing_record_is_named_by_its_journal(
    receipts: list[Any], others: list[Any], verified: Callable[..., Any]
) -> None:
    name = others[0].receipt.identity[:19]
    found = [*receipts[:3], receipts[4], *others]
    assert any("number 5" in line for line in verified(found).verdict.not_checked)
    assert verified(found, complete=True, journals=2).outcome == "rejected"
    assert any(f"{name}: whether receipts after number 3" in line for line in verified(found).verdict.not_checked)


def test_names_are_compared_within_a_journal(
    receipts: list[Any], answered: Callable[..., Any], language_model: Any, provider_key: Any
) -> None:
    from tallystick.recording.receipts import ReceiptIssuer

    issuer = ReceiptIssuer(language_model, provider_key)
    same = answered(issuer=issuer, seed=20, request_id="r0", nonce="cc").issued.signed
    assert outcome_of([*receipts, same], complete=False) == []
    later = answered(issuer=issuer, seed=21, request_id="r1", nonce="dd").issued.signed
    assert outcome_of([*receipts, later], complete=False) == ["request.id"]  # no link shows another journal


def test_receipts_with_a_false_signature_have_no_place_in_the_order(
    receipts: list[Any], verified: Callable[..., Any]
) -> None:
    stray = receipts[0].model_copy(update={"signature": "00" * 64})
    objections = verified([*receipts[1:], stray]).verdict.objections
    assert {finding.name for finding in objections} == {"signature"}


def test_each_key_has_its_own_order(receipts: list[Any], verified: Callable[..., Any]) -> None:
    other = SigningKey(bytes(32))
    first = Receipt.from_json(receipts[0].receipt.to_json(), "receipt")
    report = verified([*receipts, sign_receipt(first, other)], complete=True)
    assert report.outcome == "accepted"
    assert any("2 keys" in line for line in report.verdict.not_checked)


def test_the_sample_is_repeatable_and_of_the_right_size() -> None:
    names = [digest("receipt", str(number).encode()) for number in range(4000)]
    chosen = [name for name in names if is_sampled(NONCE, name, 0.25)]
    assert chosen == [name for name in names if is_sampled(NONCE, name, 0.25)]
    assert chosen != [name for name in names if is_sampled(bytes(32), name, 0.25)]
    assert 880 <= len(chosen) <= 1120
    assert [is_sampled(NONCE, name, 1.0) for name in names[:50]] == [True] * 50
    assert not any(is_sampled(NONCE, name, 0.0) for name in names[:50])


def test_what_is_not_in_the_sample_is_judged_by_its_statements_alone(
    receipts: list[Any], verified: Callable[..., Any], resigned: Callable[..., Any]
) -> None:
    none = verified(receipts, audit_sample=0.0)
    assert (none.outcome, none.computed) == ("inconclusive", 0)
    nonce = next(bytes([n]) for n in range(256) if is_sampled(bytes([n]), receipts[0].receipt.identity, 0.5))
    half = verified(receipts, nonce, audit_sample=0.5)
    assert half.computed > 0
    assert half.outcome == "accepted"
    assert half.computed == COUNT or any("beyond what they state" in line for line in half.verdict.not_checked)
    other_model = resigned(receipts[4], {"model": str(digest("model", b"another"))})
    assert verified([*receipts[:4], other_model], audit_sample=0.0).outcome == "rejected"


def test_the_chance_to_see_a_bad_receipt_is_stated(receipts: list[Any], verified: Callable[..., Any]) -> None:
    assert verified(receipts).detection["0.1"] == pytest.approx(1 - 0.9**COUNT)


def test_nothing_is_no_order() -> None:
    assert check_order([]).seen == []
