"""What was asked decides what is compared: several answers to one request, and the form that was promised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tallystick.audits.answers.reading import read_responses
from tallystick.audits.answers.request import ExpectedRequest
from tallystick.audits.answers.response import split_name
from tallystick.audits.answers.stream import verify_stream
from tallystick.audits.answers.subject import ReceiptContext
from tallystick.audits.answers.verify import verify_receipt

NONCE = bytes(range(32))
BODY = {"prompt": "The stick is", "n": 2, "seed": 3, "temperature": 0.8, "max_tokens": 16, "tally_nonce": "ab" * 16}


@pytest.fixture(scope="module")
def two(answered: Callable[..., Any], language_model: Any, provider_key: Any) -> dict[str, Any]:
    """A response of two choices as a server gives it, with a receipt for each."""
    from tallystick.formats.fingerprints import FingerprintSettings
    from tallystick.recording.receipts import ReceiptIssuer, RecordSettings

    settings = RecordSettings((FingerprintSettings(layers=(0, 2, 3), block=8),))
    issuer = ReceiptIssuer(language_model, provider_key, settings)
    made = [answered(issuer=issuer, request_id=f"r-{number}", seed=3 + number, nonce="ab" * 16) for number in range(2)]
    receipts = [each.issued.signed.to_json() for each in made]
    choices = [
        {"text": language_model.decode(each.tokens), "finish_reason": "length", "token_ids": list(each.tokens)}
        for each in made
    ]
    usage = {"prompt_tokens": len(made[0].prompt), "completion_tokens": 32}
    return {"id": "r", "receipt": receipts[0], "receipts": receipts, "choices": choices, "usage": usage}


def verdict_on(subjects: list[ReceiptContext], model: Any, policy: Any) -> Any:
    return verify_stream(subjects, model, policy, NONCE)


def test_several_answers_to_one_request_with_a_nonce_are_accepted(
    two: dict[str, Any], language_model: Any, short_policy: Any, provider_key: Any
) -> None:
    asked = ExpectedRequest.from_body(BODY)
    strict = {"keys": (provider_key.public,), "nonce": "required", "seed": "customer", "complete": True}
    subjects = [ReceiptContext(each, asked) for each in read_responses(two)]
    report = verdict_on(subjects, language_model, short_policy.model_copy(update=strict))
    assert report.outcome == "accepted", report.verdict
    assert not [each for each in report.verdict.findings if not each.agrees]


def test_answers_of_one_request_may_end_in_any_order(
    answered: Callable[..., Any], language_model: Any, short_policy: Any, provider_key: Any
) -> None:
    """Receipts are numbered as answers end: of two requests at a time, those of one lie between those of the other."""
    from tallystick.formats.fingerprints import FingerprintSettings
    from tallystick.recording.receipts import ReceiptIssuer, RecordSettings

    settings = RecordSettings((FingerprintSettings(layers=(0, 2, 3), block=8),))
    issuer = ReceiptIssuer(language_model, provider_key, settings)
    names = ["a-1", "b-0", "a-0", "b-1"]
    made = {name: answered(issuer=issuer, request_id=name, seed=3 + int(name[-1])) for name in names}
    found = {name: each.issued.signed.to_json() for name, each in made.items()}
    responses = {name: read_responses({"receipts": [found[f"{name}-0"], found[f"{name}-1"]]}) for name in "ab"}
    whole = short_policy.model_copy(update={"complete": True})

    def outcome(order: str) -> str:
        return str(
            verdict_on(
                [ReceiptContext(each) for name in order for each in responses[name]], language_model, whole
            ).outcome
        )

    assert outcome("ab") == "accepted"
    assert outcome("ba") == "rejected"
    bare = [ReceiptContext(read_responses(found[name])[0]) for name in names]
    assert verdict_on(bare, language_model, whole).outcome == "accepted"
    assert verdict_on(bare[::-1], language_model, whole).outcome == "rejected"


def test_bare_receipts_of_one_request_say_which_answer_they_are(
    two: dict[str, Any], language_model: Any, short_policy: Any
) -> None:
    bare = [read_responses(each)[0] for each in two["receipts"]]
    asked = ExpectedRequest.from_body(BODY)
    assert (
        verdict_on([ReceiptContext(each, asked) for each in bare], language_model, short_policy).outcome == "accepted"
    )
    single = ExpectedRequest.from_body(BODY | {"n": 1})
    second = verify_receipt(bare[1].receipt, language_model, short_policy, single)
    assert {each.name for each in second.verdict.objections} == {"settings"}  # its seed is not the one asked for


def test_more_answers_than_were_asked_for_are_rejected(
    two: dict[str, Any], language_model: Any, short_policy: Any
) -> None:
    asked = ExpectedRequest.from_body(BODY | {"n": 1})
    report = verdict_on([ReceiptContext(each, asked) for each in read_responses(two)], language_model, short_policy)
    assert any("2 answers, and 1 asked for" in each.detail for each in report.verdict.objections)


@pytest.mark.parametrize(
    ("name", "split"), [("r-0", ("r", 0)), ("a-b-12", ("a-b", 12)), ("r", ("r", None)), ("r-01", ("r-01", None))]
)
def test_names_are_split_at_their_number(name: str, split: tuple[str, int | None]) -> None:
    assert split_name(name) == split


@pytest.mark.parametrize(
    ("promised", "stated", "outcome"),
    [
        (None, "gumbel", "accepted"),
        ("gumbel", "gumbel", "accepted"),
        ("gumbel", "unknown", "accepted"),
        (None, "unknown", "inconclusive"),
        ("cdf", "gumbel", "rejected"),
        ("cdf", "unknown", "rejected"),
    ],
)
def test_the_form_that_was_promised_is_the_one_that_is_judged(
    honest_answer: Any,
    language_model: Any,
    short_policy: Any,
    resigned: Callable[..., Any],
    promised: Any,
    stated: str,
    outcome: str,
) -> None:
    """The answer was drawn in the form `gumbel`."""
    policy = short_policy.model_copy(update={"sampler": short_policy.sampler.model_copy(update={"form": promised})})
    signed = resigned(honest_answer.issued.signed, {"sampler.form": stated})
    report = verify_receipt(signed, language_model, policy)
    assert report.outcome == outcome
    assert report.answers["same sampler"] == {"accepted": "fits", "rejected": "no"}.get(outcome, "unknown")


def without_ids(signed: Any, resigned: Callable[..., Any], **changes: Any) -> Any:
    """The receipt without the ids of its prompt, and with other fields of it."""
    fields = {f"request.prompt.{name}": value for name, value in changes.items()}
    return resigned(signed, {"request.prompt.ids": None, "states": None, **fields})


@pytest.mark.parametrize("more", [-1, 8, 200])
def test_a_prompt_is_the_one_that_was_asked_in_its_length_too(
    honest_answer: Any, language_model: Any, short_policy: Any, resigned: Callable[..., Any], more: int
) -> None:
    """A bill is by the count, and the digest alone does not say it."""
    request, signed = ExpectedRequest(prompt="The stick is"), honest_answer.issued.signed
    count = signed.receipt.request.prompt.count
    assert verify_receipt(without_ids(signed, resigned), language_model, short_policy, request).outcome == "accepted"
    report = verify_receipt(without_ids(signed, resigned, count=count + more), language_model, short_policy, request)
    assert {each.name for each in report.verdict.objections} == {"prompt"}


@pytest.mark.parametrize("what", ["request.prompt", "answer.tokens"])
def test_what_is_called_a_text_is_no_tokens(
    honest_answer: Any, language_model: Any, short_policy: Any, resigned: Callable[..., Any], what: str
) -> None:
    """No count is compared of a text: tokens under its name would be billed as one likes."""
    held = honest_answer.issued.signed
    choice = {"token_ids": list(honest_answer.tokens)}
    for over, outcome in ((None, "accepted"), ("text", "inconclusive")):
        signed = resigned(held, {f"{what}.ids": None, f"{what}.over": over})
        body = {
            "receipt": signed.to_json(),
            "choices": [choice],
            "prompt_token_ids": list(honest_answer.prompt),
        }
        response = read_responses(body)[0]
        report = verify_receipt(signed, language_model, short_policy, response=response)
        assert report.outcome == outcome, report.verdict


@pytest.mark.parametrize("finish", ["length", "stop"])
def test_no_token_comes_after_a_stop_text(
    honest_answer: Any, language_model: Any, short_policy: Any, resigned: Callable[..., Any], finish: str
) -> None:
    signed, ids = resigned(honest_answer.issued.signed, {"answer.finish": finish}), honest_answer.tokens
    text = language_model.decode(ids)
    until = language_model.decode(ids[:-1])
    stops = {"passed": until[-1], "at the end": text[len(until) :], "nowhere": "no such text"}
    assert stops["at the end"] not in until

    def objections(stop: str) -> set[str]:
        delivered = text.removesuffix(stop) if finish == "stop" else text
        body = {"receipt": signed.to_json(), "choices": [{"text": delivered}]}
        request = ExpectedRequest(prompt="The stick is", stop=(stop,))
        report = verify_receipt(signed, language_model, short_policy, request, response=read_responses(body)[0])
        return {each.detail for each in report.verdict.objections if each.name == "finish"}

    assert any("goes on after" in each for each in objections(stops["passed"]))
    assert not any("goes on after" in each for each in objections(stops["nowhere"]))
    assert not objections(stops["at the end"])


def test_a_penalty_that_nobody_asked_for_does_not_blunt_the_judgement(
    answered: Callable[..., Any], language_model: Any, short_policy: Any
) -> None:
    """It widens the tie band, and whoever states it would choose how wide."""
    for penalty, outcome in ((1.3, "accepted"), (3.0, "inconclusive"), (0.3, "inconclusive")):
        signed = answered(repetition_penalty=penalty).issued.signed
        report = verify_receipt(signed, language_model, short_policy)
        assert (report.outcome, report.answers["same sampler"] == "fits") == (outcome, outcome == "accepted")
        silent = ExpectedRequest(prompt="The stick is")
        assert verify_receipt(signed, language_model, short_policy, silent).outcome == outcome
        asked = silent.model_copy(update={"repetition_penalty": penalty})
        assert verify_receipt(signed, language_model, short_policy, asked).outcome == "accepted"


def test_probabilities_alone_are_judged_only_where_the_policy_says_so(
    honest_answer: Any, language_model: Any, short_policy: Any, resigned: Callable[..., Any]
) -> None:
    signed = resigned(honest_answer.issued.signed, {"sampler.form": "unknown"})
    unseeded = short_policy.model_copy(update={"sampler": short_policy.sampler.model_copy(update={"seed": "unknown"})})
    assert "surprisal" in {each.name for each in verify_receipt(signed, language_model, unseeded).findings}
    asking = unseeded.model_copy(update={"seed": "customer"})
    request = ExpectedRequest(prompt="The stick is", seed=3, temperature=0.8)
    lost = verify_receipt(signed, language_model, asking, request)
    assert lost.outcome == "inconclusive"
    assert any("form unknown" in str(each) for each in lost.missing)


def test_a_greedy_answer_is_judged_whatever_form_is_stated(
    answered: Callable[..., Any], language_model: Any, short_policy: Any, resigned: Callable[..., Any]
) -> None:
    signed = resigned(answered(temperature=0.0).issued.signed, {"sampler.form": "unknown"})
    assert verify_receipt(signed, language_model, short_policy).outcome == "accepted"
    drawn = resigned(answered(temperature=2.0).issued.signed, {"sampler.form": "unknown", "sampler.temperature": 0.0})
    assert verify_receipt(drawn, language_model, short_policy).outcome == "rejected"


def test_without_fingerprints_the_precision_stays_unknown(
    answered: Callable[..., Any], language_model: Any, short_policy: Any, provider_key: Any
) -> None:
    from tallystick.recording.receipts import ReceiptIssuer

    signed = answered(issuer=ReceiptIssuer(language_model, provider_key)).issued.signed
    report = verify_receipt(signed, language_model, short_policy)
    assert (report.outcome, report.answers["same precision"]) == ("inconclusive", "unknown")
    assert "carries no projection of the final norm" in str(report.missing[0])
    waived = verify_receipt(signed, language_model, short_policy.model_copy(update={"demands": ()}))
    assert (waived.outcome, waived.answers["same precision"]) == ("accepted", "unknown")
    tokens = verify_receipt(signed, language_model, short_policy, rung=1)
    assert (tokens.outcome, tokens.answers["same precision"]) == ("accepted", "unknown")
