"""The Responses API without state: answered natively, streamed, and verified like a chat completion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tallystick.audits.answers.limits import SamplerRule
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.tally.answers import verify

POLICY = ReceiptPolicy(sampler=SamplerRule(dishonest=0.9), demands=())
ASKED: dict[str, Any] = {"model": "tiny", "input": "halves", "max_output_tokens": 8}
EXTRA = {"seed": 3, "tally_nonce": "ab" * 16}


@pytest.fixture(scope="module")
def tokens_only(serving: Any, long_model: Any) -> Iterator[Any]:
    """Receipts without fingerprints: judged by tokens alone."""
    with serving(long_model) as running:
        yield running


def outcome(response: Any, model: Any, body: Any) -> str:
    return str(verify(response, model=model, policy=POLICY, request=body).verdict.outcome)


def test_the_official_client_gets_an_answer_that_verifies(tokens_only: Any, long_model: Any) -> None:
    answer = tokens_only.openai.responses.create(**ASKED, instructions="b", temperature=0.8, extra_body=EXTRA)
    assert answer.status == "incomplete"
    assert answer.output_text
    assert answer.usage.output_tokens == 8
    body = ASKED | EXTRA | {"instructions": "b", "temperature": 0.8}
    assert outcome(answer, long_model, body) == "accepted"
    assert outcome(answer, long_model, body | {"input": "another"}) == "rejected"
    assert outcome(answer, long_model, body | {"instructions": "c"}) == "rejected"
    assert outcome(answer, long_model, body | {"max_output_tokens": 9}) == "rejected"
    changed = answer.to_dict()
    changed["output"][0]["content"][0]["text"] += "!"
    assert outcome(changed, long_model, body) == "rejected"


def test_a_stream_ends_with_the_response_and_its_receipt(tokens_only: Any, long_model: Any) -> None:
    events = list(tokens_only.openai.responses.create(**ASKED, stream=True, extra_body=EXTRA))
    assert [each.sequence_number for each in events] == list(range(len(events)))
    last = events[-1].response
    assert "".join(each.delta for each in events if each.type == "response.output_text.delta") == last.output_text
    assert outcome(last, long_model, ASKED | EXTRA) == "accepted"


def test_messages_and_parts_are_those_of_a_chat(tokens_only: Any) -> None:
    parts = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "halves"}]}]
    found = [
        tokens_only.http.post("/v1/responses", json=ASKED | EXTRA | {"input": each}).json()
        for each in ("halves", parts)
    ]
    assert found[0]["token_ids"] == found[1]["token_ids"]
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "halves"}], "max_tokens": 8, "seed": 3}
    same = tokens_only.http.post("/v1/chat/completions", json=chat).json()
    assert found[0]["token_ids"] == same["choices"][0]["token_ids"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"wizardry": 1}, "wizardry"),
    ],
)
def test_what_needs_state_or_is_not_offered_is_refused_by_name(tokens_only: Any, change: Any, param: str) -> None:
    response = tokens_only.http.post("/v1/responses", json=ASKED | change)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
