"""One receipt against the promised model: every refusal beside the honest answer that is accepted."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tallystick.audits.answers.policy import FingerprintDemand, ReceiptPolicy
from tallystick.audits.answers.reading import read_response, read_responses
from tallystick.audits.answers.request import ExpectedRequest
from tallystick.audits.answers.subject import StatesChallenge
from tallystick.audits.answers.verify import verify_receipt
from tallystick.core.errors import MalformedError, TallyError, UnavailableError
from tallystick.formats.receipt import SignedReceipt
from tallystick.formats.signing import SigningKey, sign_receipt

NONCE = "5a" * 16
REQUEST = {"prompt": "The stick is", "max_tokens": 16, "temperature": 0.8, "seed": 3, "tally_nonce": NONCE}


@pytest.fixture(scope="module")
def asked_answer(answered: Callable[..., Any]) -> Any:
    """The answer to `REQUEST`."""
    return answered(nonce=NONCE)


@pytest.fixture(scope="module")
def request_made() -> ExpectedRequest:
    return ExpectedRequest.from_body(REQUEST)


@pytest.fixture(scope="module")
def response_of(language_model: Any) -> Callable[[Any], dict[str, Any]]:
    """A whole response in OpenAI's form around an answer."""

    def build(answer: Any, **changes: Any) -> dict[str, Any]:
        signed = answer.issued.signed
        choice = {"text": language_model.decode(answer.tokens), "finish_reason": "length"}
        usage = {"prompt_tokens": len(answer.prompt), "completion_tokens": len(answer.tokens)}
        return {
            "id": signed.receipt.request.id,
            "object": "text_completion",
            "choices": [{**choice, "token_ids": list(answer.tokens)}],
            "prompt_token_ids": list(answer.prompt),
            "usage": usage,
            "receipt": signed.to_json(),
            **changes,
        }

    return build


def objections(report: Any) -> set[str]:
    return {finding.name for finding in report.verdict.objections}


def test_an_honest_answer_is_accepted_on_every_question(
    asked_answer: Any,
    language_model: Any,
    short_policy: Any,
    provider_key: Any,
    request_made: Any,
    response_of: Callable[..., Any],
) -> None:
    policy = short_policy.model_copy(update={"keys": (provider_key.public,), "seed": "customer", "nonce": "required"})
    response = read_response(response_of(asked_answer))
    report = verify_receipt(
        response.receipt, language_model, policy, request_made, response=response, context_length=32
    )
    assert report.outcome == "accepted", report.verdict
    replies = {**dict.fromkeys(report.answers, "fits"), "same token count": "yes"}
    assert report.answers == replies, "only numbers that were compared are a yes"
    assert {"signature", "model", "prompt", "nonce", "settings", "usage", "finish", "sampler", "evidence"} <= {
        finding.name for finding in report.findings
    }
    assert report.bytes["fingerprint"] == sum(len(f.raw) for f in response.receipt.receipt.fingerprints)
    assert report.seconds["prefill"] > 0
    assert json.dumps(report.to_json())


def test_a_bare_receipt_says_what_was_not_checked(honest_answer: Any, language_model: Any, short_policy: Any) -> None:
    report = verify_receipt(honest_answer.issued.signed, language_model, short_policy)
    assert report.outcome == "accepted"
    assert report.answers["same prompt"] == "unknown"
    assert any("give the request" in line for line in report.not_checked)
    assert any("keys that you trust" in line for line in report.not_checked)
    count = report.tokens
    assert report.accepted
    assert repr(report) == (
        f"<ReceiptReport accepted: {count} of {count} answer tokens computed again with the promised model, "
        f"receipt {report.receipt[:15]}…>"
    )


def test_too_few_tokens_are_inconclusive(honest_answer: Any, language_model: Any, short_policy: Any) -> None:
    strict = short_policy.model_copy(update={"sampler": ReceiptPolicy().sampler})
    report = verify_receipt(honest_answer.issued.signed, language_model, strict)
    assert report.outcome == "inconclusive"
    assert [each.check for each in report.missing] == ["evidence"]


