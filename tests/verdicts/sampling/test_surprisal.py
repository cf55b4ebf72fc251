"""Surprisal is that of the claimed sampler, and its ratios have mean 1 at most under every logits within the spread."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tallystick.core.errors import MalformedError
from tallystick.formats.receipt import Sampler
from tallystick.verdicts.evidence import discount
from tallystick.verdicts.sampling.margin import log_ratios, surprisals
from tests.support.sampler_rows import probabilities

V = 24


def random_sampler(rng: np.random.Generator) -> Sampler:
    return Sampler(
        temperature=float(rng.choice([0.5, 0.7, 1.0, 1.8])),
        top_k=int(rng.choice([0, 0, 3, 8])),
        top_p=float(rng.choice([1.0, 0.95, 0.7])),
        min_p=float(rng.choice([0.0, 0.0, 0.05, 0.2])),
        repetition_penalty=float(rng.choice([1.0, 1.2])),
    )


def test_probabilities_are_those_of_the_filtered_and_tempered_softmax() -> None:
    logits = np.array([[2.0, 1.0, 0.0, -1.0]], np.float32)
    e = np.exp(np.array([2.0, 1.0, 0.0, -1.0]) / 0.5)
    assert probabilities(logits, Sampler(temperature=0.5), [()])[0] == pytest.approx(e / e.sum(), abs=1e-8)
    kept = probabilities(logits, Sampler(temperature=0.5, top_k=2), [()])[0]
    assert kept == pytest.approx(np.array([e[0], e[1], 0, 0]) / e[:2].sum(), abs=1e-8)
    assert probabilities(logits, Sampler(temperature=0.0), [()]).tolist() == [[1, 0, 0, 0]]
    seen = probabilities(logits, Sampler(repetition_penalty=2.0), [(0,)])[0]
    assert seen[0] == pytest.approx(seen[1], abs=1e-8)


def test_surprisal_expectation_and_variance_agree_with_draws() -> None:
    rng = np.random.default_rng(1)
    logits = (2 * rng.standard_normal((1, V))).astype(np.float32)
    sampler = Sampler(temperature=0.8, top_p=0.9)
    p = probabilities(logits, sampler, [()])[0]
    drawn = rng.choice(V, 4000, p=p)
    found = surprisals(np.repeat(logits, 4000, axis=0), drawn.tolist(), sampler, [()] * 4000)
    assert found.claimed == pytest.approx(-np.log(p[drawn]))
    error = math.sqrt(found.variance[0] / 4000)
    assert abs(found.claimed.mean() - found.expected[0]) < 4 * error
    assert found.claimed.var() == pytest.approx(found.variance[0], rel=0.1)


def test_a_token_at_a_filters_edge_is_not_impossible_and_one_far_beyond_is() -> None:
    logits = np.array([[3.0, 2.0, 1.999, -3.0]], np.float32)
    sampler = Sampler(top_k=2)
    at_edge = surprisals(logits, [2], sampler, [()], 0.01)
    assert np.isinf(at_edge.claimed[0])
    assert at_edge.least[0] == pytest.approx(-math.log(math.exp(1.999) / (math.exp(1.999) + math.exp(3.0))), abs=1e-6)
    assert np.isinf(surprisals(logits, [3], sampler, [()], 0.01).least[0])
    assert np.isinf(surprisals(logits, [2], sampler, [()], 0.0001).least[0])


def test_no_honest_token_is_likelier_than_its_ceiling_allows() -> None:
    rng = np.random.default_rng(2)
    for _ in range(80):
        sampler, spread = random_sampler(rng), float(rng.choice([0.02, 0.5]))
        logits = (2 * rng.standard_normal(V)).astype(np.float32)
        honest = probabilities(drifted(logits, spread, rng)[None], sampler, [(1, 2)])[0]
        seen = surprisals(np.tile(logits, (V, 1)), range(V), sampler, [(1, 2)] * V, 1.2 * spread + 1e-5)
        cap = np.exp(-seen.least + discount(1.2 * spread + 1e-5, sampler.temperature))
        assert (honest <= cap + 1e-9).all(), sampler


def drifted(logits: np.ndarray, spread: float, rng: np.random.Generator) -> np.ndarray:
    """Logits as far off as the spread allows, which the penalty of 1.2 may stretch."""
    return np.asarray(logits + rng.choice([-1.0, 1.0], logits.shape) * spread / 2, np.float32)


@pytest.mark.parametrize("seed", range(12))
def test_every_ratio_has_mean_1_at_most_under_what_it_is_against(seed: int) -> None:
    rng = np.random.default_rng([3, seed])
    sampler, spread = random_sampler(rng), float(rng.choice([0.02, 0.3]))
    logits = (2 * rng.standard_normal(V)).astype(np.float32)
    honest = drifted(logits, spread, rng)[None]
    stretched = 1.2 * spread + 1e-5
    found = log_ratios(np.tile(logits, (V, 1)), range(V), sampler, [(1, 2)] * V, stretched)
    p = probabilities(honest, sampler, [(1, 2)])[0]
    assert len(found) == 9
    for name, (against, in_favour) in found.items():
        cost = discount(stretched, sampler.temperature)
        assert mean(p, against - cost) <= 1 + 1e-6, name
        if name.startswith("temperature"):
            temperature = sampler.temperature * float(name.rpartition("x")[2])
            q = probabilities(honest, sampler.model_copy(update={"temperature": temperature}), [(1, 2)])[0]
            assert mean(q, in_favour - discount(stretched, temperature)) <= 1 + 1e-6, name


def mean(p: np.ndarray, logarithms: np.ndarray) -> float:
    with np.errstate(invalid="ignore"):
        return float(np.where(p > 0, p * np.exp(logarithms), 0.0).sum())


def test_without_a_spread_a_drifted_token_breaks_the_mean() -> None:
    logits = np.array([2.0, 1.0, 0.0, -4.0], np.float32)
    found = log_ratios(np.tile(logits, (4, 1)), range(4), Sampler(temperature=0.5), [()] * 4)
    flatter = probabilities(logits[None] * np.float32(0.6), Sampler(temperature=0.5), [()])[0]
    assert mean(flatter, found["temperature x1.43"][0]) > 1.1


def test_what_cannot_be_judged_is_refused() -> None:
    logits = np.zeros((1, 4), np.float32)
    with pytest.raises(MalformedError, match="outside the vocabulary"):
        surprisals(logits, [4], Sampler(), [()])
    with pytest.raises(MalformedError, match="leaves no token"):
        surprisals(np.full((1, 4), -np.inf, np.float32), [3], Sampler(), [()])
    assert surprisals(logits, [3], Sampler(), [()]).claimed == pytest.approx(math.log(4))
    assert log_ratios(logits[:0], [], Sampler(), []) == {}
