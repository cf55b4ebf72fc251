"""The choice is its definition on every library, follows the softmax, and refuses what is no choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tallystick.core.errors import MalformedError, UsageError
from tallystick.engines.jax.engine import JAX
from tallystick.formats.receipt import Sampler
from tallystick.programs.operators.arrays import NUMPY
from tallystick.programs.operators.tally.fixed_point import MASKED
from tallystick.programs.operators.values import Values
from tallystick.verdicts.sampling.choice import choose
from tests.support.array_libraries import library
from tests.support.sampler_definition import choose_by_definition, keys_by_definition
from tests.support.sampler_rows import kept, keys, scores, weights

SAMPLERS = (
    Sampler(),
    Sampler(form="cdf", seed=3),
    Sampler(temperature=0.0, repetition_penalty=1.5),
    Sampler(top_k=3),
    Sampler(top_p=0.9),
    Sampler(top_p=0.0),
    Sampler(min_p=1.0),
    Sampler(form="cdf", min_p=0.05, temperature=0.7),
    Sampler(form="cdf", top_k=50, top_p=0.9, min_p=0.02, repetition_penalty=1.2),
    Sampler(temperature=1e-30, repetition_penalty=0.5),
    Sampler(temperature=1000.0, seed=5, top_p=0.5),
)
RARE = (-np.inf, np.nan, np.inf, 1e-40, 1.0, -0.0, 3.4e38)
Rows = npt.NDArray[np.float32]


def rows_of(vocabulary: int, scale: float, rows: int = 6) -> Rows:
    """Normal logits among which every number that needs care occurs; the first token of a row is never out."""
    rng = np.random.default_rng(vocabulary)
    logits = np.clip(rng.standard_normal((rows, vocabulary)) * scale, -3e38, 3e38).astype(np.float32)
    for number in RARE:
        logits[rng.random(logits.shape) < 0.03] = number
    logits[:, 0] = np.where(logits[:, 0] > -np.inf, logits[:, 0], 1.0)
    return logits


def histories_of(rows: int, vocabulary: int) -> list[list[int]]:
    return [[token % vocabulary for token in (0, 2, 2, *range(row))] for row in range(rows)]


def held(algebra: Values, value: Any) -> npt.NDArray[np.int64]:
    return np.asarray(algebra.library.storage(value.array))


# ---- the fast way is the definition


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
@pytest.mark.parametrize("name", ["numpy", "reference", "torch"])
def test_keys_and_tokens_are_those_of_the_definition(name: str, sampler: Sampler) -> None:
    algebra = Values(NUMPY, "F64") if name == "reference" else Values(library(name))
    for vocabulary, scale in ((1, 1.0), (2, 0.0), (5, 3.0), (97, 3.0), (97, 1e37), (300, 0.01)):
        logits, histories = rows_of(vocabulary, scale), histories_of(6, vocabulary)
        positions = [0, 1, 5, 1000, 1 << 30, (1 << 40) - 1]
        found = held(algebra, keys_by_definition(logits, sampler, histories, algebra))
        assert (found == keys(logits, sampler, positions, histories)).all()
        tokens = choose_by_definition(logits, sampler, positions, histories, algebra)
        assert tokens.tolist() == choose(logits, sampler, positions, histories).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_jax_gives_the_same_tokens(sampler: Sampler) -> None:
    import jax

    logits, histories = rows_of(97, 3.0), histories_of(6, 97)
    with jax.enable_x64(True):
        tokens = choose_by_definition(logits, sampler, range(6), histories, Values(JAX))
    assert tokens.tolist() == choose(logits, sampler, range(6), histories).tolist()


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_a_large_vocabulary_is_no_other_case(sampler: Sampler) -> None:
    logits, histories = rows_of(20_011, 3.0, rows=2), histories_of(2, 20_011)
    expected = choose_by_definition(logits, sampler, (7, 8), histories)
    assert choose(logits, sampler, (7, 8), histories).tolist() == expected.tolist()


def test_the_first_largest_score_is_the_token() -> None:
    logits, histories = rows_of(300, 2.0, rows=40), histories_of(40, 300)
    for sampler in (each for each in SAMPLERS if each.form == "gumbel"):
        found = scores(logits, sampler, range(40), histories)
        assert found.argmax(1).tolist() == choose(logits, sampler, range(40), histories).tolist()
        assert ((found != MASKED) == kept(logits, sampler, range(40), histories)).all()


def test_sums_of_weights_have_no_scores() -> None:
    with pytest.raises(UsageError, match="no scores"):
        scores(rows_of(5, 1.0), Sampler(form="cdf"), range(6), [[]] * 6)
    assert scores(rows_of(5, 1.0), Sampler(form="cdf", temperature=0.0), range(6), [[]] * 6).shape == (6, 5)


# ---- what it depends on


def test_seed_and_position_decide_and_nothing_else() -> None:
    logits = np.zeros((1, 1000), np.float32)
    drawn = {
        (seed, position): int(choose(logits, Sampler(seed=seed), [position], [[]])[0])
        for seed in range(10)
        for position in range(10)
    }
    assert len(set(drawn.values())) > 80
    assert all(choose(logits, Sampler(seed=s), [p], [[1, 2]])[0] == token for (s, p), token in drawn.items())


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    logits, histories = rows_of(50, 2.0), histories_of(6, 50)
    together = choose(logits, SAMPLERS[8], range(6), histories)
    alone = [choose(logits[i : i + 1], SAMPLERS[8], [i], histories[i : i + 1])[0] for i in range(6)]
    assert together.tolist() == alone


def test_logits_are_not_changed() -> None:
    logits = rows_of(50, 2.0)
    before = logits.tobytes()
    choose(logits, SAMPLERS[8], range(6), histories_of(6, 50))
    assert logits.tobytes() == before


def test_filters_do_not_matter_to_the_greedy_choice() -> None:
    logits = rows_of(50, 2.0)
    plain = choose(logits, Sampler(temperature=0.0), range(6), [[]] * 6)
    filtered = Sampler(temperature=0.0, top_k=1, top_p=0.0, min_p=1.0, seed=9, form="cdf")
    assert (plain == choose(logits, filtered, range(6), [[]] * 6)).all()
    clean = np.where(np.isnan(logits), -np.inf, np.minimum(logits, np.finfo(np.float32).max))
    assert (plain == clean.argmax(1)).all()


# ---- it follows the softmax


@pytest.mark.parametrize(
    "sampler",
    [
        *(Sampler(form="gumbel", temperature=0.8, seed=1), Sampler(form="cdf", temperature=0.8, seed=1)),
        *(Sampler(form="gumbel", top_k=6, seed=2), Sampler(form="cdf", top_p=0.85, seed=2)),
    ],
    ids=str,
)
def test_draws_follow_the_softmax(sampler: Sampler) -> None:
    """Chi-squared of 8,000 draws: below its mean by 5 standard deviations of a chi-squared at most."""
    logits = np.random.default_rng(4).normal(0, 1.5, 12).astype(np.float32)
    rows, draws = np.tile(logits, (8000, 1)), 8000
    tokens = choose(rows, sampler, range(draws), [()] * draws)
    inside = kept(logits[None], sampler, [0], [()])[0]
    odds = np.where(inside, np.exp(logits.astype(np.float64) / sampler.temperature), 0.0)
    expected = draws * odds / odds.sum()
    counts = np.bincount(tokens, minlength=12)
    assert (counts[~inside] == 0).all()
    free = int(inside.sum()) - 1
    statistic = ((counts - expected)[inside] ** 2 / expected[inside]).sum()
    assert statistic < free + 5 * np.sqrt(2 * free)


def test_the_statistic_sees_another_temperature() -> None:
    logits = np.random.default_rng(4).normal(0, 1.5, 12).astype(np.float32)
    tokens = choose(np.tile(logits, (8000, 1)), Sampler(temperature=0.9, seed=1), range(8000), [()] * 8000)
    odds = np.exp(logits.astype(np.float64) / 0.8)
    expected = 8000 * odds / odds.sum()
    assert ((np.bincount(tokens, minlength=12) - expected) ** 2 / expected).sum() > 11 + 5 * np.sqrt(22)


@pytest.mark.parametrize("form", ["gumbel", "cdf"])
def test_draws_at_neighbouring_positions_are_independent(form: Any) -> None:
    rows = np.zeros((4001, 4), np.float32)
    tokens = choose(rows, Sampler(form=form, seed=6), range(4001), [()] * 4001)
    pairs = np.bincount(4 * tokens[:-1] + tokens[1:], minlength=16)
    assert ((pairs - 250) ** 2 / 250).sum() < 15 + 5 * np.sqrt(30)


def test_weights_are_the_softmax() -> None:
    logits = np.random.default_rng(5).normal(0, 3, (4, 500)).astype(np.float32)
    found = weights(logits, Sampler(temperature=0.6), range(4), [()] * 4).astype(np.float64)
    wanted = np.exp((logits.astype(np.float64) - logits.max(1, keepdims=True)) / 0.6)
    wanted /= wanted.sum(1, keepdims=True)
    assert np.abs(found / found.sum(1, keepdims=True) - wanted).max() < 1e-9


# ---- what is refused


def test_a_row_without_tokens_has_no_choice() -> None:
    logits = np.array([[0, 1], [-np.inf, np.nan]], np.float32)
    for sampler in (Sampler(), Sampler(form="cdf"), Sampler(temperature=0.0), Sampler(top_k=1, top_p=0.5, min_p=0.5)):
        with pytest.raises(MalformedError, match="row 1 leaves no token"):
            choose(logits, sampler, (0, 1), [(), ()])
        assert choose(logits[:1], sampler, (0,), [()]).tolist() in ([0], [1])


@pytest.mark.parametrize(
    ("logits", "positions", "histories", "reason"),
    [
        (np.zeros((1, 3)), [0], [[]], "float64"),
        (np.zeros(3, np.float32), [0], [[]], "not float32\\[rows"),
        (np.zeros((1, 0), np.float32), [0], [[]], "vocabulary of 0"),
        (np.zeros((1, (1 << 20) + 1), np.float32), [0], [[]], "vocabulary of 1048577"),
        (np.zeros((2, 3), np.float32), [0], [[], []], "2 rows, 1 positions"),
        (np.zeros((1, 3), np.float32), [0], [], "0 histories"),
        (np.zeros((1, 3), np.float32), [-1], [[]], "positions"),
        (np.zeros((1, 3), np.float32), [1 << 40], [[]], "positions"),
        (np.zeros((1, 3), np.float32), [0], [[0, 3]], "outside the vocabulary of 3"),
        (np.zeros((1, 3), np.float32), [0], [[-1]], "outside the vocabulary of 3"),
    ],
)
def test_what_is_no_row_is_refused(logits: Any, positions: Any, histories: Any, reason: str) -> None:
    with pytest.raises(MalformedError, match=reason):
        choose(logits, Sampler(repetition_penalty=1.1), positions, histories)


def test_rows_inside_of_the_limits_are_taken() -> None:
    logits = np.zeros((1, 3), np.float32)
    assert choose(logits, Sampler(repetition_penalty=1.1), [(1 << 40) - 1], [[0, 2]])[0] in range(3)
    assert choose(np.zeros((1, 1 << 20), np.float32), Sampler(), [0], [[]])[0] in range(1 << 20)
    assert choose(logits[:0], Sampler(), [], []).tolist() == []
    assert keys(logits[:0], Sampler(), [], []).shape == (0, 3)


def test_nobody_chooses_in_the_place_of_an_unknown_sampler() -> None:
    logits = np.zeros((1, 4), np.float32)
    with pytest.raises(UsageError, match="unknown form"):
        choose(logits, Sampler(form="unknown"), [0], [[]])
    assert choose(logits, Sampler(form="unknown", temperature=0.0), [0], [[]]).tolist() == [0]
