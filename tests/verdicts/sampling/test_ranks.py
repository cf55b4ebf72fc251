"""What is found by ranks is what looking at every token finds, for every form and filter and any logits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tallystick.formats.receipt import Sampler
from tallystick.verdicts.sampling.choice import choose
from tallystick.verdicts.sampling.edges import FilterEdges
from tallystick.verdicts.sampling.filters import Ranks, keys_of, relative_logits
from tallystick.verdicts.sampling.margin import _of, margin, margins
from tests.verdicts.sampling import by_definition

FORMS = ("gumbel", "cdf")
LOGITS = st.one_of(
    st.floats(-30, 30, width=32),
    st.sampled_from([0.0, 1.0, -1.0, 2.5, -math.inf, math.inf, math.nan]),
)
SHARES = st.sampled_from([0.0, 1e-300, 0.05, 0.5, 0.9, 0.99, 1 - 1e-9, 1 - 1e-16, 1.0])


@st.composite
def samplers(draw: st.DrawFn) -> Sampler:
    return Sampler(
        form=draw(st.sampled_from(FORMS)),
        temperature=draw(st.sampled_from([1e-3, 0.3, 1.0, 2.5, 1e3])),
        top_k=draw(st.sampled_from([0, 0, 1, 3, 12, 10**6])),
        top_p=draw(SHARES),
        min_p=draw(st.sampled_from([0.0, 0.0, 1e-300, 0.05, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.7])),
        seed=draw(st.integers(0, 50)),
    )


ROWS = st.lists(LOGITS, min_size=1, max_size=12).filter(lambda row: any(x > -math.inf for x in row))


@settings(max_examples=400, deadline=None)
@given(ROWS, samplers(), st.integers(0, 11), st.integers(0, 3))
def test_margins_are_those_of_a_look_at_every_token(
    row: Sequence[float], sampler: Sampler, token: int, position: int
) -> None:
    logits, token = np.array(row, np.float32), token % len(row)
    found = margin(logits, token, sampler, position, (0,))
    expected = by_definition.margin(logits, token, sampler, position, (0,))
    close = pytest.approx(expected, rel=1e-6, abs=1e-6 * max(1.0, sampler.temperature))
    assert found == close or by_definition.is_underflowing(logits, sampler, (0,))


@settings(max_examples=300, deadline=None)
@given(ROWS, samplers(), st.integers(0, 11), st.sampled_from([0.0, 0.01, 1.0, 8.0]))
def test_shares_and_ceilings_are_those_of_a_look_at_every_token(
    row: Sequence[float], sampler: Sampler, token: int, spread: float
) -> None:
    logits, token = np.array(row, np.float32), token % len(row)
    x = relative_logits(logits, sampler, (0,))
    found = _of(FilterEdges(Ranks(x), sampler), float(x[token]), spread)
    expected = by_definition.share_and_ceiling(
        by_definition.Edges(keys_of(logits, sampler, (0,)), sampler), token, spread
    )
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)


COLD = (1e-300, 1e-25, 1e-12, 1e-8, 1e-6, 2e-5)


@pytest.mark.parametrize("temperature", COLD)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 5, "min_p": 0.1}])
def test_however_cold_a_sampler_is_distances_are_those_of_logits(
    temperature: float, form: str, filters: dict[str, float]
) -> None:
    """Keys end at a lowest one; a token that lies 3 below the largest is 3 away, and an honest drift is a drift."""
    rng = np.random.default_rng(1)
    sampler = Sampler(form=form, temperature=temperature, seed=3, **filters)
    logits = np.sort(rng.uniform(-6, -3, (20, 50))).astype(np.float32)
    logits[:, 7] = 0.0
    nothing: list[tuple[int, ...]] = [()] * 20
    assert (margins(logits, [9] * 20, sampler, range(20), nothing) > 2.9).all()
    served = (logits + rng.uniform(-5e-4, 5e-4, logits.shape)).astype(np.float32)
    served[:, 8] = logits[:, 8] = served[:, 7] - np.float32(1e-5)
    chosen = choose(served, sampler, range(20), nothing).tolist()
    assert (margins(logits, chosen, sampler, range(20), nothing) < 1.1e-3).all()
    assert not margins(served, chosen, sampler, range(20), nothing).any()
