from __future__ import annotations

import numpy as np
import pytest

from tallystick.audits.first_state import INITIAL_ROUNDING, judge_initial_state
from tallystick.core.tensors import Tensor
from tallystick.verdicts.verdict import Findings

WEIGHTS = np.linspace(-1, 1, 101, dtype=np.float32)
DRAWN = {"weights.a": Tensor.of(WEIGHTS), "rng.torch_cpu": Tensor.of(np.arange(9, dtype=np.uint8))}


def agrees(claimed: dict[str, Tensor], is_exact: bool = False) -> bool:
    notes = Findings()
    judge_initial_state(notes, claimed, DRAWN, is_exact)
    return not notes.rejected


@pytest.mark.parametrize("is_exact", [True, False])
def test_the_seeded_state_agrees(is_exact: bool) -> None:
    assert agrees(dict(DRAWN), is_exact)


def test_rounding_is_forgiven_on_another_stack_and_not_on_the_same() -> None:
    rounded = DRAWN | {"weights.a": Tensor.of(np.nextafter(WEIGHTS, np.float32(2)))}
    assert agrees(rounded)
    assert not agrees(rounded, is_exact=True)


def test_more_than_rounding_is_not_forgiven() -> None:
    moved = WEIGHTS.copy()
    moved[50] += np.float32(2 * INITIAL_ROUNDING)
    assert not agrees(DRAWN | {"weights.a": Tensor.of(moved)})


def test_not_a_number_is_not_forgiven() -> None:
    broken = WEIGHTS.copy()
    broken[3] = np.nan
    assert not agrees(DRAWN | {"weights.a": Tensor.of(broken)})


def test_whole_numbers_have_to_be_equal() -> None:
    other = Tensor.of(np.arange(1, 10, dtype=np.uint8))
    assert not agrees(DRAWN | {"rng.torch_cpu": other})


def test_generators_of_devices_may_be_there_and_nothing_else() -> None:
    assert agrees(DRAWN | {"rng.torch_cuda_0": Tensor.of(np.zeros(2, np.uint8))})
    assert not agrees(DRAWN | {"weights.b": Tensor.of(WEIGHTS)})
    assert not agrees({"weights.a": DRAWN["weights.a"]})
