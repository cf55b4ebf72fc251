"""A pass in F32 as the scale of honest rounding: what lies farther off is seen, in one answer or in several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tallystick.audits.answers.fingerprints import judge_rounding, own_rounding, summed
from tallystick.audits.answers.limits import FingerprintRule, RoundingLimits
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.response import Response
from tallystick.audits.answers.stream import CHOICE, verify_stream
from tallystick.audits.answers.subject import ReceiptContext, StatesChallenge
from tallystick.audits.answers.verify import verify_receipt
from tallystick.formats.signing import SigningKey
from tallystick.tally.attacks.provers import integer_weights
from tests.support.attacks.cheaper_models import coarse_head, grouped_integer_weights
from tests.support.limits import rule_of

NONCE = bytes(range(32))


@pytest.fixture(scope="module")
def halves(model_directory: Any, one_thread: None) -> Any:
    """The tiny model in BF16."""
    from tallystick.engines.torch.generation.language_models import load_language_model

    return load_language_model(model_directory, "BF16")


@pytest.fixture(scope="module")
def rule(halves: Any) -> FingerprintRule:
    """Limits for the tiny model; honest stacks here are one stack, so that there is little to allow."""
    size = {"dtype": "BF16", "layers": halves.card.layers, "width": halves.card.width}
    places = ("block", "final", "logits")
    return FingerprintRule(
        wide=True, rounding=tuple(RoundingLimits(place=place, ratio=1.3, **size) for place in places)
    )


@pytest.fixture(scope="module")
def policy(rule: FingerprintRule, short_policy: Any) -> ReceiptPolicy:
    return ReceiptPolicy(sampler=short_policy.sampler, fingerprints=rule, demands=())


@pytest.fixture(scope="module")
def served(answered: Callable[..., Any], halves: Any, provider_key: Any) -> Callable[..., Any]:
    """Signed receipts of the standard fingerprints: `served(2, model=…)`, in the name of the promised model."""
    from tallystick.formats.fingerprints import standard_fingerprints
    from tallystick.recording.receipts import ReceiptIssuer, RecordSettings

    standard = RecordSettings(standard_fingerprints(halves.card.layers, "BF16"))

    def serve(count: int = 1, model: Any = None, key: Any = provider_key, settings: Any = standard) -> list[Any]:
        issuer = ReceiptIssuer(halves, key, settings)
        given = halves if model is None else replace(halves, model=model)
        return [
            answered(model=given, issuer=issuer, seed=seed, request_id=f"r{seed}", max_tokens=20).issued.signed
            for seed in range(count)
        ]

    return serve


def objections(report: Any) -> set[str]:
    return {each.name for each in report.verdict.objections}


def test_an_honest_answer_agrees_and_says_what_is_assumed(
    served: Callable[..., Any], halves: Any, policy: ReceiptPolicy
) -> None:
    report = verify_receipt(served()[0], halves, policy)
    assert "rounding" not in objections(report)
    [finding] = [each for each in report.findings if each.name == "rounding"]
    assert finding.distance < 0.0 < finding.allowed
    assert "final" in finding.detail
    assert any("rounds a block of a fingerprint no farther than was measured" in each for each in report.assumptions)
    assert report.seconds["wide pass"] > 0
    assert report.rung_costs[2].seconds >= report.seconds["wide pass"]


@pytest.mark.parametrize(
    "cheat",
    [
        pytest.param(lambda model: integer_weights(model, 6), id="6 bits by row"),
        pytest.param(lambda model: grouped_integer_weights(model, 5, 16), id="5 bits in groups of 16"),
        pytest.param(lambda model: coarse_head(model, 5), id="output matrix in 5 bits"),
    ],
)
def test_several_answers_show_what_one_may_not(
    served: Callable[..., Any], halves: Any, policy: ReceiptPolicy, cheat: Callable[[Any], Any]
) -> None:
    """The evidence adds up: in all answers together it is far beyond what it is in one."""
    signed = served(4, cheat(halves))
    found = verify_stream([ReceiptContext(Response(receipt=each)) for each in signed], halves, policy, NONCE)
    [pooled] = found.rounding
    assert pooled.finding.distance > pooled.finding.allowed
    assert pooled.finding in found.verdict.objections
    singles = [each.rounding.finding.distance for each in found.reports if each.rounding is not None]
    assert pooled.finding.distance > max(singles)


def test_honest_answers_together_are_not_accused(
    served: Callable[..., Any], halves: Any, policy: ReceiptPolicy
) -> None:
    signed = served(4)
    found = verify_stream([ReceiptContext(Response(receipt=each)) for each in signed], halves, policy, NONCE)
    [pooled] = found.rounding
    assert pooled.finding.agrees
    assert pooled.trials.numbers == tuple(4 * each for each in verify_first(found).rounding.trials.numbers)
    assert CHOICE in found.verdict.assumptions


def verify_first(found: Any) -> Any:
    return found.reports[0]


def test_answers_of_two_keys_are_two_pools(served: Callable[..., Any], halves: Any, policy: ReceiptPolicy) -> None:
    """Nobody is accused for the answers of somebody else."""
    signed = [*served(2), *served(2, key=SigningKey(bytes(reversed(range(32)))))]
    found = verify_stream([ReceiptContext(Response(receipt=each)) for each in signed], halves, policy, NONCE)
    assert len(found.rounding) == len(found.evidence) == 2
    assert sum(each.tokens for each in found.evidence) == found.tokens


def test_the_same_fingerprint_twice_is_counted_once(
    served: Callable[..., Any], halves: Any, rule: FingerprintRule
) -> None:
    receipt = served()[0].receipt
    twice = receipt.model_copy(update={"fingerprints": (*receipt.fingerprints, *receipt.fingerprints)})
    prompt, answer = receipt.request.prompt, receipt.answer.tokens
    fed = ((*prompt.ids, *answer.ids[:-1]), prompt.count - 1, {0, halves.card.layers, halves.card.layers // 3})
    passed, wide = halves.prefill(*fed), halves.widened().prefill(*fed)
    one, two = (judge_rounding(each, passed, wide, rule, halves.card) for each in (receipt, twice))
    assert one is not None
    assert one == two
    assert summed([one, one])[0].trials.numbers == tuple(2 * each for each in one.trials.numbers)
    other = replace(one, trials=replace(one.trials, groups=("elsewhere", *one.trials.groups[1:])))
    assert len(summed([one, other])) == 2, "what has other places stays apart"


def test_without_limits_for_the_model_the_verdict_says_so(
    served: Callable[..., Any], halves: Any, policy: ReceiptPolicy
) -> None:
    unmeasured = policy.model_copy(update={"fingerprints": FingerprintRule(wide=True)})
    report = verify_receipt(served()[0], halves, unmeasured)
    assert report.rounding is None
    assert "wide pass" not in report.seconds
    assert any("rounding: no scale was measured" in each for each in report.not_checked)


def test_a_model_in_f32_needs_no_second_pass(
    answered: Callable[..., Any], language_model: Any, short_policy: Any
) -> None:
    wide = short_policy.model_copy(update={"fingerprints": short_policy.fingerprints.model_copy(update={"wide": True})})
    report = verify_receipt(answered().issued.signed, language_model, wide)
    assert report.rounding is None
    assert not any("rounding" in each for each in report.not_checked)


def test_the_scale_is_that_of_the_block_or_of_the_answer_if_larger(halves: Any) -> None:
    """A block that the verifier happened to round little does not make honest rounding look large."""
    import numpy as np

    from tallystick.formats.fingerprints import FingerprintSettings

    true = np.ones((4, 8), np.float32)
    own = true.copy()
    own[2:] += 0.1
    scales = own_rounding({5: own}, {5: true}, 5, FingerprintSettings(layers=(5,), block=2))[:, 0]
    assert scales == pytest.approx([0.4 / 2**0.5, 0.4])


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        pytest.param({"prompt": True}, "", id="all layers and the prompt"),
        pytest.param({"prompt": False}, "answer's states alone", id="no prompt"),
        pytest.param({"committed": (1,)}, "no layer together with the one before", id="layers apart"),
    ],
)
def test_states_from_which_no_layer_can_be_run_again_are_not_accepted_unless_the_policy_says_so(
    served: Callable[..., Any],
    answered: Callable[..., Any],
    halves: Any,
    policy: ReceiptPolicy,
    rule: FingerprintRule,
    provider_key: Any,
    states: dict[str, Any],
    reason: str,
) -> None:
    """What the receipt says of its states is the provider's word, and a changed layer is seen by the rerun alone."""
    from tallystick.formats.fingerprints import standard_fingerprints
    from tallystick.recording.receipts import ReceiptIssuer, RecordSettings

    recorded = {"committed": (*range(halves.card.layers),), "prompt": True, **states}
    settings = RecordSettings(standard_fingerprints(halves.card.layers, "BF16"), **recorded)
    answer = answered(model=halves, issuer=ReceiptIssuer(halves, provider_key, settings), max_tokens=20)
    opened = StatesChallenge(NONCE, 1000, answer.issued.states.open(NONCE, 1000))
    size = {"dtype": "BF16", "layers": halves.card.layers, "width": halves.card.width}
    assert rule.rounding is not None
    limits = (*rule.rounding, RoundingLimits(place="layer", ratio=1.0, **size))
    asking = policy.model_copy(
        update={"fingerprints": rule.model_copy(update={"rounding": limits, "rows": rule_of(0.02, dtype="BF16").rows})}
    )
    report = verify_receipt(answer.issued.signed, halves, asking, challenge=opened)
    lines = [str(each) for each in report.missing if each.check == "rerun"]
    assert [reason in each for each in lines] == [True] * bool(reason)
    assert report.outcome == ("inconclusive" if reason else "accepted"), report.verdict.unavailable
    without = asking.model_copy(
        update={"fingerprints": asking.fingerprints.model_copy(update={"rounding": rule.rounding})}
    )
    assert verify_receipt(answer.issued.signed, halves, without, challenge=opened).outcome == "accepted"
