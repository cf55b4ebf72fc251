"""What a verdict says of cheats that it would not have seen: no yes without power, and each cheat with its figures."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.power import CheatPower, power_at, power_lines, shipped_power, why_unmeasured
from tallystick.audits.answers.report import QUESTIONS, receipt_text
from tallystick.audits.answers.request import ExpectedRequest
from tallystick.audits.answers.verify import verify_receipt
from tallystick.formats.fingerprints import FingerprintSettings, standard_fingerprints
from tallystick.formats.receipt import Sampler

CHEATS = (
    CheatPower(subject="prompt", cheat="one word", tokens=32, seen=1, of=5),
    CheatPower(subject="precision", cheat="int8", tokens=32, seen=4, of=5),
)


def card(**changes: Any) -> Any:
    """The card of a measured model, as far as power is concerned."""
    return SimpleNamespace(**{"dtype": "BF16", "layers": 30, "width": 576, **changes})


def receipt(*fingerprints: FingerprintSettings, form: str = "gumbel") -> Any:
    """A receipt, as far as power is concerned."""
    held = fingerprints or standard_fingerprints(30, "BF16")
    return SimpleNamespace(fingerprints=held, sampler=Sampler(temperature=1.0, seed=1, form=form))  # type: ignore[arg-type]


def test_every_subject_has_measured_cheats_and_the_figures_are_possible() -> None:
    for one in shipped_power().models:
        assert {each.subject for each in one.cheats} == {"model", "precision", "prompt", "sampler"}
        assert all(each.seen <= each.of for each in one.cheats)
        assert len({(each.cheat, each.tokens, each.pooled, each.wide, each.opened) for each in one.cheats}) == len(
            one.cheats
        )


def test_the_power_is_that_of_the_largest_measured_size_below() -> None:
    sizes = {tokens: {each.tokens for each in power_at(card(), tokens)} for tokens in (8, 40, 64, 500)}
    assert not sizes[8]
    assert sizes[40] == {32}
    assert sizes[64] == {64}
    assert max(sizes[500]) >= 128
    assert not power_at(card(width=768), 128), "another model was not measured"
    assert all(each.pooled == 1 for each in power_at(card(), 1 << 20)), "one answer is not a pool"


def test_pools_and_second_passes_are_named_only_where_they_were_made() -> None:
    one, pool = (power_at(card(), 128 * count, count, wide=True) for count in (1, 8))
    assert {each.cheat for each in one} == {each.cheat for each in pool}
    assert not any(each.wide for each in power_at(card(), 128 * 8, 8)), "without a second pass its power is not claimed"
    assert all(each.pooled == 1 for each in power_at(card(), 128 * 8 - 1, 8, wide=True)), "too few tokens for a pool"
    assert {each.cheat: each.pooled for each in pool}["one word of the system prompt"] == 8
    seen = {each.cheat: each.seen for each in one}
    assert seen["int8 tokens under honest fingerprints"] == 0, "what is not seen is named with its figure"
    (line,) = power_lines(("prompt",), pool, "")
    assert "of pools of 8 answers of 128 tokens, rejected for one word of the system prompt 20 of 20" in line


@pytest.mark.parametrize(
    ("changes", "held", "policy", "rung", "reason"),
    [
        ({}, receipt(), ReceiptPolicy(), 2, ""),
        ({"width": 768}, receipt(), ReceiptPolicy(), 2, "a model of 30 layers of width 768 in BF16"),
        ({"dtype": "F16"}, receipt(), ReceiptPolicy(), 2, "in F16"),
        ({}, receipt(), ReceiptPolicy(), 1, "without fingerprints"),
        ({}, receipt(FingerprintSettings(layers=(30,))), ReceiptPolicy(), 2, "other than the standard ones"),
        ({}, receipt(form="cdf"), ReceiptPolicy(), 2, "canonical form"),
        (
            {},
            receipt(),
            ReceiptPolicy(fingerprints=ReceiptPolicy().fingerprints.model_copy(update={"margin": 2.0})),
            2,
            "limits other than the shipped ones",
        ),
    ],
)
def test_power_is_stated_only_for_what_was_measured(
    changes: dict[str, Any], held: Any, policy: ReceiptPolicy, rung: int, reason: str
) -> None:
    found = why_unmeasured(card(**changes), held, policy, rung)
    assert reason in found
    assert bool(found) == bool(reason)


def test_each_fitting_subject_has_a_line_with_its_cheats() -> None:
    lines = [*power_lines(("prompt", "precision", "token count"), CHEATS, "")]
    assert lines == [
        "precision: nothing speaks against it; of answers of 32 tokens, rejected for int8 4 of 5",
        "prompt: nothing speaks against it; of answers of 32 tokens, rejected for one word 1 of 5",
    ]
    assert [*power_lines(("sampler",), CHEATS, "")] == [
        "sampler: nothing speaks against it; what would is not measured"
    ]
    [line] = power_lines(("prompt", "model"), CHEATS, "not measured for this")
    assert line == "model, prompt: nothing speaks against them; what would is not measured for this"
    assert not [*power_lines((), CHEATS, "")]


def test_no_statistic_gives_a_yes_and_the_text_says_what_fits_means(
    answered: Callable[..., Any], language_model: Any, short_policy: Any
) -> None:
    answer = answered(nonce="5a" * 16)
    asked = ExpectedRequest.from_body(
        {"prompt": "The stick is", "max_tokens": 16, "temperature": 0.8, "seed": 3, "tally_nonce": "5a" * 16}
    )
    report = verify_receipt(answer.issued.signed, language_model, short_policy, asked)
    assert report.outcome == "accepted"
    replies = {name: reply for name, reply in report.answers.items() if name != "same token count"}
    assert set(replies.values()) == {"fits"}
    text = "\n".join(receipt_text(report, 0.0).lines())
    assert "same prompt: fits" in text
    assert "model, precision, prompt, sampler: nothing speaks against them; what would is not measured for" in text
    assert report.to_json()["power_unknown"] == report.unmeasured


def test_a_prompt_that_was_only_stated_is_not_called_the_same(
    answered: Callable[..., Any], language_model: Any, short_policy: Any
) -> None:
    """The receipt names the customer's prompt; without tokens enough, nothing was computed from it."""
    answer = answered(nonce="5a" * 16)
    asked = ExpectedRequest.from_body({"prompt": "The stick is", "max_tokens": 16, "tally_nonce": "5a" * 16})
    unmeasured = short_policy.model_copy(
        update={"sampler": ReceiptPolicy().sampler, "fingerprints": ReceiptPolicy().fingerprints}
    )
    report = verify_receipt(answer.issued.signed, language_model, unmeasured, asked, rung=1)
    assert report.outcome == "inconclusive"
    assert report.answers["same prompt"] == "unknown"


def test_no_question_can_be_answered_by_a_statement_alone() -> None:
    assert all(question.computed or question.answers != ("prompt",) for question in QUESTIONS.values())
