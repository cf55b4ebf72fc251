"""Margins are 0 for what the sampler chooses, never overstated, and the short cut never says yes to anything else."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tallystick.core.errors import MalformedError
from tallystick.formats.receipt import Sampler
from tallystick.programs.operators.tally import fixed_point
from tallystick.programs.random_words import stream_key, words, words_at
from tallystick.verdicts.sampling.choice import choose
from tallystick.verdicts.sampling.edges import FilterEdges
from tallystick.verdicts.sampling.fast_path import EVERY_TOKEN, USUAL_REACH, plainly_chosen
from tallystick.verdicts.sampling.filters import Ranks, relative_logits
from tallystick.verdicts.sampling.margin import margin, margins
from tests.support.sampler_rows import kept, scores

ROWS = 24


def random_sampler(rng: np.random.Generator) -> Sampler:
    return Sampler(
        form=rng.choice(["gumbel", "gumbel", "cdf"]),
        temperature=float(rng.choice([0.0, 0.3, 0.7, 1.0, 2.5])),
        top_k=int(rng.choice([0, 0, 1, 5, 40])),
        top_p=float(rng.choice([1.0, 1.0, 0.99, 0.9, 0.5, 0.0])),
        min_p=float(rng.choice([0.0, 0.0, 0.05, 0.3, 1.0])),
        repetition_penalty=float(rng.choice([1.0, 1.0, 1.3, 0.8])),
        seed=int(rng.integers(1000)),
    )


def random_rows(rng: np.random.Generator, vocabulary: int) -> np.ndarray:
    """Logits of which some rows have ties, some tokens that are out, some NaN."""
    logits = (rng.uniform(1, 6) * rng.standard_normal((ROWS, vocabulary))).astype(np.float32)
    kind = rng.random()
    if kind < 0.2:
        logits = np.round(logits)
    elif kind < 0.3:
        logits[:, 1:][rng.random((ROWS, vocabulary - 1)) < 0.2] = -np.inf
    elif kind < 0.4:
        logits[:, 1:][rng.random((ROWS, vocabulary - 1)) < 0.1] = np.nan
    return logits


CASES = [(seed, int(np.random.default_rng(seed).choice([5, 64, 300]))) for seed in range(120)]


def case(seed: int, vocabulary: int) -> tuple[np.random.Generator, Sampler, np.ndarray, list[list[int]]]:
    rng = np.random.default_rng([seed, 1])
    histories = [rng.integers(0, vocabulary, 8).tolist() for _ in range(ROWS)]
    return rng, random_sampler(rng), random_rows(rng, vocabulary), histories


def test_the_choice_has_margin_0_and_at_a_glance_nothing_else_passes() -> None:
    told, asked, refused = 0, 0, 0
    for seed, vocabulary in CASES:
        rng, sampler, logits, histories = case(seed, vocabulary)
        chosen = choose(logits, sampler, range(ROWS), histories)
        assert not margins(logits, chosen.tolist(), sampler, range(ROWS), histories).any(), sampler
        honest = plainly_chosen(logits, chosen.tolist(), sampler, range(ROWS), histories, EVERY_TOKEN)
        told, asked = told + int(honest.sum()), asked + ROWS * (sampler.form == "gumbel" or sampler.is_greedy)
        other = rng.integers(0, vocabulary, ROWS)
        passed = plainly_chosen(logits, other.tolist(), sampler, range(ROWS), histories, EVERY_TOKEN)
        assert not (passed & (other != chosen)).any(), sampler
        refused += int((~passed & (other != chosen)).sum())
    assert told > 0.8 * asked, "ties and tokens at an edge are left to the slow way"
    assert refused > ROWS


def test_tokens_of_drifted_logits_have_a_margin_of_at_most_twice_the_drift() -> None:
    moved = 0
    for seed, vocabulary in CASES:
        rng, sampler, logits, histories = case(seed, vocabulary)
        drift = float(rng.choice([1e-3, 0.05, 0.5, 2.0]))
        other = (logits + rng.uniform(-drift, drift, logits.shape)).astype(np.float32)
        chosen = choose(other, sampler, range(ROWS), histories).tolist()
        found = margins(logits, chosen, sampler, range(ROWS), histories)
        assert (found <= 2 * drift + 1e-5).all(), (sampler, drift, found)
        moved += int((found > 0).sum())
    assert moved > 100


def test_random_tokens_lie_far_beyond_any_tie_band() -> None:
    rng = np.random.default_rng(3)
    logits = (3 * rng.standard_normal((200, 300))).astype(np.float32)
    sampler, nothing = Sampler(temperature=0.7, top_p=0.9, seed=5), [()] * 200
    found = margins(logits, rng.integers(0, 300, 200).tolist(), sampler, range(200), nothing)
    assert np.median(found) > 3
    assert (found > 0.1).mean() > 0.97


def test_a_greedy_margin_is_the_distance_to_the_largest_logit() -> None:
    logits = np.array([[1.0, 4.0, 3.5, -np.inf]], np.float32)
    sampler = Sampler(temperature=0.0, top_k=1, top_p=0.1)
    for token, expected in enumerate([3.0, 0.0, 0.5, math.inf]):
        assert margin(logits[0], token, sampler, 0, ()) == pytest.approx(expected, abs=1e-8)


def test_without_filters_the_margin_is_the_distance_of_scores_in_logits() -> None:
    rng = np.random.default_rng(4)
    logits = (2 * rng.standard_normal((8, 50))).astype(np.float32)
    sampler, nothing = Sampler(temperature=0.7, seed=3), [()] * 8
    found = scores(logits, sampler, range(8), nothing)
    expected = (found.max(axis=1) - found[:, 7]) / fixed_point.ONE * math.log(2) * 0.7
    assert margins(logits, [7] * 8, sampler, range(8), nothing) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("token", range(20))
def test_a_margin_without_filters_is_enough(token: int) -> None:
    """Raising the claimed token by half of it and lowering all others by half makes the sampler choose it."""
    rng = np.random.default_rng(5)
    logits = (2 * rng.standard_normal(20)).astype(np.float32)
    for sampler in (Sampler(temperature=0.7, seed=9), Sampler(temperature=0.0)):
        half = margin(logits, token, sampler, 4, ()) / 2 + 1e-5
        moved = np.where(np.arange(20) == token, logits + half, logits - half).astype(np.float32)
        assert choose(moved[None], sampler, [4], [()])[0] == token


@pytest.mark.parametrize(
    ("filters", "token", "expected"),
    [
        ({"top_k": 2}, 2, 1.5),  # has to reach the second largest
        ({"top_k": 2}, 3, 3.5),
        ({"min_p": math.exp(-2.0)}, 2, 0.5),  # has to come within 2 of the largest
        ({"min_p": math.exp(-2.0)}, 3, 2.5),
        ({"top_p": 0.5}, 2, 1.5),  # has to reach the second: the first alone is half of all
        ({"top_p": 0.2}, 2, math.log(0.8 * math.exp(2.5) / (0.2 * (math.exp(1.5) + 1 + math.exp(-2.0))))),
    ],
)
def test_a_filtered_token_lies_as_far_as_its_filter(filters: dict[str, Any], token: int, expected: float) -> None:
    """Of logits 2.5, 1.5, 0, −2 at T = 1: what a token needs to be kept, where its noise would let it win."""
    logits = np.array([2.5, 1.5, 0.0, -2.0], np.float32)
    wins = next(
        (seed, place)
        for seed in range(200)
        for place in range(50)
        if int(np.argmax(scores(logits[None], Sampler(seed=seed), [place], [()])[0])) == token
    )
    sampler = Sampler(seed=wins[0], **filters)
    assert not kept(logits[None], sampler, [wins[1]], [()])[0, token]
    found = margin(logits, token, sampler, wins[1], ())
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_rival_that_may_be_filtered_out_counts_only_as_far_as_its_edge() -> None:
    logits = np.array([2.0, 1.0, 0.9], np.float32)
    plain = Sampler(seed=0)
    place = next(
        place
        for place in range(2000)
        if (order := np.argsort(scores(logits[None], plain, [place], [()])[0]))[-1] == 1
        and order[-2] == 0
        and margin(logits, 0, plain, place, ()) > 1.0
    )
    assert margin(logits, 0, plain, place, ()) > 1.0
    assert margin(logits, 0, plain.model_copy(update={"top_k": 2}), place, ()) == pytest.approx(0.1, abs=1e-5)


def test_the_sum_form_measures_odds() -> None:
    logits = np.log(np.array([0.2, 0.3, 0.5])).astype(np.float32)
    sampler = Sampler(form="cdf", seed=1)
    place = next(place for place in range(99) if choose(logits[None], sampler, [place], [()])[0] == 2)
    word = int(words(stream_key(1), 1, place << 20)[0])
    u = (word >> 2) / 2**62
    for token, until in ((0, 0.2), (1, 0.5)):
        expected = math.log(u / (1 - u)) - math.log(until / (1 - until))
        assert margin(logits, token, sampler, place, ()) == pytest.approx(expected, abs=1e-5)


def test_a_penalty_that_stretches_logits_is_taken_off_the_margin() -> None:
    logits = np.array([-1.0, -3.0], np.float32)
    sampler = Sampler(temperature=0.0, repetition_penalty=2.0)
    assert margin(logits, 1, sampler, 0, ()) == pytest.approx(2.0)
    assert margin(logits, 1, sampler, 0, (1,)) == pytest.approx((6.0 - 1.0) / 2)


def test_edges_at_no_spread_are_what_the_filters_keep() -> None:
    rng = np.random.default_rng(6)
    for _ in range(60):
        sampler = random_sampler(rng)
        if sampler.is_greedy:
            continue
        logits = (3 * rng.standard_normal(64)).astype(np.float32)
        x = relative_logits(logits, sampler, ())
        edges = FilterEdges(Ranks(x), sampler)
        left = kept(logits[None], sampler, [0], [()])[0].tolist()
        assert [edges.possible(each, 0.0) for each in x.tolist()] == left, sampler
        assert [edges.sure(each, 0.0) for each in x.tolist()] == left, sampler
        assert edges.count_possible(0.0) == edges.count_sure(0.0) == sum(left), sampler


def test_edges_hold_every_drift() -> None:
    rng = np.random.default_rng(7)
    for _ in range(200):
        sampler, spread = random_sampler(rng), float(rng.choice([0.1, 1.0, 3.0]))
        if sampler.is_greedy:
            continue
        logits = (3 * rng.standard_normal(64)).astype(np.float32)
        x = relative_logits(logits, sampler, ())
        edges = FilterEdges(Ranks(x), sampler)
        moves = rng.choice([-1.0, 1.0], 64) if rng.random() < 0.5 else rng.uniform(-1, 1, 64)
        left = kept((logits + moves * spread / 2).astype(np.float32)[None], sampler, [0], [()])[0]
        assert (left <= [edges.possible(each, spread + 1e-5) for each in x.tolist()]).all(), sampler
        assert ([edges.sure(each, spread + 1e-5) for each in x.tolist()] <= left).all(), sampler


def test_a_smaller_reach_overlooks_no_more_than_it_says() -> None:
    rng = np.random.default_rng(8)
    rows, nothing = 1500, [()] * 1500
    logits = (2 * rng.standard_normal((rows, 200))).astype(np.float32)
    sampler, reach = Sampler(seed=4), 1.0
    chosen = choose(logits, sampler, range(rows), nothing)
    second = np.argsort(scores(logits, sampler, range(rows), nothing), axis=1)[:, -2]
    passed = plainly_chosen(logits, second.tolist(), sampler, range(rows), nothing, reach)
    everyone = np.arange(rows)
    held = scores(logits, sampler, range(rows), nothing)[everyone, second] / fixed_point.ONE * math.log(2)
    relative = logits - logits.max(axis=1, keepdims=True)
    overlooked = relative[everyone, chosen] < held - math.log(math.log(2)) - reach  # keys are log2(-log2 u)
    assert (passed == overlooked).all()
    usual = plainly_chosen(logits, second.tolist(), sampler, range(rows), nothing, USUAL_REACH)
    assert usual.mean() < 0.05 < passed.mean()


def test_scattered_words_are_those_of_the_stream() -> None:
    rng = np.random.default_rng(9)
    positions, tokens = rng.integers(0, 1 << 39, 200), rng.integers(0, 1 << 20, 200)
    found = words_at(7, positions, tokens)
    for word, position, token in zip(found, positions, tokens, strict=True):
        assert np.int64(word).view(np.uint64) == words(stream_key(7), 1, (int(position) << 20) + int(token))[0]
    assert not len(words_at(7, positions[:0], tokens[:0]))


@pytest.mark.parametrize("token", [-1, 4])
def test_a_token_outside_the_vocabulary_is_refused(token: int) -> None:
    logits = np.zeros((1, 4), np.float32)
    with pytest.raises(MalformedError, match="outside the vocabulary"):
        margins(logits, [token], Sampler(), [0], [()])
    assert margins(logits, [3], Sampler(), [0], [()]).shape == (1,)


def test_rows_of_nothing_but_masked_tokens_have_no_finite_margin() -> None:
    logits = np.full((2, 4), -np.inf, np.float32)
    for sampler in (Sampler(), Sampler(temperature=0.0), Sampler(form="cdf", top_p=0.5)):
        assert np.isinf(margins(logits, [0, 1], sampler, [0, 1], [(), ()])).all()
    assert margins(logits[:0], [], Sampler(), [], []).shape == (0,)


@pytest.mark.parametrize("form", ["cdf", "gumbel"])
def test_a_refused_token_under_a_filter_costs_few_questions_however_large_the_vocabulary(
    form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question about a filter's edge takes constant time: sums are made once for a row."""
    asked: list[float] = []
    possible, sure = FilterEdges.possible, FilterEdges.sure

    def counted(question: Any) -> Any:
        return lambda self, x, spread: asked.append(spread) or question(self, x, spread)

    monkeypatch.setattr(FilterEdges, "possible", counted(possible))
    monkeypatch.setattr(FilterEdges, "sure", counted(sure))
    costs = []
    for vocabulary in (256, 32_768):
        logits = np.random.default_rng(1).normal(0, 2, vocabulary).astype(np.float32)
        sampler = Sampler(form=form, top_p=0.9, seed=3)
        chosen = int(choose(logits[None], sampler, [0], [()])[0])
        other = int(np.argsort(logits)[-2 if chosen == int(np.argmax(logits)) else -1])
        asked.clear()
        assert margin(logits, other, sampler, 0, ()) > 0
        costs.append(len(asked))
    assert 0 < costs[1] < 2_000
    assert costs[1] < 2.5 * costs[0]
