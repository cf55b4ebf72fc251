"""Limits hold for the models that they were measured on; for others a distance accuses nobody, and clears nobody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tallystick.audits.answers.limits import (
    FingerprintRule,
    Kind,
    MeasuredModels,
    SamplerRule,
    TokenLimits,
    shipped_calibration,
)
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.power import unmeasured_limits, unmeasured_tokens
from tallystick.audits.answers.stream import verify_stream
from tallystick.audits.answers.subject import ReceiptContext, StatesChallenge
from tallystick.audits.answers.verify import verify_receipt
from tallystick.tally.attacks.provers import integer_weights

NONCE = bytes(range(32))
KINDS: tuple[Kind, ...] = ("projection", "toploc", "states")
SHARED: dict[str, Any] = {"tokens": 1, "honest": 1, "honest_largest": 0.0, "honest_typical": 0.0}
FEW = SamplerRule(dishonest=0.3, beta=0.05)


@pytest.fixture(scope="module")
def deep(language_model: Any) -> Any:
    """The tiny model under a card that says it is wider than any on which limits were measured.

    What the verifier's own card says is what counts; nothing else here reads its width.
    """
    return replace(language_model, card=language_model.card.model_copy(update={"width": 5760}))


@pytest.fixture(scope="module")
def answer_of(answered: Callable[..., Any], deep: Any, provider_key: Any) -> Callable[..., Any]:
    """An answer under the root of `deep`, made by whatever model is given."""
    from tallystick.formats.fingerprints import FingerprintSettings
    from tallystick.recording.receipts import ReceiptIssuer, RecordSettings

    settings = RecordSettings((FingerprintSettings(layers=(0, 2, 3), block=8),), committed=(0, 1, 2), block=8)
    return lambda model=deep: answered(issuer=ReceiptIssuer(deep, provider_key, settings), model=model)


def card_of(language_model: Any, dtype: str, layers: int, width: int) -> Any:
    return language_model.card.model_copy(update={"dtype": dtype, "layers": layers, "width": width})


@pytest.mark.parametrize(
    ("dtype", "layers", "width", "holds"),
    [
        ("F32", 6, 128, True),
        ("F32", 30, 576, True),
        ("F32", 31, 576, False),
        ("F32", 30, 577, False),
        ("BF16", 6, 128, True),
        ("BF16", 60, 4096, False),
        ("F16", 2, 48, True),
        ("F16", 7, 64, False),
    ],
)
def test_limits_and_bands_hold_where_they_were_measured(
    language_model: Any, dtype: str, layers: int, width: int, holds: bool
) -> None:
    card = card_of(language_model, dtype, layers, width)
    lines = [unmeasured_limits(FingerprintRule(), kind, card) for kind in KINDS]
    lines.append(unmeasured_tokens(SamplerRule(), card))
    assert [line == "" for line in lines] == [holds] * 4
    assert all(f"{layers} layers of width {width} in {dtype}" in line for line in lines if line)


def test_the_line_says_what_was_measured_and_what_to_do(language_model: Any) -> None:
    card, command = card_of(language_model, "BF16", 60, 4096), "`tally calibrate-answers MODEL --out TABLE`"
    line = unmeasured_limits(FingerprintRule(), "projection", card)
    assert line.startswith("no limits were measured for 60 layers of width 4096 in BF16 (measured: up to ")
    assert command in line
    assert "--limits" in line
    tokens = unmeasured_tokens(SamplerRule(), card)
    assert command in tokens
    assert "`sampler.band`" in tokens
    assert "`fingerprints.measured`" in unmeasured_limits(FingerprintRule(), "toploc", card)


def test_a_table_of_the_verifiers_own_calibrates_tokens(language_model: Any) -> None:
    card = card_of(language_model, "BF16", 60, 4096)
    own = TokenLimits(dtype="BF16", layers=60, width=4096, band=0.6, mismatches=0.05)
    assert unmeasured_tokens(SamplerRule(limits=(own,)), card) == ""
    assert SamplerRule(limits=(own,)).for_model(card).band == 0.6
    assert unmeasured_tokens(SamplerRule(limits=()), card_of(language_model, "F32", 2, 48)) != ""


def test_limits_of_the_verifiers_own_hold_for_what_it_says(language_model: Any) -> None:
    card, table = card_of(language_model, "BF16", 30, 576), shipped_calibration()
    smaller = FingerprintRule(rows=tuple(each for each in table.rows if each.layers == 6))
    assert unmeasured_limits(smaller, "projection", card) != ""
    own = FingerprintRule(
        rows=tuple(each.model_copy(update={"layers": 31, "width": 600}) for each in smaller.rows or ())
    )
    assert unmeasured_limits(own, "projection", card) == unmeasured_limits(own, "states", card) == ""
    vouched = smaller.model_copy(update={"measured": (MeasuredModels(dtype="BF16", layers=30, width=576),)})
    assert [unmeasured_limits(vouched, kind, card) for kind in KINDS] == [""] * 3
    found, widest = (rule.limits_for(card, 30, 32) for rule in (vouched, own))
    assert found is not None
    assert widest is not None
    assert found.largest == widest.largest
    assert vouched.for_model(card).limits_for(card, 30, 32) == found
    assert smaller.for_model(card) == smaller
    assert smaller.limits_for(card, 30, 32) is None
    assert unmeasured_tokens(SamplerRule(band=1.0), card) == ""


@pytest.mark.parametrize("is_honest", [True, False])
def test_outside_the_range_a_distance_accuses_nobody_and_clears_nobody(
    answer_of: Callable[..., Any], deep: Any, is_honest: bool
) -> None:
    given = answer_of(deep if is_honest else replace(deep, model=integer_weights(deep, 2)))
    report = verify_receipt(given.issued.signed, deep, ReceiptPolicy(sampler=FEW))
    assert report.outcome == "inconclusive"
    assert {each.check for each in report.missing} == {"evidence", "fingerprint"}
    shown = {each.name for each in report.findings if each.advisory}
    assert shown == {"sampler", "evidence"}
    assert "fingerprint" not in {each.name for each in report.findings}
    replies = {report.answers[f"same {what}"] for what in ("model", "precision", "sampler")}
    assert replies == {"unknown"}


@pytest.mark.parametrize("is_honest", [True, False])
def test_a_policy_with_limits_of_its_own_decides(
    answer_of: Callable[..., Any], deep: Any, short_policy: Any, is_honest: bool
) -> None:
    given = answer_of(deep if is_honest else replace(deep, model=integer_weights(deep, 2)))
    policy = short_policy.model_copy(update={"sampler": FEW.model_copy(update={"band": 2e-3})})
    outcome = verify_receipt(given.issued.signed, deep, policy).outcome
    assert outcome == ("accepted" if is_honest else "rejected")


def test_opened_states_outside_the_range_decide_nothing_unless_they_are_not_those_committed(
    answer_of: Callable[..., Any], deep: Any
) -> None:
    given = answer_of(replace(deep, model=integer_weights(deep, 2)))
    opening = given.issued.states.open(NONCE, 4)

    def judged(nonce: bytes) -> Any:
        return verify_receipt(given.issued.signed, deep, challenge=StatesChallenge(nonce, 4, opening))

    far = judged(NONCE)
    assert far.outcome == "inconclusive"
    assert "states" not in {each.name for each in far.findings}
    assert {each.name for each in judged(bytes(32)).verdict.objections} == {"states"}


def test_tokens_that_decide_nothing_do_not_cover_for_those_that_do(
    answered: Callable[..., Any], language_model: Any, short_policy: Any, resigned: Callable[..., Any]
) -> None:
    """One receipt that states no form among others leaves their evidence as it is."""
    from tallystick.audits.answers.response import Response

    honest = answered().issued.signed
    lost, forged = resigned(honest, {"sampler.form": "unknown"}), resigned(honest, {"sampler.seed": 77})

    def judged(*signed: Any) -> Any:
        subjects = [ReceiptContext(Response(receipt=each)) for each in signed]
        return verify_stream(subjects, language_model, short_policy, NONCE)

    assert len(judged(lost, forged).evidence) == 2
    assert "evidence" in {each.name for each in judged(lost, forged).verdict.objections}
    assert any("form unknown" in line for line in judged(lost).verdict.unavailable)
