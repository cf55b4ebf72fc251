"""A wrapped client answers as before, and its answers are verified in the background."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tallystick
from tallystick.audits.answers.background import with_nonce
from tallystick.audits.answers.limits import SamplerRule
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.watching import read_chunks
from tallystick.core.errors import InconclusiveError, MalformedError, RejectedError, UsageError
from tallystick.formats.receipt import Sampler
from tallystick.formats.signing import SigningKey
from tests.support.limits import rule_of

MESSAGES = [{"role": "user", "content": "hi"}]
POLICY = ReceiptPolicy(sampler=SamplerRule(dishonest=0.4, beta=0.05), fingerprints=rule_of(1e-4), demands=())


class Provider:
    """What of the `openai` client is used here, over the tiny model; `lie` changes a response before it goes out."""

    def __init__(self, language_model: Any, lie: Callable[[dict[str, Any]], None] = lambda body: None) -> None:
        from tallystick.recording.receipts import ReceiptIssuer

        self.language_model, self.lie = language_model, lie
        self.issuer = ReceiptIssuer(language_model, SigningKey(bytes(32)))
        self.seen: list[dict[str, Any]] = []
        self.closed = False
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create, other="untouched"))
        self.completions = SimpleNamespace(create=self.create)
        self.models = "untouched"

    def create(self, **asked: Any) -> Any:
        self.seen.append(asked)
        body = self.respond(asked)
        self.lie(body)
        return iter(chunks_of(body)) if asked.get("stream") else body

    def respond(self, asked: dict[str, Any]) -> dict[str, Any]:
        from tallystick.recording.generation import AnswerRequest, generate_plain

        model = self.language_model
        is_chat = "messages" in asked
        prompt = model.encode_chat(asked["messages"]) if is_chat else model.encode_text(asked["prompt"])
        sampler = Sampler(seed=asked["seed"], temperature=asked.get("temperature", 1.0))
        named = AnswerRequest("r1", asked["extra_body"]["tally_nonce"], sampler)
        [answer] = generate_plain(model, [prompt], asked["max_tokens"], [named], self.issuer)
        text = model.decode(answer.tokens)
        choice = {"index": 0, "finish_reason": "length", "token_ids": list(answer.tokens)}
        return {
            "id": "r1",
            "choices": [choice | ({"message": {"content": text}} if is_chat else {"text": text})],
            "prompt_token_ids": list(prompt),
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(answer.tokens)},
            "receipt": answer.issued.signed.to_json(),
        }

    def with_options(self, **options: Any) -> Provider:
        return self

    def close(self) -> None:
        self.closed = True


def chunks_of(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    [choice] = body["choices"]
    text = choice["message"]["content"]
    for start in range(0, len(text), 3):
        delta = {"index": 0, "delta": {"content": text[start : start + 3]}, "token_ids": None}
        yield {"id": body["id"], "choices": [delta]}
    last = {"index": 0, "delta": {}, "token_ids": choice["token_ids"], "finish_reason": "length"}
    yield {"id": body["id"], "choices": [last], "usage": None}
    yield {"id": body["id"], "choices": [], "usage": body["usage"], "receipt": body["receipt"]}


def ask(client: Any, **asked: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=10, **asked)


def outcomes(client: Any) -> list[str]:
    return [each.verdict.outcome for each in client.wait()]


def outcomes_of(client: Any) -> list[str]:
    return [each.verdict.outcome for each in client.verdicts]


def outcomes_after(client: Any, ask_for: Callable[[], object]) -> list[str]:
    ask_for()
    return outcomes(client)


def leave_early(stream: Any) -> None:
    with stream:
        next(stream)


def test_honest_answers_are_accepted_and_untouched(language_model: Any) -> None:
    provider = Provider(language_model)
    with tallystick.wrap(provider, model=language_model, policy=POLICY) as client:
        answer = ask(client)
        text = client.completions.create(model="tiny", prompt="halves", max_tokens=10)
        assert outcomes(client) == ["accepted", "accepted"], client.verdicts
        assert answer["id"] == "r1"
        assert text["choices"][0]["text"]
        assert client.models == "untouched"
        assert client.chat.completions.other == "untouched"
    assert provider.closed
    assert [each.tokens for each in client.evidence] == [20]
    assert len({each["extra_body"]["tally_nonce"] for each in provider.seen}) == 2
    assert all(isinstance(each["seed"], int) for each in provider.seen)
    assert all("seed" not in line for each in client.verdicts for line in each.verdict.not_checked)


def test_a_stream_is_handed_on_and_checked(language_model: Any) -> None:
    with tallystick.wrap(Provider(language_model), model=language_model, policy=POLICY) as client:
        with ask(client, stream=True) as stream:
            text = "".join((chunk["choices"] or [{}])[0].get("delta", {}).get("content", "") for chunk in stream)
        assert text
        assert outcomes(client) == ["accepted"], client.verdicts


def test_a_stream_that_is_left_early_is_inconclusive(language_model: Any) -> None:
    with tallystick.wrap(Provider(language_model), model=language_model, policy=POLICY) as client:
        with pytest.warns(tallystick.UnverifiedAnswerWarning, match="could not be verified"):
            assert outcomes_after(client, lambda: leave_early(ask(client, stream=True))) == ["inconclusive"]
        assert "receipt" in client.verdicts[0].verdict.unavailable[0]
        assert not client.verdicts[0]
        assert repr(client.verdicts[0]).startswith("<Checked inconclusive: ")


@pytest.mark.parametrize(
    "lie",
    [
        lambda body: body["usage"].update(completion_tokens=11),
        lambda body: body["choices"][0]["message"].update(content="edited"),
        lambda body: body["choices"][0].update(token_ids=[1] * 10),
        lambda body: body["receipt"]["receipt"]["sampler"].update(seed=1),
    ],
)
def test_lies_are_rejected_with_a_warning(language_model: Any, lie: Callable[[dict[str, Any]], None]) -> None:
    with tallystick.wrap(Provider(language_model, lie), model=language_model, policy=POLICY) as client:
        with pytest.warns(tallystick.UnverifiedAnswerWarning, match="was rejected: ") as told:
            assert outcomes_after(client, lambda: ask(client)) == ["rejected"]
        assert [(str(each.message).count("\n"), each.filename) for each in told] == [(0, __file__)]


def test_an_old_receipt_is_rejected_for_its_nonce(language_model: Any) -> None:
    provider = Provider(language_model)
    with tallystick.wrap(provider, model=language_model, policy=POLICY) as client:
        first = ask(client, seed=4)
        assert outcomes(client) == ["accepted"]
        provider.lie = lambda body: body.update(first)
        with pytest.warns(tallystick.UnverifiedAnswerWarning, match="nonce"):
            assert outcomes_after(client, lambda: ask(client, seed=4))[1] == "rejected"
    assert {finding.name for finding in client.verdicts[1].verdict.objections} == {"nonce"}


def test_what_cannot_be_checked_is_inconclusive_and_no_exception(language_model: Any) -> None:
    def without(body: dict[str, Any]) -> None:
        del body["receipt"]

    ignoring: dict[str, Any] = {"policy": POLICY, "on_inconclusive": "ignore"}
    with tallystick.wrap(Provider(language_model, without), model=language_model, **ignoring) as client:
        assert ask(client)["id"] == "r1"
        assert outcomes(client) == ["inconclusive"]
    with tallystick.wrap(Provider(language_model), model="/nowhere", **ignoring) as client:
        ask(client)
        assert outcomes(client) == ["inconclusive"]
        assert "/nowhere" in client.verdicts[0].verdict.unavailable[0]


def swapped(body: dict[str, Any]) -> None:
    body["choices"][0]["message"].update(content="edited")


def without_receipt(body: dict[str, Any]) -> None:
    del body["receipt"]


def test_a_client_that_raises_hands_on_accepted_answers_alone(language_model: Any) -> None:
    provider = Provider(language_model)
    raising: dict[str, Any] = {"policy": POLICY, "on_reject": "raise", "on_inconclusive": "raise"}
    with tallystick.wrap(provider, model=language_model, **raising) as client:
        assert ask(client)["id"] == "r1"
        assert list(ask(client, stream=True))
        provider.lie = swapped
        with pytest.raises(RejectedError, match="was rejected: ") as caught:
            ask(client)
        assert (caught.value.exit_code, caught.value.checked) == (1, client.verdicts[-1])
        assert caught.value.answer["choices"][0]["message"]["content"] == "edited"
        seen: list[Any] = []
        with pytest.raises(RejectedError):
            seen.extend(ask(client, stream=True))
        assert seen[-1]["receipt"]  # a stream raises at its end, when all of it has been handed on
        provider.lie = without_receipt
        with pytest.raises(InconclusiveError, match="could not be verified: could not check"):
            ask(client)
    assert outcomes_of(client) == ["accepted", "accepted", "rejected", "rejected", "inconclusive"]


def test_rejected_and_inconclusive_answers_may_have_different_consequences(language_model: Any) -> None:
    provider = Provider(language_model, without_receipt)
    with tallystick.wrap(provider, model=language_model, policy=POLICY, on_reject="raise") as client:
        with pytest.warns(tallystick.UnverifiedAnswerWarning):
            assert ask(client)["id"] == "r1"
        provider.lie = swapped
        with pytest.raises(RejectedError):
            ask(client)
    with pytest.raises(UsageError, match="'warn', 'raise' or 'ignore'"):
        tallystick.wrap(provider, model=language_model, on_reject="crash")  # type: ignore[arg-type]


def test_answers_of_another_key_are_rejected(language_model: Any) -> None:
    mine, other = SigningKey(bytes(32)).public, SigningKey(bytes(range(32))).public
    ignoring: dict[str, Any] = {"policy": POLICY, "on_reject": "ignore"}
    for keys, outcome in (([mine], "accepted"), ([other, mine], "accepted"), ([other], "rejected")):
        with tallystick.wrap(Provider(language_model), model=language_model, trusted_keys=keys, **ignoring) as client:
            ask(client)
            assert outcomes(client) == [outcome]
            assert not any("whose key" in line for line in client.verdicts[0].verdict.not_checked)


def test_a_client_with_other_options_is_verified_too(language_model: Any) -> None:
    provider = Provider(language_model, swapped)
    with (
        tallystick.wrap(provider, model=language_model, policy=POLICY, on_reject="raise") as client,
        pytest.raises(RejectedError),
    ):
        ask(client.with_options(timeout=3))


def test_an_error_of_the_provider_travels_on(language_model: Any) -> None:
    def refuse(body: dict[str, Any]) -> None:
        raise ConnectionError("gone")

    with tallystick.wrap(Provider(language_model, refuse), model=language_model) as client:
        with pytest.raises(ConnectionError):
            ask(client)
        assert outcomes(client) == []


def test_verdicts_are_told_and_checking_blocks_nobody(language_model: Any) -> None:
    told: list[Any] = []
    gate = threading.Event()

    class Slow:
        def __getattr__(self, name: str) -> Any:
            if name == "prefill":
                assert gate.wait(30)
            return getattr(language_model, name)

    with tallystick.wrap(Provider(language_model), model=Slow(), policy=POLICY, on_verdict=told.append) as client:
        for _ in range(3):
            ask(client)
        assert client.verdicts == ()
        gate.set()
        assert outcomes(client) == ["accepted"] * 3
    assert len(told) == 3
    assert all(len(each.reports) == 1 for each in told)


def test_a_share_of_the_answers_can_be_checked(language_model: Any) -> None:
    none = POLICY.model_copy(update={"audit_sample": 0.0})
    with tallystick.wrap(Provider(language_model), model=language_model, policy=none) as client:
        ask(client)
        assert outcomes(client) == ["inconclusive"]
        assert "not in the sample" in client.verdicts[0].verdict.not_checked[0]


def test_a_nonce_and_a_seed_of_the_customers_are_kept() -> None:
    asked = {"seed": 7, "extra_body": {"tally_nonce": "ab", "top_k": 3}}
    assert with_nonce(asked) == asked
    drawn = with_nonce({"messages": []})
    assert len(drawn["extra_body"]["tally_nonce"]) == 32
    assert 0 <= drawn["seed"] < 2**52
    assert with_nonce({"extra_body": {"seed": 5}}).get("seed") is None


def test_chunks_amount_to_a_response() -> None:
    usage = {"prompt_tokens": 1}
    first = {"id": "x", "choices": [{"index": 0, "text": "a", "token_ids": [1]}]}
    last = {"choices": [{"index": 0, "text": "b", "token_ids": [2], "finish_reason": "stop"}], "usage": usage}
    reader = read_chunks("text", [("", first), ("", last)])
    assert reader.fields == {"id": "x", "usage": usage}
    assert reader.choices[0].fields() == {"content": "ab", "token_ids": [1, 2], "finish_reason": "stop"}


def test_one_response_is_verified_in_any_form(language_model: Any, model_directory: Any) -> None:
    import json

    provider = Provider(language_model)
    asked = with_nonce({"messages": MESSAGES, "max_tokens": 10})
    body = provider.respond(asked)
    dumped = SimpleNamespace(model_dump=lambda **_: body)
    for response in (body, json.dumps(body), json.dumps(body).encode(), dumped, body["receipt"]):
        report = tallystick.verify(response, model=language_model, policy=POLICY, request=asked)
        assert report.outcome == "accepted", report.verdict
    assert tallystick.verify(body, model=model_directory, policy=POLICY).outcome == "accepted"
    with pytest.raises(MalformedError, match="no response"):
        tallystick.verify(5, model=language_model)


def test_looking_at_the_names_loads_nothing() -> None:
    code = "import sys, tallystick; print(tallystick.__all__); print('torch' in sys.modules, 'pydantic' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert {"'verify'", "'wrap'"} <= set(out.split("]")[0].strip("[").split(", "))
    assert out.endswith("False False\n")


def test_wrap_and_verify_load_no_framework_before_there_is_a_model() -> None:
    code = "import sys, tallystick; tallystick.wrap, tallystick.verify; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "False\n"


def test_the_official_client_against_the_real_server(server: Any, model_directory: Path) -> None:
    with tallystick.wrap(server.openai.copy(), model=model_directory, policy=POLICY) as client:
        answer = ask(client, temperature=0.9)
        stream = ask(client, stream=True, stream_options={"include_usage": True})
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert outcomes(client) == ["accepted", "accepted"], [each.verdict for each in client.verdicts]
        assert answer.choices[0].message.content
        assert text


def read_whole(stream: Any) -> None:
    assert list(stream)


def by_helper(client: Any) -> None:
    with client.chat.completions.stream(model="tiny", messages=MESSAGES, max_tokens=10) as stream:
        assert [event for event in stream if event.type == "content.delta"]


def respond_by(responses: Any, **asked: Any) -> Any:
    return responses.create(model="tiny", input="hi", max_output_tokens=10, **asked)


def by_response_helper(client: Any) -> None:
    with client.responses.stream(model="tiny", input="hi", max_output_tokens=10) as stream:
        assert [event for event in stream if event.type == "response.output_text.delta"]


def by_open_response(client: Any, read: Callable[[Any], object], **asked: Any) -> None:
    with ask_by(client.chat.completions.with_streaming_response, **asked) as response:
        assert read(response)


def ask_by(completions: Any, **asked: Any) -> Any:
    return completions.create(model="tiny", messages=MESSAGES, max_tokens=10, **asked)


FORMS: dict[str, Callable[[Any], object]] = {
    "options": lambda client: ask(client.with_options(timeout=120)),
    "copy": lambda client: ask(client.copy()),
    "several": lambda client: ask(client, n=3),
    "several, streamed": lambda client: read_whole(ask(client, n=2, stream=True)),
    "helper": by_helper,
    "raw": lambda client: ask_by(client.chat.completions.with_raw_response).parse(),
    "raw, streamed": lambda client: read_whole(ask_by(client.chat.completions.with_raw_response, stream=True).parse()),
    "opened, parsed": lambda client: by_open_response(client, lambda response: response.parse().choices),
    "opened, bytes": lambda client: by_open_response(client, lambda response: list(response.iter_bytes(7))),
    "opened, lines": lambda client: by_open_response(client, lambda each: list(each.iter_lines()), stream=True),
    "opened, stream": lambda client: by_open_response(client, lambda each: list(each.parse()), stream=True),
    "text": lambda client: client.completions.create(model="tiny", prompt="halves", max_tokens=10),
    "response": lambda client: respond_by(client.responses),
    "response, streamed": lambda client: read_whole(respond_by(client.responses, stream=True)),
    "response, helper": lambda client: by_response_helper(client),
    "response, raw": lambda client: respond_by(client.responses.with_raw_response).parse(),
}


def official(server: Any) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="anything", max_retries=0, timeout=120)


def test_every_form_of_an_answer_is_verified(server: Any, model_directory: Path) -> None:
    with tallystick.wrap(official(server), model=model_directory, policy=POLICY) as client:
        for number, (name, form) in enumerate(FORMS.items(), 1):
            form(client)
            assert outcomes(client) == ["accepted"] * number, (name, client.verdicts[-1].verdict)
        assert [len(each.reports) for each in client.verdicts[2:4]] == [3, 2]


def test_every_form_of_an_answer_raises_where_it_is_rejected(
    serving: Any, long_model: Any, model_directory: Path
) -> None:
    raising: dict[str, Any] = {"model": model_directory, "policy": POLICY, "on_reject": "raise"}
    with serving(long_model) as cheating, tallystick.wrap(cheating.openai.copy(), **raising) as client:
        for form in FORMS.values():
            with pytest.raises(RejectedError, match="model"):
                form(client)


def test_a_message_of_an_earlier_answer_can_be_sent_again(server: Any, model_directory: Path) -> None:
    ignoring: dict[str, Any] = {"policy": POLICY, "on_inconclusive": "ignore"}
    with tallystick.wrap(official(server), model=model_directory, **ignoring) as client:
        said = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=4).choices[0].message
        short = said.model_copy(update={"content": "hi"})  # the model's context is short
        client.chat.completions.create(model="tiny", messages=[short], max_tokens=7)
        assert outcomes(client)[1] != "rejected", client.verdicts[1].verdict
        assert "prompt" in {each.name for each in client.verdicts[1].verdict.findings}


@pytest.fixture
def coarse_model(model_directory: Path) -> Any:
    from tallystick.engines.torch.generation.language_models import load_language_model

    return load_language_model(model_directory, "BF16")


COARSE = POLICY.model_copy(update={"sampler": SamplerRule(dishonest=0.4, beta=0.05, band=0.5)})


def test_an_answer_is_judged_in_the_precision_of_its_receipt(coarse_model: Any, model_directory: Path) -> None:
    provider = Provider(coarse_model)
    with tallystick.wrap(provider, model=model_directory, policy=COARSE, on_inconclusive="ignore") as client:
        ask(client)
        [checked] = client.wait()
    assert checked.reports[0].model == coarse_model.card.identity
    assert {each.name for each in checked.verdict.findings} >= {"model", "sampler"}
    assert not checked.verdict.objections
    assert any("BF16 is the promised precision" in line for line in checked.verdict.not_checked)


def test_a_precision_that_the_policy_does_not_list_is_rejected(coarse_model: Any, model_directory: Path) -> None:
    strict = COARSE.model_copy(update={"dtypes": ("F32",)})
    with tallystick.wrap(Provider(coarse_model), model=model_directory, policy=strict, on_reject="ignore") as client:
        ask(client)
        assert outcomes(client) == ["rejected"]
    assert "that of the model in BF16" in client.verdicts[0].verdict.objections[0].detail


def test_threads_that_begin_at_once_load_the_model_once(
    language_model: Any, model_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallystick.audits.answers import verification
    from tallystick.engines.torch.generation import kept_pass

    verification._load.cache_clear()
    loads: list[object] = []
    entered = threading.Event()

    def load(path: Path, dtype: str) -> Any:
        loads.append(dtype)
        entered.wait(0.2)  # long enough for others to come while the first is at it
        return language_model

    monkeypatch.setattr(kept_pass, "load_promised", load)
    start = threading.Barrier(6)

    def use() -> None:
        start.wait()
        with tallystick.wrap(Provider(language_model), model=model_directory, policy=POLICY) as client:
            ask(client)
            assert outcomes(client) == ["accepted"]

    threads = [threading.Thread(target=use) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    verification._load.cache_clear()
    assert loads == ["F32"]


ENDING = """
import concurrent.futures as futures, types, tallystick

