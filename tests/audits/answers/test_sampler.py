"""Answers that the claimed sampler did not draw are refused; their honest twins, on drifting logits, are accepted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tallystick.audits.answers.limits import SamplerRule, TokenLimits
from tallystick.audits.answers.sampler import SamplerEvidence, combine, judge_sampler
from tallystick.core.errors import MalformedError
from tallystick.formats.claims import ModelCard
from tallystick.formats.receipt import Sampler
from tallystick.verdicts.evidence import Trials, clopper_pearson
from tests.support.attacks.sampling.foreign import teacher_force_foreign
from tests.support.attacks.sampling.generation import NextLogits, generate, teacher_forced
from tests.support.attacks.sampling.injected import inject, post_edit
from tests.support.attacks.sampling.speculative import speculate
from tests.support.attacks.sampling.steered import steer
from tests.support.attacks.sampling.synthetic import drifted, synthetic_model
from tests.support.attacks.sampling.tempered import resample

BAND = 2e-3
COUNT = 80
PROMPT = [3, 1, 4]
RULE = SamplerRule(band=BAND)
UNSEEDED = SamplerRule(band=BAND, seed="unknown")
PROMISED = synthetic_model(1)
SERVED = drifted(PROMISED, 2, BAND / 2)
CHEAP = synthetic_model(9)

SAMPLERS = [
    Sampler(temperature=0.0),
    Sampler(temperature=0.7, seed=5),
    Sampler(temperature=0.7, top_p=0.9, seed=5),
    Sampler(temperature=0.8, min_p=0.05, repetition_penalty=1.2, seed=5),
    Sampler(form="cdf", temperature=0.7, top_k=40, seed=5),
    Sampler(temperature=0.7, presence_penalty=0.8, frequency_penalty=0.4, logit_bias=((7, 3.0),), bad_token_ids=(3,)),
]
SAMPLED = SAMPLERS[1:]


def judged(answer: Sequence[int], sampler: Sampler, rule: SamplerRule = RULE, **options: Any) -> SamplerEvidence:
    return judge_sampler(teacher_forced(PROMISED, PROMPT, answer), PROMPT, answer, sampler, rule, **options)


def refusals(evidence: SamplerEvidence) -> set[str]:
    return {finding.name for finding in evidence.findings if not finding.agrees}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_an_honest_answer_from_drifting_logits_is_accepted(sampler: Sampler) -> None:
    evidence = judged(generate(SERVED, PROMPT, sampler, COUNT), sampler)
    assert evidence.decision == "accepted"
    assert not evidence.unavailable
    assert (evidence.trials.tokens, evidence.trials.mismatches) == (COUNT, 0)


def test_adjustments_that_are_left_out_or_only_stated_are_refused() -> None:
    plain = Sampler(temperature=0.7, seed=5)
    changes: list[dict[str, Any]] = [{"frequency_penalty": 2.0}, {"logit_bias": ((7, 6.0),)}]
    for change in [*changes, {"allowed_token_ids": (*range(20),)}, {"bad_token_ids": (*range(20),)}]:
        other = plain.model_copy(update=change)
        hidden, unused = generate(SERVED, PROMPT, other, COUNT), generate(SERVED, PROMPT, plain, COUNT)
        assert judged(hidden, other).decision == "accepted"
        assert judged(hidden, plain).decision == "rejected"
        assert judged(unused, other).decision == "rejected"


def test_an_end_token_before_the_least_number_of_tokens_is_refused() -> None:
    plain = Sampler(temperature=0.7, seed=5)
    answer = generate(SERVED, PROMPT, plain, COUNT)
    late = plain.model_copy(update={"min_tokens": 30, "end_token_ids": (answer[20],)})
    assert judged(answer[:21], late).decision == "rejected"
    assert judged(generate(SERVED, PROMPT, late, COUNT), late).decision == "accepted"


def test_a_token_that_was_the_only_one_allowed_shows_nothing() -> None:
    alone = Sampler(allowed_token_ids=(7,), seed=5)
    evidence = judged([7] * COUNT, alone)
    assert evidence.decision == "inconclusive"
    assert evidence.trials.tokens == 0
    assert judged([7, 8, 7], alone).decision == "rejected"
    assert judged([7, 8, 7] * 20, alone.model_copy(update={"allowed_token_ids": (7, 8)})).trials.tokens == 60


def test_honest_drift_is_never_accused_and_moves_some_tokens() -> None:
    sampler, rule, moved = Sampler(temperature=0.7, top_p=0.9), SamplerRule(band=0.3), 0
    for seed in range(30):
        served = drifted(PROMISED, 100 + seed, 0.15)
        answer = generate(served, PROMPT, sampler.model_copy(update={"seed": seed}), 40)
        evidence = judged(answer, sampler.model_copy(update={"seed": seed}), rule)
        assert evidence.decision != "rejected"
        assert evidence.trials.mismatches == 0
        moved += evidence.findings[0].distance > 0
    assert moved > 5, "the tie band was needed"


@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_injected_tokens_are_refused(sampler: Sampler, count: int) -> None:
    tokens = {7 * place + 3: 400 + place for place in range(count)}
    evidence = judged(inject(SERVED, PROMPT, sampler, COUNT, tokens), sampler)
    assert evidence.decision == "rejected"
    assert "sampler" in refusals(evidence)
    single = evidence.findings[0]
    assert single.distance > 50 * BAND
    assert single.where in {f"token {place}" for place in tokens}
    assert evidence.trials.mismatches <= count


def test_a_finished_answer_that_was_edited_is_refused_at_the_edit() -> None:
    honest = generate(SERVED, PROMPT, SAMPLED[0], COUNT)
    evidence = judged(post_edit(honest, {40: (honest[40] + 1) % 512}), SAMPLED[0])
    assert evidence.decision == "rejected"
    assert "40 by" in evidence.findings[0].detail
    assert judged(honest, SAMPLED[0]).decision == "accepted"


@pytest.mark.parametrize(
    "changes", [{"temperature": 1.0}, {"top_p": 0.5}, {"seed": 6}, {"temperature": 0.0}, {"top_k": 2}]
)
@pytest.mark.parametrize("sampler", SAMPLED)
def test_other_settings_than_those_claimed_are_refused(sampler: Sampler, changes: dict[str, Any]) -> None:
    answer = resample(SERVED, PROMPT, sampler, COUNT, **changes)
    evidence = judged(answer, sampler)
    assert evidence.decision == "rejected"
    assert "evidence" in refusals(evidence)
    assert judged(answer, sampler.model_copy(update=changes)).decision == "accepted"


def test_the_text_of_a_cheap_model_is_refused_with_and_without_a_seed() -> None:
    sampler = SAMPLED[0]
    answer, logits = teacher_force_foreign(PROMISED, CHEAP, PROMPT, sampler, COUNT)
    assert judge_sampler(logits, PROMPT, answer, sampler, RULE).decision == "rejected"
    unseeded = judge_sampler(logits, PROMPT, answer, sampler, UNSEEDED)
    assert refusals(unseeded) == {"surprisal"}
    own = teacher_forced(CHEAP, PROMPT, answer)
    assert judge_sampler(own, PROMPT, answer, sampler, RULE).decision == "accepted"


def test_best_of_eight_is_refused_under_the_customers_seed_and_named_where_the_seed_is_not_theirs() -> None:
    asked = SAMPLED[0]
    seed, answer = steer(SERVED, PROMPT, asked, COUNT, range(100, 108), sum)
    theirs = SamplerRule(band=BAND, seed="customer")
    assert judged(answer, asked, theirs).decision == "rejected"
    assert judged(generate(SERVED, PROMPT, asked, COUNT), asked, theirs).decision == "accepted"
    assert not judged(answer, asked, theirs).not_checked
    steered = judged(answer, asked.model_copy(update={"seed": seed}))
    assert steered.decision == "accepted"
    assert "best of n is not excluded" in steered.not_checked[0]
    assert not judged(generate(SERVED, PROMPT, SAMPLERS[0], COUNT), SAMPLERS[0]).not_checked


def flatter(model: NextLogits) -> NextLogits:
    """A draft that is less sure than the target, and has its likings."""
    return lambda tokens: (0.6 * drifted(model, 3, 1.0)(tokens)).astype(np.float32)


def test_sloppy_speculative_decoding_is_refused_without_a_seed_and_true_one_is_accepted() -> None:
    sampler, verdicts = Sampler(temperature=0.7), {}
    for lenience in (1.0, 0.5):
        rng = np.random.default_rng(11)
        answers = [speculate(PROMISED, flatter(PROMISED), [place], sampler, 300, rng, lenience) for place in range(4)]
        seen = [
            judge_sampler(teacher_forced(PROMISED, [place], each), [place], each, sampler, UNSEEDED)
            for place, each in enumerate(answers)
        ]
        verdicts[lenience] = combine(seen)
    assert verdicts[1.0].decision == "accepted"
    assert verdicts[0.5].decision == "rejected"
    assert abs(verdicts[1.0].likelihoods.standard_errors) < 4 < verdicts[0.5].likelihoods.standard_errors


@pytest.mark.parametrize("temperature", [1.0, 0.45])
def test_another_temperature_is_refused_without_a_seed(temperature: float) -> None:
    claimed = Sampler(temperature=0.7)
    answers = [resample(SERVED, [place], claimed, 200, temperature=temperature, seed=place + 50) for place in range(3)]
    honest = [resample(SERVED, [place], claimed, 200, seed=place + 50) for place in range(3)]
    for tokens, expected in ((answers, "rejected"), (honest, "accepted")):
        seen = [
            judge_sampler(teacher_forced(PROMISED, [place], each), [place], each, claimed, UNSEEDED)
            for place, each in enumerate(tokens)
        ]
        assert combine(seen).decision == expected
        assert "no seed is known" in combine(seen).not_checked[0]


def test_a_token_that_filters_exclude_is_refused_without_a_seed() -> None:
    sampler = Sampler(temperature=0.7, top_k=5)
    honest = generate(SERVED, PROMPT, sampler, 30)
    logits = teacher_forced(PROMISED, PROMPT, honest)
    edited = post_edit(honest, {29: int(np.argsort(logits[29])[-9])})
    assert refusals(judged(edited, sampler, UNSEEDED)) >= {"sampler"}
    assert judged(edited, sampler, UNSEEDED).findings[0].where == "token 29"
    assert not refusals(judged(honest, sampler, UNSEEDED))


def test_a_greedy_sampler_needs_no_seed() -> None:
    greedy = SAMPLERS[0]
    assert judged(generate(SERVED, PROMPT, greedy, COUNT), greedy, UNSEEDED).decision == "accepted"
    assert judged(resample(SERVED, PROMPT, greedy, COUNT, temperature=0.7), greedy, UNSEEDED).decision == "rejected"


def test_honest_answers_are_never_refused_on_likelihoods_and_rarely_near_it() -> None:
    """80 honest answers with every check on: none refused, and an e-value of 20 in no more than 1 in 20."""
    rule, high = SamplerRule(band=BAND, likelihoods="always"), 0
    for seed in range(80):
        sampler = Sampler(temperature=0.7, top_p=0.95, seed=seed)
        evidence = judge_small(SERVED, sampler, rule, 12)
        assert evidence.decision != "rejected"
        high += evidence.likelihoods.ratios.log_against() > math.log(20)
    assert clopper_pearson(high, 80, 0.999)[0] <= 0.05


def judge_small(served: NextLogits, sampler: Sampler, rule: SamplerRule, count: int) -> SamplerEvidence:
    answer = generate(served, PROMPT, sampler, count)
    return judged(answer, sampler, rule)


def test_too_few_tokens_are_inconclusive_and_add_up() -> None:
    parts = [judge_small(SERVED, SAMPLED[0].model_copy(update={"seed": seed}), RULE, 12) for seed in range(5)]
    assert {part.decision for part in parts} == {"inconclusive"}
    assert parts[0].unavailable == ("evidence: 33 more tokens to exclude 10% of tokens chosen otherwise at error 0.01",)
    assert combine(parts).decision == "accepted"
    assert combine(parts).trials.tokens == 60
    assert combine(parts[:3]).tokens_missing == 45 - 36


def test_mismatches_near_the_band_are_refused_together_and_not_one_by_one() -> None:
    def evidence(mismatches: int) -> SamplerEvidence:
        margins = np.where(np.arange(60) < mismatches, 1.1 * BAND, 0.0)
        return SamplerEvidence(RULE, 60, Trials.of(margins, BAND, RULE.rates))

    assert evidence(0).decision == "accepted"
    assert evidence(1).decision == "inconclusive"
    assert evidence(6).decision == "inconclusive"
    assert evidence(8).decision == "rejected"
    assert combine([evidence(6), evidence(6)]).decision == "rejected"


def test_larger_margins_weigh_more() -> None:
    def weight(bands: float) -> float:
        return Trials.of(np.array([0.0, bands * BAND]), BAND, RULE.rates).log_against()

    weights = [weight(bands) for bands in (0.0, 0.1, 1.0, 2.0, 4.0, 8.0)]
    assert weights == sorted(weights)
    assert weight(8.0) == weight(80.0), "no token counts for more than the least rate that was assumed"


def test_an_injection_stays_visible_among_honest_answers() -> None:
    sampler = SAMPLED[0]
    honest = [judge_small(SERVED, sampler.model_copy(update={"seed": seed}), RULE, 20) for seed in range(20)]
    forged = judged(inject(SERVED, PROMPT, sampler, 20, {11: 77}), sampler)
    assert combine(honest).decision == "accepted"
    assert combine([*honest[:10], forged, *honest[10:]]).decision == "rejected"


def test_an_end_token_inside_an_answer_is_refused_and_one_at_its_end_is_not() -> None:
    sampler = SAMPLED[0]
    answer = generate(SERVED, PROMPT, sampler, COUNT)
    inside, last = answer[50], answer[60]
    assert "finish" in refusals(judged(answer, sampler, end_tokens=frozenset({inside})))
    first = answer.index(last)
    assert judged(answer[: first + 1], sampler, end_tokens=frozenset({last})).decision == "accepted"


def test_an_end_that_the_sampler_did_not_draw_is_refused() -> None:
    """An answer cut short and closed with a forged end token is an injection like any other."""
    sampler, end = SAMPLED[0], 500
    honest = generate(SERVED, PROMPT, sampler, COUNT)
    evidence = judged([*honest[:60], end], sampler, end_tokens=frozenset({end}))
    assert evidence.decision == "rejected"
    assert evidence.findings[0].where == "token 60"
    assert judged(honest[:61], sampler, end_tokens=frozenset({end})).decision == "accepted"


def test_an_answer_of_no_tokens_shows_nothing() -> None:
    evidence = judge_sampler(np.zeros((0, 8), np.float32), PROMPT, [], Sampler(), RULE)
    assert evidence.decision == "inconclusive"
    assert not evidence.findings
    assert evidence.unavailable


@pytest.mark.parametrize(("prompt", "answer", "named"), [([1], [2, 8], "answer: token 1"), ([-1], [2, 3], "prompt")])
def test_tokens_outside_the_vocabulary_are_refused(prompt: list[int], answer: list[int], named: str) -> None:
    with pytest.raises(MalformedError, match=named):
        judge_sampler(np.zeros((2, 8), np.float32), prompt, answer, Sampler(), RULE)
    assert judge_sampler(np.zeros((2, 8), np.float32), [1], [2, 3], Sampler(), RULE).tokens == 2


def card_of(dtype: str, layers: int, width: int) -> ModelCard:
    zero = "sha256:" + "0" * 64
    return ModelCard(
        architecture="llama", config=zero, weights=zero, tokenizer=zero, dtype=dtype, vocabulary=512, layers=layers,
        width=width,
    )  # fmt: skip


def test_a_rule_takes_what_it_does_not_state_from_the_calibration_that_covers_the_model() -> None:
    small, large = (TokenLimits(dtype="BF16", layers=n, width=64 * n, band=n / 10, mismatches=n / 100, rms=n / 100)
                    for n in (2, 4))  # fmt: skip
    rule = SamplerRule(limits=(large, small))
    assert rule.for_model(card_of("BF16", 2, 64)).band == small.band
    assert rule.for_model(card_of("BF16", 3, 64)).rms == large.rms
    assert rule.for_model(card_of("BF16", 5, 64)).band == 0.5, "no calibration, so the dtype's"
    assert rule.for_model(card_of("F32", 2, 64)).band == BAND
    assert RULE.for_model(card_of("BF16", 2, 64)) == RULE, "a band of its own is a whole calibration"
    stated = rule.model_copy(update={"mismatches": 0.3}).for_model(card_of("BF16", 2, 64))
    assert (stated.mismatches, stated.band) == (0.3, small.band)
    assert SamplerRule().for_model(card_of("BF16", 30, 576)).rms is not None, "the shipped table covers it"


def test_a_rule_is_a_document() -> None:
    assert SamplerRule.from_bytes(RULE.to_bytes(), "rule") == RULE
    for changes in ({"honest": 0.2}, {"alpha": 0.0}, {"far": 0.5}, {"band": -1.0}, {"seed": "mine"}):
        with pytest.raises(MalformedError):
            SamplerRule.from_json(changes, "rule")


def test_a_trained_model_is_judged_by_its_own_logits(language_model: Any, one_thread: None) -> None:
    sampler, prompt = Sampler(temperature=0.8, top_p=0.95, seed=3), [5, 60, 7]

    def next_logits(tokens: Sequence[int]) -> np.ndarray:
        return np.asarray(language_model.prefill(tokens, len(tokens) - 1).logits[0])

    rule = SamplerRule(dishonest=0.5)
    for answer, expected in (
        (generate(next_logits, prompt, sampler, 24), "accepted"),
        (inject(next_logits, prompt, sampler, 24, {9: 200}), "rejected"),
        (resample(next_logits, prompt, sampler, 24, seed=4), "rejected"),
    ):
        rows = language_model.prefill([*prompt, *answer[:-1]], len(prompt) - 1).logits
        assert judge_sampler(rows, prompt, answer, sampler, rule).decision == expected


DRIFT = SamplerRule(band=0.4, rms=0.1, mismatches=0.05, seed="customer")


def replaced(gap: float, tokens: int = 60) -> SamplerEvidence:
    """The evidence on a greedy answer whose token 20 is one whose logit is smaller by `gap`."""
    rows = np.zeros((tokens, 8), np.float32)
    rows[:, 0], rows[:, 1] = 9.0, 9.0 - gap
    return judge_sampler(rows, PROMPT, [int(place == 20 and gap > 0) for place in range(tokens)], SAMPLERS[0], DRIFT)


def test_a_known_drift_refuses_a_token_where_it_alone_falls_to_the_far_rate() -> None:
    assert math.isclose(DRIFT.far_margin, 0.4 + 0.1 * math.log(1e6))
    assert math.isclose(DRIFT.rates.rate(1.0), 1e-3 * math.exp(-6.0), rel_tol=1e-6)
    assert SamplerRule(band=0.4).far_margin == 8 * 0.4
    assert SamplerRule(band=0.4, rms=9.0).far_margin == 8 * 0.4
    assert replaced(1.8).decision == "rejected"
    assert replaced(1.7).decision == "inconclusive"


def test_a_token_that_honest_answers_rarely_hold_is_named_and_more_honest_answers_decide() -> None:
    found = replaced(0.9)
    assert found.unavailable == (
        "evidence: token 20 lies 0.9 logits from the verifier's choice, as in one of 2,474 honest answers of 60 "
        "tokens; judge more answers",
    )
    assert replaced(0.0).decision == replaced(0.5, 120).decision == "accepted"
    assert combine([found, *[replaced(0.0)] * 30]).decision == "accepted"


def test_a_verdict_says_which_replaced_tokens_show_nothing_and_how_many_would() -> None:
    [line] = replaced(0.0).not_excluded
    assert line == (
        "sampler: a token replaced by one within 1.78 logits is not seen; 4 replaced by ones 0.8 logits away are"
    )
    assert not judged(generate(SERVED, PROMPT, SAMPLED[0], COUNT), SAMPLED[0]).not_excluded
