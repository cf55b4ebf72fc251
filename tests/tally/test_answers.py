"""`tallystick.verify`: one answer from its statements up to the exact replay, challenges included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tallystick

pytest.importorskip("torch")
NONCE = "07" * 16


@pytest.fixture
def opening(honest_answer: Any) -> dict[str, Any]:
    return dict(honest_answer.issued.states.open(bytes.fromhex(NONCE), 1024).to_json())


def test_an_honest_answer_is_accepted_and_a_changed_one_rejected(
    honest_answer: Any, model_directory: Path, short_policy: Any
) -> None:
    signed = honest_answer.issued.signed
    assert tallystick.verify(signed, model=model_directory, policy=short_policy).outcome == "accepted"
    changed = signed.to_json()
    changed["receipt"]["sampler"]["seed"] += 1
    assert tallystick.verify(changed, model=model_directory, policy=short_policy).outcome == "rejected"


def test_too_few_tokens_are_settled_by_an_exact_replay(honest_answer: Any, language_model: Any) -> None:
    signed = honest_answer.issued.signed
    report = tallystick.verify(signed, model=language_model, rung=2)
    assert (report.outcome, report.rung) == ("inconclusive", 2)
    report = tallystick.verify(signed, model=language_model)
    assert report.rung == 4
    assert "replay" in {finding.name for finding in report.findings}


def test_a_challenge_is_checked_and_one_layer_is_judged(
    honest_answer: Any, language_model: Any, short_policy: Any, opening: dict[str, Any], tmp_path: Path
) -> None:
    def judged(**asked: Any) -> Any:
        return tallystick.verify(
            honest_answer.issued.signed, model=language_model, policy=short_policy, count=1024, **asked
        )

    report = judged(opening=opening, nonce=NONCE, rung=3, layer=1)
    assert (report.outcome, report.rung) == ("accepted", 3)
    assert {"states", "layer"} <= {finding.name for finding in report.findings}
    (tmp_path / "opening.json").write_text(json.dumps(opening))
    assert judged(opening=tmp_path / "opening.json", nonce=bytes(16), rung=2).outcome == "rejected"
    refused = {"error": {"message": "the hidden states are not held"}}
    assert judged(opening=refused, nonce=NONCE, rung=2).outcome == "inconclusive"


def test_a_receipt_that_has_not_the_form_of_one_gets_a_verdict(honest_answer: Any, language_model: Any) -> None:
    signed = honest_answer.issued.signed.to_json()
    later = {**signed, "receipt": {**signed["receipt"], "receipt": 2}}
    assert tallystick.verify(later, model=language_model).outcome == "inconclusive"
    edited = {**signed, "receipt": {**signed["receipt"], "sequence": 0}}
    report = tallystick.verify({"receipt": edited}, model=language_model)
    assert (report.outcome, report.to_json()["verdict"]) == ("rejected", "rejected")


def test_several_answers_to_one_request_are_judged_together(
    answered: Any, language_model: Any, provider_key: Any, short_policy: Any
) -> None:
    from tallystick.recording.receipts import ReceiptIssuer

    issuer = ReceiptIssuer(language_model, provider_key)
    found = [answered(issuer=issuer, request_id=f"r-{number}", seed=3 + number) for number in range(2)]
    receipts = [each.issued.signed.to_json() for each in found]
    policy = short_policy.model_copy(update={"demands": ()})
    body = {"id": "r", "receipts": receipts}
    report = tallystick.verify(body, model=language_model, policy=policy)
    assert (report.outcome, report.receipts, report.computed) == ("accepted", 2, 2), report.verdict
    twice = tallystick.verify({"id": "r", "receipts": receipts[:1] * 2}, model=language_model, policy=policy)
    assert twice.outcome == "rejected"


@pytest.mark.parametrize("asked", [{"rung": 5}, {"opening": {}}, {"opening": {}, "nonce": "x"}])
def test_what_makes_no_sense_is_a_usage_error(
    honest_answer: Any, language_model: Any, short_policy: Any, asked: dict[str, Any]
) -> None:
    with pytest.raises(tallystick.UsageError):
        tallystick.verify(honest_answer.issued.signed, model=language_model, policy=short_policy, **asked)


def test_what_is_no_answer_is_malformed_and_a_model_that_is_missing_unavailable(
    honest_answer: Any, language_model: Any, tmp_path: Path
) -> None:
    with pytest.raises(tallystick.MalformedError):
        tallystick.verify({"receipt": 1}, model=language_model)
    with pytest.raises(tallystick.UnavailableError):
        tallystick.verify(honest_answer.issued.signed, model=tmp_path / "nothing")


def test_receipts_of_a_recorded_generation_are_accepted(language_model: Any, short_policy: Any) -> None:
    torch = pytest.importorskip("torch")
    settings = tallystick.RecordSettings(tallystick.standard_fingerprints(language_model.card.layers, "F32"))
    issuer = tallystick.ReceiptIssuer(language_model, tallystick.SigningKey.generate(), settings)
    prompt = torch.tensor([language_model.encode_text("The stick is")])
    with issuer, tallystick.record_generation(language_model, issuer) as answers:
        language_model.model.generate(input_ids=prompt, do_sample=True, max_new_tokens=16)
    [answer] = answers
    report = tallystick.verify(answer.issued.signed, model=language_model, policy=short_policy)
    assert report.outcome == "accepted", report.verdict