def test_rung_one_reads_no_fingerprints(honest_answer: Any, language_model: Any, short_policy: Any) -> None:
    report = verify_receipt(honest_answer.issued.signed, language_model, short_policy, rung=1)
    assert report.outcome == "accepted"
    assert "fingerprint" not in {finding.name for finding in report.findings}
    demanding = short_policy.model_copy(update={"demands": (FingerprintDemand(),)})
    assert verify_receipt(honest_answer.issued.signed, language_model, demanding, rung=1).outcome == "inconclusive"
    assert verify_receipt(honest_answer.issued.signed, language_model, demanding).outcome == "accepted"


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"prompt": "Another prompt"}, "prompt"),
        ({"prompt": [1, 2, 3]}, "prompt"),
        ({"tally_nonce": "00" * 16}, "nonce"),
        ({"temperature": 0.7}, "settings"),
        ({"top_p": 0.9}, "settings"),
        ({"seed": 4}, "settings"),
        ({"max_tokens": 17}, "settings"),
    ],
)
def test_a_receipt_of_another_request_is_rejected(
    asked_answer: Any, language_model: Any, short_policy: Any, changes: dict[str, Any], check: str
) -> None:
    signed = asked_answer.issued.signed
    honest = verify_receipt(signed, language_model, short_policy, ExpectedRequest.from_body(REQUEST))
    assert honest.outcome == "accepted"
    report = verify_receipt(signed, language_model, short_policy, ExpectedRequest.from_body(REQUEST | changes))
    assert report.outcome == "rejected"
    assert objections(report) == {check}


def test_what_the_request_left_open_is_named(asked_answer: Any, language_model: Any, short_policy: Any) -> None:
    asked = ExpectedRequest.from_body({"prompt": "The stick is"})
    report = verify_receipt(asked_answer.issued.signed, language_model, short_policy, asked)
    assert report.outcome == "accepted"
    assert any("left to the provider: " in line and "temperature" in line for line in report.not_checked)
    for needed in ({"seed": "customer"}, {"nonce": "required"}):
        asking = short_policy.model_copy(update=needed)
        assert verify_receipt(asked_answer.issued.signed, language_model, asking, asked).outcome == "inconclusive"
        assert verify_receipt(asked_answer.issued.signed, language_model, asking).outcome == "inconclusive"


def test_a_request_with_a_field_that_no_check_covers_is_inconclusive(
    asked_answer: Any, language_model: Any, short_policy: Any
) -> None:
    asked = ExpectedRequest.from_body(REQUEST | {"functions": [{"name": "f"}]})
    report = verify_receipt(asked_answer.issued.signed, language_model, short_policy, asked)
    assert report.outcome == "inconclusive"
    assert "functions" in str(report.missing[0])


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"usage": {"prompt_tokens": 12, "completion_tokens": 20}}, "usage"),
        ({"usage": {"prompt_tokens": 20, "completion_tokens": 16}}, "usage"),
        ({"usage": {"prompt_tokens": 12, "completion_tokens": 16, "total_tokens": 29}}, "usage"),
        ({"id": "another"}, "nonce"),
        ({"prompt_token_ids": [1, 2]}, "prompt"),
        ({"choices": [{"token_ids": [1] * 16}]}, "tokens"),
        ({"choices": [{"text": "an edited text"}]}, "tokens"),
        ({"choices": [{"finish_reason": "stop"}]}, "finish"),
    ],
)
def test_a_response_that_says_something_else_is_rejected(
    asked_answer: Any,
    language_model: Any,
    short_policy: Any,
    response_of: Callable[..., Any],
    changes: dict[str, Any],
    check: str,
) -> None:
    def judged(**changed: Any) -> Any:
        response = read_response(response_of(asked_answer, **changed))
        return verify_receipt(response.receipt, language_model, short_policy, response=response)

    assert judged().outcome == "accepted"
    assert judged(**changes).outcome == "rejected"
    assert objections(judged(**changes)) == {check}


def test_overbilling_says_by_how_much(
    asked_answer: Any, language_model: Any, short_policy: Any, response_of: Callable[..., Any]
) -> None:
    response = read_response(response_of(asked_answer, usage={"prompt_tokens": 12, "completion_tokens": 20}))
    report = verify_receipt(response.receipt, language_model, short_policy, response=response)
    assert "4 more than the 16" in report.verdict.objections[0].detail


