"""Which model a receipt names: another one, the same in another precision, or a name alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.request import ExpectedRequest
from tallystick.audits.answers.response import Response
from tallystick.audits.answers.verify import verify_receipt
from tallystick.formats.claims import named_root


@pytest.fixture(scope="module")
def halves(model_directory: Path) -> Any:
    """The model of the directory in BF16."""
    from tallystick.engines.torch.generation.language_models import load_language_model

    return load_language_model(model_directory, "BF16")


@pytest.fixture(scope="module")
def in_halves(halves: Any, answered: Callable[..., Any], provider_key: Any) -> Any:
    """A receipt of the model in BF16."""
    from tallystick.formats.fingerprints import standard_fingerprints
    from tallystick.recording.receipts import ReceiptIssuer, RecordSettings

    issuer = ReceiptIssuer(halves, provider_key, RecordSettings(standard_fingerprints(halves.card.layers, "BF16")))
    return answered(model=halves, issuer=issuer).issued.signed


@pytest.fixture(scope="module")
def lax(short_policy: Any) -> Any:
    """A policy with which sixteen tokens are enough, and shipped limits."""
    return ReceiptPolicy(sampler=short_policy.sampler, demands=())


def test_a_receipt_of_another_precision_is_inconclusive_and_says_which(
    in_halves: Any, halves: Any, language_model: Any, lax: Any
) -> None:
    assert verify_receipt(in_halves, halves, lax).outcome == "accepted"
    report = verify_receipt(in_halves, language_model, lax)
    assert report.outcome == "inconclusive"
    assert "prefill" not in report.seconds
    assert "the receipt is for the model in BF16, and it was loaded in F32: give --dtype BF16" in str(report.missing[0])
    assert report.answers["same model"] == "unknown"


def test_a_precision_that_was_not_promised_is_rejected(in_halves: Any, language_model: Any, lax: Any) -> None:
    promised: list[dict[str, Any]] = [{"dtypes": ("F32",)}, {"model": language_model.card.identity}]
    for promise in promised:
        report = verify_receipt(in_halves, language_model, lax.model_copy(update=promise))
        assert [each.name for each in report.verdict.objections] == ["model"]
        assert "BF16" in report.verdict.objections[0].detail


def test_another_model_in_another_precision_is_rejected(
    in_halves: Any, halves: Any, language_model: Any, lax: Any, resigned: Callable[..., Any]
) -> None:
    other = halves.card.model_copy(update={"weights": language_model.card.weights}).identity
    assert verify_receipt(resigned(in_halves, {"model": other}), language_model, lax).outcome == "rejected"
    placeless = replace(language_model, directory=None)
    assert verify_receipt(in_halves, placeless, lax).outcome == "rejected"


def test_the_root_of_a_former_card_names_the_same_model(
    honest_answer: Any, language_model: Any, short_policy: Any, resigned: Callable[..., Any]
) -> None:
    former = language_model.former_card()
    assert former.weights != language_model.card.weights  # the embedding is also the output matrix
    of_old = resigned(honest_answer.issued.signed, {"model": former.identity})
    report = verify_receipt(of_old, language_model, short_policy)
    assert report.outcome == "accepted"
    assert report.coverage.done == report.tokens  # the pass was made, as for the present root
    other = former.model_copy(update={"weights": language_model.card.weights})
    of_another = resigned(honest_answer.issued.signed, {"model": other.identity})
    assert verify_receipt(of_another, language_model, short_policy).outcome == "rejected"


def test_a_cache_that_is_not_stated_is_open_unless_the_policy_takes_it(
    honest_answer: Any, language_model: Any, short_policy: Any, resigned: Callable[..., Any]
) -> None:
    silent = resigned(honest_answer.issued.signed, {"engine.kv_cache": "unknown"})
    report = verify_receipt(silent, language_model, short_policy)
    assert report.outcome == "inconclusive"
    assert "which cache" in str(report.missing[0])
    taking = short_policy.model_copy(update={"kv_caches": ("native", "unknown")})
    assert verify_receipt(silent, language_model, taking).outcome == "accepted"


@pytest.mark.parametrize(
    ("asked", "told", "engine", "outcome"),
    [
        ("tiny", None, "proxy", "inconclusive"),
        (None, "tiny", "proxy", "inconclusive"),
        (None, None, "proxy", "inconclusive"),
        ("another", None, "proxy", "rejected"),
        (None, "another", "proxy", "rejected"),
        (None, None, "transformers", "rejected"),
    ],
)
def test_a_root_of_a_name_binds_no_weights(
    honest_answer: Any,
    language_model: Any,
    short_policy: Any,
    resigned: Callable[..., Any],
    asked: str | None,
    told: str | None,
    engine: str,
    outcome: str,
) -> None:
    named = resigned(honest_answer.issued.signed, {"model": named_root("tiny"), "engine.name": engine})
    request = None if asked is None else ExpectedRequest(model=asked, prompt="The stick is")
    response = Response(receipt=named, model=told)
    report = verify_receipt(named, language_model, short_policy, request, response=response)
    assert report.outcome == outcome
    assert "prefill" not in report.seconds
