"""What a server answers, judged by a customer who has the promised model: honest answers pass, changed ones do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.audits.answers.limits import SamplerRule
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.formats.receipt import SignedReceipt
from tallystick.tally.answers import verify
from tallystick.verdicts.fingerprints import distances

POLICY = ReceiptPolicy(sampler=SamplerRule(dishonest=0.9), demands=())
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "halves"}], "max_tokens": 8, "seed": 3}
TEXT: dict[str, Any] = {"prompt": "the stick", "max_tokens": 16, "temperature": 0.8, "top_p": 0.95, "seed": 11}


@pytest.fixture(scope="module")
def tokens_only(serving: Any, language_model: Any) -> Iterator[Any]:
    """Receipts without fingerprints: judged by tokens alone."""
    with serving(language_model) as running:
        yield running


def asked(server: Any, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    body = {"model": "tiny", "tally_nonce": "ab" * 16, **fields}
    path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
    return server.http.post(path, json=body).json(), body


def outcome(response: dict[str, Any], model: Any, body: dict[str, Any] | None = None) -> str:
    return str(verify(response, model=model, policy=POLICY, request=body).verdict.outcome)


@pytest.mark.parametrize(
    "fields",
    [
        CHAT,
        TEXT,
        TEXT | {"temperature": 0},
        TEXT | {"top_k": 20, "min_p": 0.01, "repetition_penalty": 1.2},
        TEXT | {"stop": ["e"]},
        TEXT | {"presence_penalty": 1.0, "frequency_penalty": -0.5, "logit_bias": {"101": 8, "32": -100}},
        TEXT | {"allowed_token_ids": [*range(97, 123)], "bad_token_ids": [101], "min_tokens": 4},
    ],
)
def test_an_honest_answer_is_accepted(tokens_only: Any, language_model: Any, fields: dict[str, Any]) -> None:
    response, body = asked(tokens_only, **fields)
    verdict = verify(response, model=language_model, policy=POLICY, request=body).verdict
    assert [each for each in verdict.findings if not each.agrees] == []
    assert verdict.outcome == "accepted", verdict.unavailable


@pytest.mark.parametrize("fields", [CHAT | {"logprobs": True, "top_logprobs": 3}, TEXT | {"logprobs": 2}])
def test_log_probabilities_are_those_of_the_model_and_others_are_refused(
    tokens_only: Any, language_model: Any, fields: dict[str, Any]
) -> None:
    response, body = asked(tokens_only, **fields)
    verdict = verify(response, model=language_model, policy=POLICY, request=body).verdict
    assert verdict.outcome == "accepted", verdict.unavailable
    assert "logprobs" in {each.name for each in verdict.findings}
    found = response["choices"][0]["logprobs"]
    listed = found["content"] if "messages" in fields else found["token_logprobs"]
    assert len(listed) == response["usage"]["completion_tokens"]
    if "messages" in fields:
        assert len(listed[0]["top_logprobs"]) == 3
        listed[2]["logprob"] -= 0.5
    else:
        listed[2] -= 0.5
    assert outcome(response, language_model, body) == "rejected"
    del listed[-1]
    assert outcome(response, language_model, body) == "rejected"


def test_another_prompt_another_text_and_other_settings_are_seen(tokens_only: Any, language_model: Any) -> None:
    response, body = asked(tokens_only, **TEXT)
    assert outcome(response, language_model, body | {"prompt": "another"}) == "rejected"
    assert outcome(response, language_model, body | {"temperature": 0.2}) == "rejected"
    response["choices"][0]["text"] += "!"
    assert outcome(response, language_model, body) == "rejected"


def test_answers_and_fingerprints_of_a_busy_batch_are_those_of_a_pass_over_the_tokens(
    server: Any, language_model: Any
) -> None:
    body = {"model": "tiny", "seed": 1, "n": 6, "prompt": "the stick", "max_tokens": 16}
    response = server.http.post("/v1/completions", json=body).json()
    receipts = [SignedReceipt.from_json(each, "receipt").receipt for each in response["receipts"]]
    assert max(each.batch.largest for each in receipts) > 1
    for receipt in receipts:
        prompt, answer = receipt.request.prompt.ids or (), receipt.answer.tokens.ids or ()
        [fingerprint] = receipt.fingerprints
        passed = language_model.prefill([*prompt, *answer[:-1]], len(prompt) - 1, fingerprint.layers)
        assert max(each.distance for each in distances(fingerprint, passed.hidden)) < 0.01
    others = language_model.prefill([*range(30)], 14, fingerprint.layers)
    assert max(each.distance for each in distances(fingerprint, others.hidden)) > 0.05


def test_a_journal_with_several_answers_to_a_request_and_a_nonce_used_twice_is_accepted_by_the_command(
    serving: Any, language_model: Any, model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Customers may ask for several answers, and their clients may send a request again."""
    from tallystick.tally.cli.entry import run

    journal, policy = tmp_path / "receipts.jsonl", tmp_path / "policy.toml"
    policy.write_text("demands = []\ncomplete = true\n[sampler]\ndishonest = 0.9\n")
    with serving(language_model, journal=journal) as server:
        for fields in (CHAT | {"n": 3}, TEXT | {"n": 2}, TEXT | {"n": 2}, CHAT, CHAT | {"tally_nonce": "cd" * 16}):
            response, _ = asked(server, **fields)
            assert response["receipt"]
    code = run(["verify-response", str(journal), "--model", str(model_directory), "--policy", str(policy), "-v"])
    told = capsys.readouterr().out
    assert code == 0, told
    assert "8 receipts of different requests" in told