def test_several_answers_share_a_bill(answered: Callable[..., Any], response_of: Callable[..., Any]) -> None:
    first, second = answered(request_id="r-0"), answered(request_id="r-1", seed=4)
    receipts = [first.issued.signed.to_json(), second.issued.signed.to_json()]
    usage = {"prompt_tokens": 12, "completion_tokens": 32, "total_tokens": 44}
    choices = [{"token_ids": list(first.tokens)}, {"token_ids": list(second.tokens)}]
    found = read_responses(
        {"id": "r", "receipt": receipts[0], "receipts": receipts, "usage": usage, "choices": choices}
    )
    assert [each.usage.completion_tokens for each in found if each.usage] == [16, 16]
    assert [each.usage.total_tokens for each in found if each.usage] == [28, 28]
    assert [each.request_id for each in found] == ["r-0", "r-1"]
    assert found[1].choice.token_ids == second.tokens
    with pytest.raises(MalformedError, match="2 answers"):
        read_response({"receipts": receipts})


def test_a_signature_over_other_bytes_is_rejected(honest_answer: Any, language_model: Any, short_policy: Any) -> None:
    signed = honest_answer.issued.signed
    forged = signed.model_copy(update={"signature": "00" * 64})
    assert objections(verify_receipt(forged, language_model, short_policy)) == {"signature"}
    assert objections(verify_receipt(signed, language_model, short_policy)) == set()


def test_an_unknown_key_leads_where_the_policy_says(
    honest_answer: Any, language_model: Any, short_policy: Any, provider_key: Any
) -> None:
    def judged(**changes: Any) -> str:
        policy = short_policy.model_copy(update=changes)
        return str(verify_receipt(honest_answer.issued.signed, language_model, policy).outcome)

    stranger = SigningKey(bytes(32)).public
    assert judged(keys=(stranger, provider_key.public)) == "accepted"
    assert judged(keys=(stranger,)) == "inconclusive"
    assert judged(keys=(stranger,), unknown_key="rejected") == "rejected"


def test_another_model_is_rejected_without_a_pass(
    honest_answer: Any, language_model: Any, short_policy: Any, resigned: Callable[..., Any]
) -> None:
    other = resigned(honest_answer.issued.signed, {"model": "sha256:" + "0" * 64})
    report = verify_receipt(other, language_model, short_policy)
    assert objections(report) == {"model"}
    assert "prefill" not in report.seconds
    assert report.answers["same model"] == "no"


def test_a_model_that_the_policy_does_not_mean_is_not_used(
    honest_answer: Any, language_model: Any, short_policy: Any
) -> None:
    signed = honest_answer.issued.signed
    meant = short_policy.model_copy(update={"model": language_model.card.identity, "dtypes": ("F32",)})
    assert verify_receipt(signed, language_model, meant).outcome == "accepted"
    for changes in ({"model": "sha256:" + "0" * 64}, {"dtypes": ("BF16",)}):
        with pytest.raises(UnavailableError, match="the model given"):
            verify_receipt(signed, language_model, short_policy.model_copy(update=changes))


def test_an_engine_with_a_cache_that_the_policy_does_not_accept_is_rejected(
    honest_answer: Any, language_model: Any, short_policy: Any, resigned: Callable[..., Any]
) -> None:
    quantised = resigned(honest_answer.issued.signed, {"engine.kv_cache": "int8"})
    assert objections(verify_receipt(quantised, language_model, short_policy)) == {"model"}
    accepting = short_policy.model_copy(update={"kv_caches": ("native", "int8")})
    assert verify_receipt(quantised, language_model, accepting).outcome == "accepted"


@pytest.mark.parametrize(
    ("place", "check"), [(0, {"sampler"}), (7, {"sampler"}), (15, {"sampler"})], ids=["first", "middle", "last"]
)
def test_an_injected_token_is_rejected(
    honest_answer: Any,
    language_model: Any,
    short_policy: Any,
    resigned: Callable[..., Any],
    tokens_of: Callable[..., Any],
    place: int,
    check: set[str],
) -> None:
    tokens = list(honest_answer.tokens)
    tokens[place] = (tokens[place] + 101) % language_model.card.vocabulary
    forged = resigned(honest_answer.issued.signed, {"answer.tokens": tokens_of(tokens)})
    assert check <= objections(verify_receipt(forged, language_model, short_policy))


