"""The official client of OpenAI against the server: chat, text, streams, seeds, usage, receipts."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.formats.receipt import SignedReceipt, tokens_digest
from tallystick.formats.signing import verify_receipt_signature

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "halves"}]


def receipt_of(response: Any) -> Any:
    signed = SignedReceipt.from_json(response.receipt, "receipt")
    verify_receipt_signature(signed)
    return signed.receipt


def chat(server: Any, **fields: Any) -> Any:
    return server.openai.chat.completions.create(**{"model": "tiny", "messages": HELLO, "max_tokens": 6, **fields})


def text(server: Any, **fields: Any) -> Any:
    return server.openai.completions.create(**{"model": "tiny", "prompt": "the stick", "max_tokens": 6, **fields})


def test_a_chat_is_answered_with_usage_and_a_signed_receipt_of_its_tokens(server: Any, language_model: Any) -> None:
    response = chat(server, temperature=0)
    receipt, choice = receipt_of(response), response.choices[0]
    prompt = language_model.encode_chat(HELLO)
    assert response.prompt_token_ids == prompt
    assert receipt.request.prompt.ids == tuple(prompt)
    assert receipt.answer.tokens.ids == tuple(choice.token_ids)
    assert choice.message.content == language_model.decode(choice.token_ids)
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (len(prompt), 6)
    assert (choice.finish_reason, receipt.answer.finish) == ("length", "length")
    assert (response.id, response.model, response.object) == (receipt.request.id, "tiny", "chat.completion")
    assert receipt.model == response.system_fingerprint == language_model.card.identity
    assert len(receipt.fingerprints) == 1
    assert receipt.fingerprints[0].tokens == 6


def test_greedy_tokens_are_those_of_the_bare_model(server: Any, language_model: Any) -> None:
    response = text(server, temperature=0)
    tokens = list(response.prompt_token_ids)
    for _ in range(6):
        tokens.append(int(language_model.prefill(tokens, len(tokens) - 1).logits[0].argmax()))
    assert response.choices[0].token_ids == tokens[-6:]


def test_a_text_completion_takes_text_or_its_tokens(server: Any, language_model: Any) -> None:
    ids = language_model.encode_text("the stick")
    answers = [text(server, prompt=prompt, temperature=0) for prompt in ("the stick", ids, ["the stick"], [ids])]
    assert {each.choices[0].text for each in answers} == {answers[0].choices[0].text}
    assert {receipt_of(each).request.prompt.digest for each in answers} == {tokens_digest(ids)}


def test_a_message_in_parts_is_the_message_in_one(server: Any) -> None:
    parts = [{"type": "text", "text": "hal"}, {"type": "text", "text": "ves"}]
    assert chat(server, messages=[{"role": "user", "content": parts}]).prompt_token_ids == chat(server).prompt_token_ids


def test_a_seed_repeats_an_answer_and_another_seed_gives_another(server: Any) -> None:
    first, again, other = (chat(server, seed=seed, max_tokens=8).choices[0].token_ids for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_without_a_seed_one_is_drawn_and_the_receipt_tells_it(server: Any) -> None:
    response = chat(server, max_tokens=8)
    again = chat(server, max_tokens=8, seed=receipt_of(response).sampler.seed)
    assert again.choices[0].token_ids == response.choices[0].token_ids
    assert receipt_of(chat(server)).sampler.seed != receipt_of(response).sampler.seed


def test_the_receipt_states_the_sampler_and_the_nonce_that_were_asked_for(server: Any) -> None:
    extra = {"top_k": 40, "min_p": 0.01, "repetition_penalty": 1.25, "tally_nonce": "c0ffee"}
    receipt = receipt_of(chat(server, temperature=0.75, top_p=0.5, seed=3, extra_body=extra))
    asked = {"temperature": 0.75, "top_k": 40, "top_p": 0.5, "min_p": 0.01, "repetition_penalty": 1.25, "seed": 3}
    assert receipt.sampler.to_json() == {"form": "gumbel", **asked}
    assert receipt.request.nonce == "c0ffee"


def test_several_choices_have_a_receipt_and_a_seed_each(server: Any) -> None:
    response = chat(server, n=3, seed=20, max_tokens=8)
    receipts = [SignedReceipt.from_json(each, "receipt").receipt for each in response.receipts]
    assert [each.sampler.seed for each in receipts] == [20, 21, 22]
    assert [each.request.id for each in receipts] == [f"{response.id}-{number}" for number in range(3)]
    assert [each.answer.tokens.ids for each in receipts] == [tuple(each.token_ids) for each in response.choices]
    assert receipts[1].answer.tokens.ids == tuple(chat(server, seed=21, max_tokens=8).choices[0].token_ids)
    assert response.usage.completion_tokens == 24
    assert response.receipt == response.receipts[0]


def test_a_stop_text_ends_the_answer_and_is_left_out(server: Any) -> None:
    whole = text(server, temperature=0, max_tokens=12)
    stop = whole.choices[0].text[4:6]
    stopped = text(server, temperature=0, max_tokens=12, stop=[stop, "never there"])
    assert stopped.choices[0].text == whole.choices[0].text.partition(stop)[0]
    assert stopped.choices[0].finish_reason == "stop"
    receipt = receipt_of(stopped)
    assert receipt.answer.finish == "stop"
    assert receipt.answer.tokens.ids == tuple(whole.choices[0].token_ids[: receipt.answer.tokens.count])


@pytest.mark.parametrize("call", [chat, text])
def test_a_stream_gives_the_same_text_and_tokens_and_ends_with_usage_and_receipt(server: Any, call: Any) -> None:
    whole = call(server, seed=5, max_tokens=8)
    *chunks, last = call(server, seed=5, max_tokens=8, stream=True, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage == whole.usage
    receipt = receipt_of(last)
    assert receipt.request.id == last.id == chunks[0].id
    assert receipt.answer == receipt_of(whole).answer
    assert chunks[0].prompt_token_ids == whole.prompt_token_ids
    ids = [token for chunk in chunks for token in chunk.choices[0].token_ids]
    assert ids == whole.choices[0].token_ids
    given = "".join(
        (chunk.choices[0].delta.content or "") if call is chat else chunk.choices[0].text for chunk in chunks
    )
    assert given == (whole.choices[0].message.content if call is chat else whole.choices[0].text)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]


def test_a_stream_without_usage_has_a_choice_in_every_chunk_and_the_receipt_in_the_last(server: Any) -> None:
    chunks = list(chat(server, stream=True, n=2, seed=1))
    assert all(len(chunk.choices) == 1 for chunk in chunks)
    assert [chunk for chunk in chunks[:-1] if hasattr(chunk, "receipt")] == []
    assert len(chunks[-1].receipts) == 2
    assert chunks[-1].choices[0].finish_reason == "length"


def test_headers_name_the_request_and_the_receipt(server: Any) -> None:
    raw = server.openai.chat.completions.with_raw_response.create(model="tiny", messages=HELLO, max_tokens=2)
    response = raw.parse()
    assert raw.headers["tally-receipt"] == receipt_of(response).identity
    assert raw.headers["x-request-id"] == response.id


def test_an_answer_without_a_limit_goes_to_the_end_of_the_context(server: Any) -> None:
    response = chat(server, max_tokens=None, temperature=0)
    assert response.usage.total_tokens == 32


def test_the_model_is_listed_and_found_by_name_and_by_root(server: Any, language_model: Any) -> None:
    assert [each.id for each in server.openai.models.list()] == ["tiny"]
    assert server.openai.models.retrieve("tiny").root == language_model.card.identity
    assert chat(server, model=language_model.card.identity, max_tokens=1).usage.completion_tokens == 1


def test_key_and_card_are_public(server: Any, language_model: Any) -> None:
    told = server.http.get("/v1/key").json()
    assert told == {
        "key": server.service.issuer.key.public,
        "model": language_model.card.identity,
        "card": language_model.card.to_json(),
    }
    assert server.http.get("/health").json() == {"status": "ok", "running": 0, "waiting": 0}
