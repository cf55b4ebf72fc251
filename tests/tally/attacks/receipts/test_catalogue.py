"""Every forgery of receipts is answered as it has to be, and the same handed over honestly is accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.core.documents import decode_base64
from tallystick.core.errors import MalformedError, ProofError
from tallystick.formats.receipt import Fingerprint, SignedReceipt
from tallystick.formats.signing import verify_receipt_signature
from tallystick.verdicts.fingerprints import distances
from tests.support.attacks.receipts import evasions
from tests.support.attacks.receipts.catalogue import FORGERIES, Played, forgery_named, judge, play, play_twin
from tests.support.attacks.receipts.forgery import Forgery
from tests.support.attacks.receipts.forging import edit, restate
from tests.support.attacks.receipts.scene import Presented
from tests.support.attacks.receipts.states import known_directions


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda each: each.name)
def test_a_forgery_is_answered_as_it_has_to_be_and_its_twin_accepted(forgery: Forgery, scene: Any) -> None:
    played = play(forgery, scene)
    assert played.is_as_expected(forgery), played
    assert play_twin(forgery, scene).outcome == "accepted"


def test_every_forgery_has_a_name_of_its_own_and_says_what_sees_it() -> None:
    assert len({each.name for each in FORGERIES}) == len(FORGERIES)
    assert all(each.checks for each in FORGERIES if each.outcome != "accepted")
    assert all(each.why for each in FORGERIES if each.outcome == "accepted" and not each.name.startswith("honest"))


def test_a_forgery_is_not_as_expected_where_another_check_objects() -> None:
    forgery = forgery_named("edited")
    assert Played("rejected", ("signature", "usage")).is_as_expected(forgery)
    assert not Played("rejected", ("usage",)).is_as_expected(forgery)
    assert not Played("accepted", ("signature",)).is_as_expected(forgery)
    refused = forgery_named("length bomb")
    assert Played("refused", (), "receipt.request.max_tokens: 1073741824").is_as_expected(refused)
    assert not Played("refused", (), "receipt.model: none").is_as_expected(refused)


def signature_holds(presented: Presented) -> bool:
    body: Any = presented.body
    try:
        verify_receipt_signature(SignedReceipt.from_json(body["receipt"], "receipt"))
    except ProofError:
        return False
    return True


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda each: each.name)
def test_forged_receipts_are_signed_but_where_the_signature_is_what_is_forged(forgery: Forgery, scene: Any) -> None:
    try:
        held = [signature_holds(each) for each in forgery.forge(scene)]
    except MalformedError:
        assert forgery.outcome == "refused"
        return
    assert all(held) == (forgery.name not in ("edited", "key replaced", "signed by nobody"))


def test_forging_leaves_the_honest_answers_as_they_are(scene: Any) -> None:
    before = scene.first.body["receipt"]["receipt"]["engine"]["version"]
    changed: Any = edit(scene.first, {"engine.version": "other"})
    assert changed["receipt"]["receipt"]["engine"]["version"] == "other"
    assert scene.first.body["receipt"]["receipt"]["engine"]["version"] == before


def test_forged_states_are_far_from_the_right_ones_and_have_their_fingerprints(scene: Any) -> None:
    [presented] = known_directions(scene, is_challenged=True)
    assert presented.challenge is not None
    block = scene.first.states.statement.block
    for part in presented.challenge.opening.parts:
        right = scene.first.rows[part.layer][part.block * block : (part.block + 1) * block]
        opened = np.frombuffer(decode_base64(part.data, "part"), "<f4").reshape(right.shape)
        assert np.linalg.norm(opened - right) > 1e-2 * np.linalg.norm(right)
    forged: Any = presented.body
    [own] = [Fingerprint.from_json(each, "own") for each in forged["receipt"]["receipt"]["fingerprints"]]
    assert max(each.distance for each in distances(own, scene.first.rows)) < 1e-4


@pytest.mark.parametrize("what", ["other seed", "other temperature", "token replaced"])
def test_a_form_that_was_promised_is_judged_whatever_a_receipt_leaves_open(what: str, scene: Any) -> None:
    """An honest receipt that states no form passes by the same policy: its tokens are those of the seed.

    So does the coarse head of this random model: its tokens are the very ones.
    """
    sampler = scene.policy.sampler.model_copy(update={"form": "gumbel"})
    promised = replace(scene, policy=scene.policy.model_copy(update={"sampler": sampler}))
    played = play(forgery_named(f"form unknown, {what}"), promised)
    assert (played.outcome, "sampler" in played.checks) == ("rejected", True)
    honest = Forgery("honest, no form", "", lambda each: evasions.stated(each, sampler__form="unknown"), "accepted")
    assert play(honest, promised).outcome == "accepted"
    assert play(honest, scene).outcome == "inconclusive"


def test_no_statement_by_which_a_provider_would_choose_its_checks_is_accepted_by_the_default(scene: Any) -> None:
    """The policy that names nothing but how few tokens are enough."""
    least = ReceiptPolicy(sampler=scene.policy.sampler, fingerprints=scene.policy.fingerprints)
    for forgery in (*evasions.FORGERIES, forgery_named("no fingerprint")):
        assert play(forgery, replace(scene, policy=least)).outcome == forgery.outcome != "accepted", forgery.name
        assert play_twin(forgery, replace(scene, policy=least)).outcome == "accepted", forgery.name


@pytest.mark.parametrize("asks", [True, False], ids=["request", "no request"])
def test_a_penalty_that_nobody_asked_for_is_no_excuse(scene: Any, asks: bool) -> None:
    """Under a penalty of a hundred the tie band is so wide that tokens of a coarse output matrix lie inside."""
    claimed = {**scene.first.receipt["sampler"], "repetition_penalty": 100.0}
    body = restate(scene.coarse, scene.key, {"sampler": claimed, "fingerprints": []})
    policy = ReceiptPolicy(sampler=scene.policy.sampler, fingerprints=scene.policy.fingerprints, demands=())
    verdict = judge((Presented(body, scene.first.request if asks else None),), scene.promised, policy)
    assert verdict.outcome == "inconclusive"
    assert any("repetition penalty of 100" in line for line in verdict.unavailable)