def test_another_seed_or_temperature_than_claimed_is_rejected(
    honest_answer: Any, language_model: Any, short_policy: Any, resigned: Callable[..., Any]
) -> None:
    for changes in ({"sampler.seed": 4}, {"sampler.temperature": 0.0}):
        forged = resigned(honest_answer.issued.signed, changes)
        assert "sampler" in objections(verify_receipt(forged, language_model, short_policy))


def test_a_truncated_answer_is_rejected(
    honest_answer: Any,
    language_model: Any,
    short_policy: Any,
    resigned: Callable[..., Any],
    tokens_of: Callable[..., Any],
) -> None:
    cut = {"answer.tokens": tokens_of(honest_answer.tokens[:12]), "fingerprints": None, "states": None}
    short_policy = short_policy.model_copy(update={"demands": ()})
    forged = resigned(honest_answer.issued.signed, cut)
    assert objections(verify_receipt(forged, language_model, short_policy)) == {"finish"}
    honest = resigned(honest_answer.issued.signed, {**cut, "request.max_tokens": 12})
    assert verify_receipt(honest, language_model, short_policy).outcome == "accepted"


@pytest.mark.parametrize("finish", ["end", "stop", "cancelled"])
def test_an_end_that_nothing_shows_is_no_pass(
    honest_answer: Any, language_model: Any, short_policy: Any, resigned: Callable[..., Any], finish: str
) -> None:
    claimed = resigned(honest_answer.issued.signed, {"answer.finish": finish})
    outcome = verify_receipt(claimed, language_model, short_policy).outcome
    assert outcome == ("rejected" if finish == "end" else "inconclusive")


def test_a_stop_text_has_to_be_one_that_was_asked_for(
    honest_answer: Any, language_model: Any, short_policy: Any, resigned: Callable[..., Any]
) -> None:
    whole = language_model.decode(honest_answer.tokens)
    signed = resigned(honest_answer.issued.signed, {"answer.finish": "stop"})
    response = {"receipt": signed.to_json(), "choices": [{"text": whole[:-3], "finish_reason": "stop"}]}

    def judged(stop: str) -> str:
        asked = ExpectedRequest.from_body({"prompt": "The stick is", "stop": [stop]})
        found = read_response(response)
        return str(verify_receipt(signed, language_model, short_policy, asked, response=found).outcome)

    assert judged(whole[-3:]) == "accepted"
    assert judged("never") == "rejected"


def test_an_answer_that_ended_before_a_stop_text_that_was_asked_for_is_whole(
    honest_answer: Any, language_model: Any, short_policy: Any, resigned: Callable[..., Any]
) -> None:
    """Who forwards an answer is told `stop` for either end, and cannot tell them apart."""
    model = replace(language_model)
    model.__dict__["end_tokens"] = frozenset({honest_answer.tokens[-1]} - set(honest_answer.tokens[:-1]))
    assert model.end_tokens, "the last token has to be the first of its kind"
    signed = resigned(honest_answer.issued.signed, {"answer.finish": "stop"})
    asked = ExpectedRequest.from_body({"prompt": "The stick is", "stop": ["never"]})

    def judged(text: str, judge: Any = model) -> str:
        found = read_response({"receipt": signed.to_json(), "choices": [{"text": text, "finish_reason": "stop"}]})
        return str(verify_receipt(signed, judge, short_policy, asked, response=found).outcome)

    whole = language_model.decode(honest_answer.tokens)
    assert judged(whole) == "accepted"
    assert judged(whole[:-3]) == "rejected"  # the rest was billed, and withheld
    assert judged(whole, language_model) == "rejected"


def test_a_token_that_the_request_names_ends_an_answer(
    honest_answer: Any, language_model: Any, short_policy: Any, resigned: Callable[..., Any]
) -> None:
    *before, last = honest_answer.tokens
    assert last not in before
    signed = resigned(honest_answer.issued.signed, {"answer.finish": "stop"})
    texts = [language_model.decode(before[:count]) for count in (len(before), len(before) - 2)]

    def judged(text: str | None, *stops: int) -> str:
        body = {"receipt": signed.to_json(), "choices": [{"text": text, "finish_reason": "stop"}]}
        asked = ExpectedRequest.from_body({"prompt": "The stick is", "stop_token_ids": list(stops)})
        read = read_response(body if text is not None else signed.to_json())
        return str(verify_receipt(signed, language_model, short_policy, asked, response=read).outcome)

    assert judged(texts[0], last) == "accepted"  # servers leave out the text of the token
    assert judged(language_model.decode(honest_answer.tokens), last) == "accepted"
    assert judged(None, last) == "accepted"
    assert judged(texts[1], last) == "rejected"  # the rest was billed, and withheld
    assert judged(texts[0], before[5], last) == "rejected"  # it was to end there
    assert judged(texts[0]) == "rejected"
    assert judged(texts[0], last + 1) == "rejected"


