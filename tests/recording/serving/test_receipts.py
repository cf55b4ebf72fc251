"""Receipts that a server gave out: found again, listed for auditors, challenged, continued after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tallystick.audits.answers.limits import SamplerRule
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.core.http.server import served
from tallystick.formats.hidden_states import StatesOpening, check_states_opening, commit_states
from tallystick.formats.receipt import SignedReceipt
from tallystick.formats.signing import SigningKey, sign_receipt, verify_receipt_signature
from tallystick.recording.receipts import RecordSettings
from tallystick.tally.answers import verify
from tests.support.limits import rule_of

AUDITOR = {"Authorization": "Bearer auditors-key"}
BODY = {"model": "tiny", "prompt": "the stick", "max_tokens": 6, "temperature": 0}


def ask(server: Any, **fields: Any) -> Any:
    return server.http.post("/v1/completions", json=BODY | fields).json()


def listed(server: Any, after: int) -> list[SignedReceipt]:
    lines = server.http.get(f"/v1/receipts?after={after}", headers=AUDITOR).content.splitlines()
    return [SignedReceipt.from_bytes(line, "line") for line in lines]


def test_a_receipt_is_found_again_by_its_request(server: Any) -> None:
    response = ask(server)
    assert server.http.get(f"/v1/receipts/{response['id']}").json() == response["receipt"]


def test_auditors_see_every_receipt_in_an_unbroken_chain(server: Any) -> None:
    before = ask(server)["receipt"]["receipt"]["sequence"]
    names = [ask(server)["id"] for _ in range(3)]
    found = listed(server, before)
    assert [each.receipt.request.id for each in found] == names
    assert [each.receipt.sequence for each in found] == [before + 1, before + 2, before + 3]
    assert [each.receipt.previous for each in found[1:]] == [each.receipt.identity for each in found[:-1]]
    for each in found:
        verify_receipt_signature(each)


def test_customers_may_not_list_receipts(server: Any) -> None:
    assert server.http.get("/v1/receipts?after=0").status_code == 401


def test_committed_states_are_opened_at_the_places_that_a_nonce_selects(server: Any) -> None:
    response = ask(server)
    nonce = bytes(range(16))
    asked = {"nonce": nonce.hex(), "count": 2}
    answer = server.http.post(f"/v1/receipts/{response['id']}/challenge", json=asked)
    states = SignedReceipt.from_json(response["receipt"], "receipt").receipt.states
    assert states is not None
    opening = StatesOpening.from_bytes(answer.content, "opening")
    found = check_states_opening(opening, states, nonce, 2)
    assert len(found) == 2


@pytest.mark.parametrize(
    "body",
    [{"nonce": "xyz", "count": 1}, {"nonce": "ab", "count": 0}, {"nonce": "ab"}, {}, {"nonce": "ab", "layer": 1}],
)
def test_a_challenge_that_makes_no_sense_is_refused(server: Any, body: dict[str, Any]) -> None:
    assert server.http.post(f"/v1/receipts/{ask(server)['id']}/challenge", json=body).status_code == 400


@pytest.fixture(scope="module")
def committing(serving: Any, language_model: Any) -> Iterator[Any]:
    """A server that commits to the states of every layer, prompt and answer, and to no fingerprints."""
    layers = tuple(range(language_model.card.layers + 1))
    with serving(language_model, RecordSettings(committed=layers, block=4, prompt=True)) as running:
        yield running


LAX = ReceiptPolicy(
    sampler=SamplerRule(dishonest=0.9),
    demands=(),
    fingerprints=rule_of(1e-4),
)


def challenged(server: Any, model: Any, response: dict[str, Any], **asked: Any) -> Any:
    return verify(response, model=model, policy=LAX, challenge=f"{server.url}/v1", rung=3, **asked)


@pytest.mark.parametrize("layer", [None, 0, 1])
def test_one_layer_of_a_served_answer_is_opened_and_judged(
    committing: Any, language_model: Any, layer: int | None
) -> None:
    report = challenged(committing, language_model, ask(committing), layer=layer)
    assert (report.outcome, report.rung) == ("accepted", 3), report.verdict
    assert {"states", "layer"} <= {each.name for each in report.findings if each.agrees}


def test_a_layer_that_was_not_computed_as_promised_is_rejected(committing: Any, language_model: Any) -> None:
    issuer, key = committing.service.issuer, committing.service.issuer.key
    response = ask(committing)
    name, signed = response["id"], SignedReceipt.from_json(response["receipt"], "receipt")
    rows = {layer: each.values() for layer, each in issuer.held.of(name).states.items()}
    rows[1] = rows[0]  # the layer was skipped
    forged = commit_states(rows, tuple(rows), 4, prompt=True)
    issuer.held.hold(name, forged)
    receipt = signed.receipt.model_copy(update={"states": forged.statement})
    found = challenged(committing, language_model, {"receipt": sign_receipt(receipt, key).to_json()}, layer=1)
    assert {"states", "layer"} == {each.name for each in found.verdict.objections}
    other = challenged(committing, language_model, response, layer=1)
    assert "of other states" in " ".join(each.detail for each in other.verdict.objections)


def test_a_server_that_opens_nothing_leaves_the_verdict_open(
    committing: Any, serving: Any, language_model: Any
) -> None:
    from fastapi import FastAPI

    app = FastAPI()
    app.post("/v1/receipts/{name}/challenge")(lambda name: {"opening": 2})

    def reason(server: Any, response: dict[str, Any]) -> str:
        report = challenged(server, language_model, response)
        assert report.outcome == "inconclusive"
        return " ".join(map(str, report.missing))

    with serving(language_model, committing.service.issuer.settings, held_bytes_max=1) as forgetful:
        assert "are not held" in reason(forgetful, ask(forgetful))
    with serving(language_model) as bare:
        assert "commits to none" in reason(bare, ask(bare))
    with served(app) as url:
        assert "must be 1, not 2" in reason(SimpleNamespace(url=url), ask(committing))


def test_what_is_not_held_is_not_found(server: Any) -> None:
    assert server.http.get("/v1/receipts/unknown").status_code == 404
    assert server.http.post("/v1/receipts/unknown/challenge", json={"nonce": "ab", "count": 1}).status_code == 404


def test_states_that_are_held_no_longer_are_gone_and_say_so(serving: Any, language_model: Any) -> None:
    settings = RecordSettings(committed=(0, language_model.card.layers), block=4)
    with serving(language_model, settings, held_bytes_max=5000) as server:
        first = ask(server)
        for _ in range(40):
            ask(server)
            assert 0 < server.service.issuer.held.size_bytes <= 5000
        answer = server.http.post(f"/v1/receipts/{first['id']}/challenge", json={"nonce": "ab", "count": 1})
        latest = ask(server)
        kept = server.http.post(f"/v1/receipts/{latest['id']}/challenge", json={"nonce": "ab", "count": 1})
    assert (answer.status_code, kept.status_code) == (410, 200)
    assert answer.json()["error"]["code"] == "states_gone"
    assert "up to 5000 bytes" in answer.json()["error"]["message"]


def test_a_restarted_server_goes_on_where_its_journal_ends(serving: Any, language_model: Any, journal: Path) -> None:
    key = SigningKey(bytes(range(32)))
    with serving(language_model, key=key, journal=journal) as server:
        first = ask(server)
    with serving(language_model, key=key, journal=journal) as server:
        second = ask(server)
        assert server.http.get(f"/v1/receipts/{first['id']}").json() == first["receipt"]
        assert [each.to_json() for each in listed(server, 0)] == [first["receipt"], second["receipt"]]
        assert [each.to_json() for each in listed(server, 1)] == [second["receipt"]]
    assert second["receipt"]["receipt"]["sequence"] == 2


def test_a_private_receipt_holds_no_tokens_and_the_response_does(serving: Any, language_model: Any) -> None:
    with serving(language_model, RecordSettings(private=True)) as server:
        response = ask(server)
    receipt = SignedReceipt.from_json(response["receipt"], "receipt").receipt
    assert (receipt.request.prompt.ids, receipt.answer.tokens.ids) == (None, None)
    assert len(response["choices"][0]["token_ids"]) == receipt.answer.tokens.count == 6
