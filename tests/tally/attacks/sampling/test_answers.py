"""Forged answers are what they say they are: that is what makes their refusal mean something."""

from __future__ import annotations

import numpy as np

from tallystick.formats.receipt import Sampler
from tallystick.verdicts.language_model import Rows
from tallystick.verdicts.sampling.choice import choose
from tests.support.attacks.sampling.foreign import teacher_force_foreign
from tests.support.attacks.sampling.generation import generate, teacher_forced
from tests.support.attacks.sampling.injected import inject, post_edit
from tests.support.attacks.sampling.shortened import truncate
from tests.support.attacks.sampling.speculative import speculate
from tests.support.attacks.sampling.steered import steer
from tests.support.attacks.sampling.synthetic import drifted, synthetic_model
from tests.support.attacks.sampling.tempered import resample
from tests.support.sampler_rows import probabilities

MODEL = synthetic_model(1, vocabulary=64)
PROMPT = [1, 2]
SAMPLER = Sampler(temperature=0.8, seed=4)


def test_an_honest_answer_is_chosen_from_the_logits_that_a_verifier_sees() -> None:
    sampler = SAMPLER.model_copy(update={"repetition_penalty": 1.2})
    answer = generate(MODEL, PROMPT, sampler, 20)
    histories = [[*PROMPT, *answer[:place]] for place in range(20)]
    assert choose(teacher_forced(MODEL, PROMPT, answer), sampler, range(20), histories).tolist() == answer


def test_an_answer_ends_at_an_end_token() -> None:
    answer = generate(MODEL, PROMPT, SAMPLER, 20)
    end = answer[8]
    assert generate(MODEL, PROMPT, SAMPLER, 20, {end}) == answer[: answer.index(end) + 1]


def test_a_synthetic_model_is_open_and_sure_in_turn_and_drifts_no_further_than_told() -> None:
    rows = np.stack([MODEL([1, 2, place]) for place in range(60)])
    p = probabilities(rows, Sampler(), [()] * 60)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1)
    assert entropy.min() < 0.5 < 2.0 < entropy.max()
    assert (MODEL([9, 1, 2]) == MODEL([8, 1, 2])).all()
    moved = np.abs(drifted(MODEL, 3, 0.01)(PROMPT) - MODEL(PROMPT))
    assert 0.005 < moved.max() <= 0.01 + 1e-6


def test_injected_tokens_stand_where_they_are_put_and_the_model_goes_on_from_them() -> None:
    honest = generate(MODEL, PROMPT, SAMPLER, 20)
    token = (honest[5] + 1) % 64
    answer = inject(MODEL, PROMPT, SAMPLER, 20, {5: token})
    assert answer[:6] == [*honest[:5], token]
    assert answer[6:] == [choose_at(answer, place) for place in range(6, 20)]
    edited = post_edit(honest, {5: token})
    assert [a == b for a, b in zip(edited, honest, strict=True)] == [place != 5 for place in range(20)]


def choose_at(answer: list[int], place: int) -> int:
    return int(choose(MODEL([*PROMPT, *answer[:place]])[None], SAMPLER, [place], [()])[0])


def test_resampling_changes_what_it_is_told_to() -> None:
    assert resample(MODEL, PROMPT, SAMPLER, 12) == generate(MODEL, PROMPT, SAMPLER, 12)
    hot = resample(MODEL, PROMPT, SAMPLER, 12, temperature=2.0)
    assert hot == generate(MODEL, PROMPT, Sampler(temperature=2.0, seed=4), 12) != generate(MODEL, PROMPT, SAMPLER, 12)


def test_steering_returns_the_answer_it_likes_best_and_its_seed() -> None:
    seed, answer = steer(MODEL, PROMPT, SAMPLER, 6, range(8), sum)
    answers = [resample(MODEL, PROMPT, SAMPLER, 6, seed=other) for other in range(8)]
    assert sum(answer) == max(map(sum, answers))
    assert answer == answers[seed]


def test_foreign_text_is_the_cheap_models_under_the_promised_models_logits() -> None:
    cheap = synthetic_model(2, vocabulary=64)
    answer, logits = teacher_force_foreign(MODEL, cheap, PROMPT, SAMPLER, 10)
    assert answer == generate(cheap, PROMPT, SAMPLER, 10)
    assert (logits == teacher_forced(MODEL, PROMPT, answer)).all()


def test_a_truncated_answer_is_its_beginning() -> None:
    assert truncate([4, 5, 6], 2) == [4, 5]


def first_tokens(lenience: float, count: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies of the first token, and the target's probabilities."""
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05])).astype(np.float32)
    draft = np.log(np.array([0.1, 0.2, 0.3, 0.4])).astype(np.float32)

    def target(_: object) -> Rows:
        return logits

    rng = np.random.default_rng(5)
    drawn = [speculate(target, lambda _: draft, [0], Sampler(), 1, rng, lenience)[0] for _ in range(count)]
    return np.bincount(drawn, minlength=4) / count, probabilities(logits[None], Sampler(), [()])[0]


def test_speculative_decoding_draws_from_the_target_and_sloppily_does_not() -> None:
    honest, p = first_tokens(1.0)
    assert np.abs(honest - p).max() < 4 * np.sqrt(0.25 / 3000)
    sloppy, p = first_tokens(0.5)
    assert np.abs(sloppy - p).sum() > 0.15


def test_a_certain_draft_that_agrees_is_always_kept() -> None:
    answer = speculate(MODEL, MODEL, PROMPT, Sampler(temperature=0.0), 8, np.random.default_rng(1))
    assert answer == generate(MODEL, PROMPT, Sampler(temperature=0.0), 8)