def test_a_stop_text_inside_the_least_length_may_be_passed_over(
    honest_answer: Any, language_model: Any, short_policy: Any, resigned: Callable[..., Any]
) -> None:
    """vLLM looks for stop texts behind the first `min_tokens` tokens."""
    tokens = honest_answer.tokens
    stop = language_model.decode(tokens[3:5])
    changes = {"sampler.min_tokens": 8, "sampler.end_token_ids": sorted(language_model.end_tokens)}
    signed = resigned(honest_answer.issued.signed, changes)

    def judged(least: int) -> set[str]:
        body = {"prompt": "The stick is", "stop": [stop], "min_tokens": least}
        return objections(verify_receipt(signed, language_model, short_policy, ExpectedRequest.from_body(body)))

    assert "finish" not in judged(8)
    assert "finish" in judged(2)


def test_a_private_receipt_needs_the_tokens_from_elsewhere(
    answered: Callable[..., Any],
    honest_answer: Any,
    language_model: Any,
    short_policy: Any,
    response_of: Callable[..., Any],
    resigned: Callable[..., Any],
    tokens_of: Callable[..., Any],
) -> None:
    hidden = {
        "answer.tokens": tokens_of(honest_answer.tokens, True),
        "request.prompt": tokens_of(honest_answer.prompt, True),
    }
    signed = resigned(honest_answer.issued.signed, hidden)
    alone = verify_receipt(signed, language_model, short_policy)
    assert alone.outcome == "inconclusive"
    assert {each.check for each in alone.missing} >= {"prompt", "tokens"}
    response = read_response(response_of(honest_answer, receipt=signed.to_json()))
    assert verify_receipt(signed, language_model, short_policy, response=response).outcome == "accepted"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"fingerprints.tokens": 5}, r"fingerprints\.0\.tokens"),
        ({"states.rows": 5}, r"states\.rows"),
        ({"fingerprints.layers": [0, 1000]}, r"fingerprints\.0\.layers"),
        ({"states.layers": [0, 1000]}, r"states\.layers"),
    ],
)
def test_numbers_that_do_not_belong_together_are_refused_by_field(
    honest_answer: Any, language_model: Any, short_policy: Any, changes: dict[str, Any], field: str, provider_key: Any
) -> None:
    held = honest_answer.issued.signed.receipt.to_json()
    for path, value in changes.items():
        part, name = path.split(".")
        (held[part][0] if part == "fingerprints" else held[part])[name] = value
    from tallystick.formats.receipt import Receipt

    signed = sign_receipt(Receipt.from_json(held, "receipt"), provider_key)
    report = verify_receipt(signed, language_model, short_policy)
    assert objections(report) == {"numbers"}
    assert "prefill" not in report.seconds
    assert re.search(field, report.verdict.objections[0].detail)


def test_a_token_outside_the_vocabulary_is_refused_by_field(
    honest_answer: Any,
    language_model: Any,
    short_policy: Any,
    resigned: Callable[..., Any],
    tokens_of: Callable[..., Any],
) -> None:
    tokens = [*honest_answer.tokens[:15], 256]
    edited = resigned(honest_answer.issued.signed, {"answer.tokens": tokens_of(tokens)})
    report = verify_receipt(edited, language_model, short_policy)
    assert objections(report) == {"numbers"}
    assert "prefill" not in report.seconds
    assert "answer.tokens.ids: 256 is outside the vocabulary" in report.verdict.objections[0].detail