def create(**asked):
    return iter([{"choices": []}] * 2) if asked.get("stream") else {"choices": []}

def tell(checked):
    with futures.ThreadPoolExecutor(1) as pool:  # as loading a model does
        pool.submit(print, checked.outcome, flush=True).result()

completions = types.SimpleNamespace(create=create)
client = types.SimpleNamespace(chat=types.SimpleNamespace(completions=completions))
client = tallystick.wrap(client, model="/nowhere", on_verdict=tell)
client.chat.completions.create(messages=[])
left = client.chat.completions.create(messages=[], stream=True)
next(left)
print("end", flush=True)
"""


def test_no_verdict_is_lost_where_a_program_ends() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, check=True)
    assert sorted(ended.stdout.split()) == ["end", "inconclusive", "inconclusive"]
    assert ended.stderr.count("UnverifiedAnswerWarning") == 2
    assert "the answer was not read to its end" in ended.stderr


def test_a_stream_that_is_forgotten_is_told(language_model: Any) -> None:
    client = tallystick.wrap(Provider(language_model), model=language_model, policy=POLICY)
    forgotten = ask(client, stream=True)
    with pytest.warns(tallystick.UnverifiedAnswerWarning, match="not read to its end"):
        client.close()
    assert next(forgotten)


def test_the_asynchronous_client_against_the_real_server(server: Any, model_directory: Path) -> None:
    import asyncio

    import openai

    async def talk() -> Any:
        own = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="anything", max_retries=0, timeout=120)
        async with tallystick.wrap(own, model=model_directory, policy=POLICY, on_reject="raise") as client:
            answer = await ask(client, temperature=0.9)
            stream = await ask(client, stream=True, stream_options={"include_usage": True})
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
            await ask(client.with_options(timeout=120), n=2)
            (await ask_by(client.chat.completions.with_raw_response)).parse()
            async with ask_by(client.chat.completions.with_streaming_response) as response:
                assert await response.json()
            async with client.chat.completions.stream(model="tiny", messages=MESSAGES, max_tokens=10) as helped:
                assert [event async for event in helped]
            assert (await respond_by(client.responses)).output_text
            assert [event async for event in await respond_by(client.responses, stream=True)]
            async with client.responses.stream(model="tiny", input="hi", max_output_tokens=10) as helped:
                assert [event async for event in helped]
            async with await ask(client, stream=True) as left:
                await anext(left)
            return client, answer, "".join(parts)

    with pytest.warns(tallystick.UnverifiedAnswerWarning, match="could not be verified"):
        client, answer, text = asyncio.run(talk())
    assert outcomes_of(client) == ["accepted"] * 9 + ["inconclusive"], client.verdicts
    assert answer.choices[0].message.content
    assert text


def test_a_cheating_server_is_told_to_the_official_clients(
    serving: Any, server: Any, long_model: Any, model_directory: Path
) -> None:
    import asyncio

    import openai

    raising: dict[str, Any] = {"model": model_directory, "policy": POLICY, "on_reject": "raise"}

    async def ask_awaiting(url: str) -> None:
        own = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="anything", max_retries=0, timeout=120)
        async with tallystick.wrap(own, **raising) as client:
            await ask(client)

    with serving(long_model) as cheating:
        with tallystick.wrap(cheating.openai.copy(), **raising) as client:
            with pytest.raises(RejectedError, match="model"):
                ask(client)
            with pytest.raises(RejectedError, match="model"):
                list(ask(client, stream=True))
        with pytest.raises(RejectedError, match="model"):
            asyncio.run(ask_awaiting(cheating.url))
