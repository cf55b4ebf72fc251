"""The fast choice is the plain one for every row and every setting, and usual rows never need the plain one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tallystick.formats.receipt import Sampler
from tallystick.verdicts.sampling import fast_choice
from tallystick.verdicts.sampling.choice import choose_one
from tallystick.verdicts.sampling.fast_choice import choose_fast
from tests.verdicts.sampling.test_choose import RARE, Rows

SETTINGS: dict[str, tuple[float, ...]] = {
    "temperature": (0.0, 1e-6, 0.05, 0.3, 0.7, 1.0, 1.0, 1.3, 3.0, 1000.0),
    "top_p": (1.0, 1.0, 1.0, 0.0, 1e-5, 0.5, 0.9, 0.99, 1 - 1e-9),
    "top_k": (0, 0, 0, 1, 2, 50, 255, 256, 300),
    "min_p": (0.0, 0.0, 0.0, 1e-9, 0.05, 0.5, 1.0),
    "repetition_penalty": (1.0, 1.0, 1.0, 0.5, 1.1, 2.0),
    "presence_penalty": (0.0, 0.0, 0.0, 0.0, 0.5),
    "logit_bias": ((), (), (), (), ((1, 3.0), (2, -100.0))),  # type: ignore[dict-item]
    "allowed_token_ids": ((), (), (), (), (3, 5, 250)),  # type: ignore[dict-item]
}


def drawn_sampler(rng: np.random.Generator) -> Sampler:
    fields: dict[str, Any] = {name: values[rng.integers(len(values))] for name, values in SETTINGS.items()}
    return Sampler(seed=int(rng.integers(1 << 40)), form="cdf" if rng.random() < 0.05 else "gumbel", **fields)


def rounded(rows: Rows) -> Rows:
    """To bfloat16, in which many logits are equal."""
    return ((rows.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)


def drawn_row(rng: np.random.Generator, vocabulary: int) -> Rows:
    row = (rng.choice([0.01, 0.5, 2.0, 5.0]) * rng.standard_normal(vocabulary)).astype(np.float32)
    row += np.float32(rng.choice([0.0, 0.0, -20.0, 1e4]))
    kind = rng.integers(6)
    if kind in (0, 1):
        row = rounded(row)
    elif kind == 2:
        row = np.round(row)
    elif kind == 3:
        row[rng.random(vocabulary) < 0.5] = -np.inf
    elif kind == 4:
        row[rng.integers(vocabulary)] = rng.choice(RARE)
    return row


@pytest.mark.parametrize("seed", range(4))
def test_the_fast_choice_is_the_plain_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(600):
        row, sampler, position = drawn_row(rng, 256), drawn_sampler(rng), int(rng.integers(9))
        history = rng.integers(0, 256, 20).tolist()
        expected = choose_one(row, sampler, position, history)
        assert choose_fast(row, sampler, position, history) == expected, sampler


def test_a_mask_and_rows_without_a_choice() -> None:
    row = np.linspace(-1, 1, 64, dtype=np.float32)
    mask = np.zeros(64, np.bool_)
    mask[[3, 9]] = True
    for sampler in (Sampler(seed=5, allowed_token_ids=(3, 4)), Sampler(temperature=0.0, allowed_token_ids=(3, 4))):
        assert choose_fast(row, sampler, 0, [], mask) == choose_one(row, sampler, 0, [], mask) == 3
    for empty in (-np.inf, np.nan):
        assert choose_fast(np.full(64, empty, np.float32), Sampler(), 0, []) == -1


@pytest.mark.parametrize("sampler", [Sampler(temperature=0.0), Sampler(seed=1), Sampler(temperature=0.7, seed=2)])
def test_rows_as_models_give_them_need_no_plain_choice(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    plain: list[Any] = []
    monkeypatch.setattr(fast_choice, "choose_one", lambda *row: plain.append(row) or 0)
    rng = np.random.default_rng(7)
    filters = ({}, {"top_p": 0.9}, {"top_k": 50}, {"min_p": 0.05}, {"top_p": 0.95, "top_k": 50})
    for each in filters:
        for _ in range(20):
            row = rounded((4 * rng.standard_normal(8192)).astype(np.float32))
            choose_fast(row, sampler.model_copy(update=each), int(rng.integers(100)), [])
    assert len(plain) <= 2
