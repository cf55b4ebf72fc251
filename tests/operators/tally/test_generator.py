"""Masks of dropout are those that PyTorch and oneMKL draw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.commitments.mt19937 import GOES_ON, draw, seeded
from tallystick.operators.arrays import NUMPY
from tallystick.operators.registry import operator
from tallystick.operators.tally.generator import MCG31, MT19937
from tallystick.operators.values import Value, Values

VECTORS = json.loads(Path("vectors/generator/draws.json").read_text())
VALUES = Values(NUMPY, "F64")


def masked(name: str, state: Any, size: tuple[int, ...], keep: float, dtype: str = "F32") -> tuple[Any, Any]:
    arguments = {"state": Value(state, "I64"), "size": size, "keep": keep, "dtype": dtype}
    mask, after = operator(name).read(VALUES, arguments)
    return mask.array, after.array


@pytest.mark.parametrize("case", VECTORS["masks"], ids=lambda case: str(case["size"]))
def test_masks_are_those_of_pytorch_and_follow_each_other(case: dict[str, Any]) -> None:
    state = seeded(case["seed"])
    for wanted in case["masks"]:
        mask, state = masked(MT19937, state, tuple(case["size"]), case["keep"])
        assert mask.ravel().astype(int).tolist() == wanted


@pytest.mark.parametrize("case", VECTORS["bernoulli"], ids=lambda case: str(case["seed"]))
def test_masks_of_one_word_are_those_of_onemkl(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    mask, after = _of_seed(monkeypatch, case["seed"], 64, case["keep"])
    assert mask.astype(int).tolist() == case["numbers"]
    assert after[-1] == 1


@pytest.mark.parametrize("case", VECTORS["edges"], ids=lambda case: str(case["keep"]))
def test_the_edge_is_that_of_single_precision(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first, keep = case["first"], case["keep"]
    assert not _of_seed(monkeypatch, first, 1, keep)[0].any()
    assert first == 1 or _of_seed(monkeypatch, first - 1, 1, keep)[0].all()


def _of_seed(monkeypatch: pytest.MonkeyPatch, seed: int, count: int, keep: float) -> tuple[Any, Any]:
    """The mask where the next word of the generator is `seed`."""

    def mersenne(self: Any, state: Value, move: Value, taken: int) -> tuple[Value, Value]:
        return Value(np.full(taken, seed, np.int64), "I64"), Value(np.append(state.array[:-1], taken), "I64")

    monkeypatch.setattr(Values, "mersenne", mersenne)
    return masked(MCG31, seeded(1), (count,), keep)


def test_f64_takes_the_second_of_two_words() -> None:
    _, second = draw(seeded(1), GOES_ON, 1, 0)
    mask, after = masked(MCG31, seeded(1), (50,), 0.5, "F64")
    assert np.array_equal(mask, masked(MCG31, second, (50,), 0.5)[0])
    assert after[-1] == 2


def test_what_this_machine_draws_is_known_in_every_dtype_and_order_of_axes() -> None:
    torch = pytest.importorskip("torch")
    from tallystick.frameworks.torch.generator_operators import live_state, native_mask
    from tallystick.frameworks.torch.randomness import GeneratorRandomness

    assert native_mask() is not None
    likes = [
        torch.empty(7, 3),
        torch.empty(4, 3, 5).permute(2, 0, 1),
        torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.empty(3, 1, 4).transpose(0, 2),
        torch.empty(6, dtype=torch.bfloat16),
        torch.empty(6, dtype=torch.float64),
        torch.empty(()),
    ]
    torch.manual_seed(12)
    ours = GeneratorRandomness(torch.from_numpy(live_state()))
    for like in likes:
        drawn = torch.empty_like(like).bernoulli_(0.6)
        assert torch.equal(ours.mask(like, 0.6), drawn), like.shape
    assert np.array_equal(ours.place.numpy(), live_state())