def test_work_beyond_the_policy_or_the_model_is_refused(
    honest_answer: Any, language_model: Any, short_policy: Any
) -> None:
    signed = honest_answer.issued.signed
    for changes in ({"tokens_max": 20}, {"memory_max": 1000}, {"work_max": 1000}):
        report = verify_receipt(signed, language_model, short_policy.model_copy(update=changes))
        assert report.outcome == "inconclusive"
        assert re.search(rf"^numbers: .*answer\.tokens\.count.*{next(iter(changes))}", str(report.missing[0]))
        assert "prefill" not in report.seconds
    report = verify_receipt(signed, language_model, short_policy, context_length=20)
    assert "places of the model" in str(report.missing[0])
    assert verify_receipt(signed, language_model, short_policy, context_length=32).outcome == "accepted"


def test_an_answer_of_no_tokens_shows_nothing(
    honest_answer: Any,
    language_model: Any,
    short_policy: Any,
    resigned: Callable[..., Any],
    tokens_of: Callable[..., Any],
) -> None:
    empty = {"answer.tokens": tokens_of([]), "request.max_tokens": 0, "fingerprints": None, "states": None}
    report = verify_receipt(resigned(honest_answer.issued.signed, empty), language_model, short_policy)
    assert report.outcome == "inconclusive"
    no_prompt = {"request.prompt": tokens_of([])}
    report = verify_receipt(resigned(honest_answer.issued.signed, no_prompt), language_model, short_policy)
    assert objections(report) == {"numbers"}
    assert "request.prompt.count" in report.verdict.objections[0].detail


def test_foreign_hidden_states_are_rejected(
    honest_answer: Any,
    answered: Callable[..., Any],
    language_model: Any,
    short_policy: Any,
    resigned: Callable[..., Any],
) -> None:
    other = answered(seed=99).issued.signed.receipt
    stolen = resigned(honest_answer.issued.signed, {"fingerprints": [each.to_json() for each in other.fingerprints]})
    assert objections(verify_receipt(stolen, language_model, short_policy)) == {"fingerprint"}


def test_opened_states_are_judged(honest_answer: Any, language_model: Any, short_policy: Any) -> None:
    signed, states, nonce = honest_answer.issued.signed, honest_answer.issued.states, bytes(range(16))
    challenge = StatesChallenge(nonce, 4, states.open(nonce, 4))
    report = verify_receipt(signed, language_model, short_policy, challenge=challenge)
    assert report.outcome == "accepted"
    assert "states" in {finding.name for finding in report.findings}
    assert report.bytes["states"] > 0
    for wrong in (
        replace(challenge, nonce=bytes(16)),
        replace(challenge, count=5),
        replace(challenge, opening=states.open(bytes(16), 4)),
    ):
        refused = verify_receipt(signed, language_model, short_policy, challenge=wrong)
        assert objections(refused) == {"states"}


def test_a_challenge_of_nothing_committed_is_inconclusive(
    honest_answer: Any, language_model: Any, short_policy: Any, resigned: Callable[..., Any]
) -> None:
    nonce = bytes(16)
    challenge = StatesChallenge(nonce, 4, honest_answer.issued.states.open(nonce, 4))
    bare = resigned(honest_answer.issued.signed, {"states": None})
    report = verify_receipt(bare, language_model, short_policy, challenge=challenge)
    assert [each.check for each in report.missing] == ["states"]


def test_no_mutation_of_a_receipt_is_accepted(honest_answer: Any, language_model: Any, short_policy: Any) -> None:
    """Whatever is changed in the bytes: refused, rejected or inconclusive, and never another error."""
    signed = honest_answer.issued.signed
    rng, text = random.Random(7), signed.to_bytes()
    outcomes = set()
    for _ in range(400):
        changed = mutated(text, rng)
        try:
            found = read_response(json.loads(changed)).receipt
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            continue
        except TallyError as error:
            outcomes.add(type(error).__name__)
            continue
        if found == signed:
            continue
        try:
            outcomes.add(verify_receipt(found, language_model, short_policy, context_length=32).outcome)
        except TallyError as error:
            outcomes.add(type(error).__name__)
    assert "accepted" not in outcomes
    assert {"rejected", "MalformedError"} <= outcomes


