"""PyTorch's fused kernel of Adam stays within the bound of its definition, and another update does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tallystick.engines.torch.engine import TorchEngine
from tallystick.engines.torch.kernels import fused_adam
from tallystick.programs.operators.precision import PLAIN
from tests.programs.operators.examples import Call, mapped
from tests.programs.operators.examples_optimizer import EXAMPLES, narrow, update
from tests.programs.operators.honest import bounds_of, leaving, results_of

DRAWS = [update(size, steps=steps) for size in (1, 7, 16, 33, 1000) for steps in (1, 2, 1000)]


@pytest.mark.parametrize("call", [*EXAMPLES["tally.fused_adam"], *DRAWS], ids=str)
def test_the_kernel_stays_within_the_bound(call: Call) -> None:
    assert leaving(call, TorchEngine(), precision=PLAIN) is None


def test_another_learning_rate_leaves_it() -> None:
    honest, other = update(16), update(16, learning_rate=np.asarray(1.001e-3))
    bound = bounds_of(honest)[0]
    assert bound.excess(results_of(honest, TorchEngine(), bounds_of(honest))[0]).max() <= 1
    assert bound.excess(results_of(other, TorchEngine(), bounds_of(other))[0]).max() > 100


@pytest.mark.parametrize("changes", [{}, {"decoupled": False}, {"maximize": True}], ids=str)
def test_it_is_what_the_optimizer_does(changes: dict[str, bool]) -> None:
    call = update(37, steps=1, **changes)
    given = mapped(call.arguments, lambda tensor: torch.from_numpy(tensor.array().copy()))
    given |= {name: torch.zeros_like(given[name]) for name in ("exp_avg", "exp_avg_sq")}
    weight = torch.nn.Parameter(given["weight"].clone())
    kind = torch.optim.AdamW if given["decoupled"] else torch.optim.Adam
    optimizer = kind([weight], lr=1e-3, weight_decay=0.01, fused=True, maximize=given["maximize"])
    weight.grad = given["gradient"]
    optimizer.step()
    assert torch.equal(fused_adam(**given)[0], weight)


def test_sixteen_bits_are_rounded_once() -> None:
    assert leaving(update(20, **narrow(20)), TorchEngine(), precision=PLAIN) is None
