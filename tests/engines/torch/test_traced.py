"""A traced function gives what the function gives, whatever is known beforehand and however it is regrouped."""

from __future__ import annotations

import pytest
import torch

from tallystick.engines.torch.traced import TracedCall, trace


def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    product = x @ w
    some = torch.add(b, product, alpha=3.0) * 0.5
    return some, torch.exp(some) + 2.0 * (some + product), torch.cat([product, some])


@pytest.mark.parametrize("regroups", [False, True])
@pytest.mark.parametrize("places", [(), (1,), (1, 2)])
def test_a_traced_call_gives_what_its_function_gives(places: tuple[int, ...], regroups: bool) -> None:
    torch.manual_seed(0)
    inputs = [torch.rand(4, 160), torch.rand(160, 128), torch.rand(128)]
    module = trace(function, inputs)
    assert module is not None
    call = TracedCall(module, {place: inputs[place] for place in places}, regroups)
    for _ in range(2):
        for found, expected in zip(call(inputs), function(*inputs), strict=True):
            assert torch.allclose(found, expected, rtol=1e-5)


def test_a_function_that_looks_at_elements_is_not_traced() -> None:
    assert trace(lambda x: (x + 1 if bool(x.sum() > 0) else x,), [torch.ones(2)]) is None