def test_no_signed_mutation_of_a_receipt_ends_in_another_error(
    honest_answer: Any, language_model: Any, short_policy: Any, provider_key: Any
) -> None:
    """A provider may sign what it likes: fields are changed and signed again."""
    rng, held = random.Random(11), honest_answer.issued.signed.receipt.to_json()
    outcomes = []
    for _ in range(150):
        changed = with_another_value(json.loads(json.dumps(held)), rng)
        try:
            from tallystick.formats.receipt import Receipt

            signed = sign_receipt(Receipt.from_json(changed, "receipt"), provider_key)
            outcomes.append(verify_receipt(signed, language_model, short_policy, context_length=32).outcome)
        except TallyError as error:
            outcomes.append(type(error).__name__)
    assert {"accepted", "rejected", "MalformedError"} <= set(outcomes)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A byte flipped, a piece removed, repeated, or a digit exchanged."""
    place = rng.randrange(len(data))
    kind = rng.randrange(4)
    if kind == 0:
        return data[:place] + bytes([data[place] ^ (1 << rng.randrange(7))]) + data[place + 1 :]
    if kind == 1:
        return data[:place] + data[place + rng.randrange(1, 9) :]
    if kind == 2:
        return data[:place] + data[place : place + rng.randrange(1, 9)] + data[place:]
    digits = [index for index, byte in enumerate(data) if 48 <= byte <= 57]
    chosen = rng.choice(digits)
    return data[:chosen] + bytes([48 + rng.randrange(10)]) + data[chosen + 1 :]


def with_another_value(document: Any, rng: random.Random) -> Any:
    """The document with one leaf replaced by a value of an enemy's taste."""
    leaves = list(_leaves(document))
    parent, name = rng.choice(leaves)
    parent[name] = rng.choice([0, -1, 1, 2**31, 2**53 - 1, 1e308, "", "x", "AAAA", [], {}, None, True, [0], "nan"])
    return document


def _leaves(value: Any) -> Any:
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for name, entry in entries:
        if isinstance(entry, dict | list) and entry:
            yield from _leaves(entry)
        else:
            yield value, name


def test_the_text_of_an_end_token_may_be_left_out(
    honest_answer: Any, language_model: Any, short_policy: Any, resigned: Callable[..., Any]
) -> None:
    """Servers do, and a tokenizer that does not count it as special decodes it."""
    ids = honest_answer.tokens
    assert ids[-1] not in ids[:-1]
    signed = resigned(honest_answer.issued.signed, {"answer.finish": "end"})
    texts = {count: language_model.decode(ids[:count]) for count in (16, 15, 14)}

    def outcome(model: Any, count: int) -> str:
        response = read_response({"receipt": signed.to_json(), "choices": [{"text": texts[count]}]})
        return str(verify_receipt(signed, model, short_policy, response=response).outcome)

    ending = _with_end(language_model, ids[-1])
    assert [outcome(ending, count) for count in (16, 15, 14)] == ["accepted", "accepted", "rejected"]
    assert [outcome(language_model, count) for count in (16, 15)] == ["rejected", "rejected"]


def _with_end(model: Any, token: int) -> Any:
    """The model with an end token that its tokenizer does not know."""
    import copy
    from dataclasses import replace

    other = copy.copy(model.model)
    other.generation_config = copy.deepcopy(model.model.generation_config)
    other.generation_config.eos_token_id = token
    return replace(model, model=other)


def test_a_text_told_twice_is_one_text(honest_answer: Any) -> None:
    """Of two texts, one would be read by the customer and the other by the verifier."""
    signed = honest_answer.issued.signed.to_json()
    alike = read_response({"receipt": signed, "choices": [{"text": "a", "message": {"content": "a"}}]})
    assert (alike.choice.content, alike.remarks) == ("a", ())
    [remark] = read_response({"receipt": signed, "choices": [{"text": "b", "message": {"content": "a"}}]}).remarks
    assert remark.kind == "refused"


def test_a_receipt_without_a_receipt_is_refused() -> None:
    for value in ({}, [], {"choices": []}, {"receipt": {}, "signature": "", "key": ""}, {"receipt": None}):
        with pytest.raises(MalformedError):
            read_response(value)


def test_an_unknown_version_is_refused_by_field(honest_answer: Any) -> None:
    held = honest_answer.issued.signed.to_json()
    assert SignedReceipt.from_json(held, "receipt") == honest_answer.issued.signed
    held["receipt"]["receipt"] = 2
    with pytest.raises(MalformedError, match=r"receipt\.receipt"):
        read_response(held)
