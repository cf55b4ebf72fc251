"""The sketch of a live model is the projection of its weights, whatever their sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tallystick.frameworks.torch.sketch import Sketcher
from tallystick.frameworks.torch.state import to_tensor
from tallystick.tolerances import Projection
from tallystick.transcripts import decode_sketch

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = [(1,), (15,), (16,), (17,), (33, 7), (5, 3, 3), (1024,), (1000, 3), ()]


def drawn(*sizes: tuple[int, ...]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {f"weights.{number}": torch.randn(size, generator=generator) for number, size in enumerate(sizes)}


def live_sketch(projection: Projection, weights: dict[str, torch.Tensor]) -> np.ndarray:
    return projection.decode(decode_sketch(Sketcher(projection, weights).sketch()))


def defined_sketch(projection: Projection, weights: dict[str, torch.Tensor]) -> np.ndarray:
    return projection.sketch({name: to_tensor(value) for name, value in weights.items()})


def rounding(weights: dict[str, torch.Tensor]) -> float:
    """An error bound: one float32 rounding for each of the numbers that are summed, at their full size."""
    return 2.0**-23 * sum(float(value.double().abs().sum()) for value in weights.values())


@pytest.mark.parametrize("width", [1, 3, 16, 64])
@pytest.mark.parametrize("size", SIZES)
def test_one_tensor_is_sketched_as_defined(size: tuple[int, ...], width: int) -> None:
    projection, weights = Projection(bytes(32), width), drawn(size)
    gap = np.abs(live_sketch(projection, weights) - defined_sketch(projection, weights))
    assert gap.max() <= rounding(weights)


def test_a_whole_model_is_sketched_as_defined() -> None:
    projection, weights = Projection(bytes(range(32))), drawn(*SIZES)
    np.testing.assert_allclose(
        live_sketch(projection, weights), defined_sketch(projection, weights), atol=rounding(weights)
    )


def test_a_sketch_follows_weights_that_are_written_in_place_and_weights_that_move() -> None:
    weights = {"weights.a": torch.nn.Parameter(torch.ones(37))}
    projection = Projection(bytes(32))
    sketcher = Sketcher(projection, weights)
    for change in ("in place", "moved"):
        with torch.no_grad():
            if change == "moved":
                weights["weights.a"].data = torch.full((37,), 4.0)
            else:
                weights["weights.a"].mul_(3.0)
        found = projection.decode(decode_sketch(sketcher.sketch()))
        np.testing.assert_allclose(found, defined_sketch(projection, weights), atol=rounding(weights))


def test_a_tensor_that_does_not_lie_in_order_is_sketched_in_order() -> None:
    projection, across = Projection(bytes(32)), torch.arange(35.0).reshape(5, 7).T
    weights = {"weights.a": across}
    np.testing.assert_allclose(live_sketch(projection, weights), defined_sketch(projection, weights), atol=1e-3)


def test_half_precision_weights_are_sketched_as_the_numbers_they_are() -> None:
    projection = Projection(bytes(32))
    weights = {"weights.a": drawn((50,))["weights.0"].to(torch.bfloat16)}
    np.testing.assert_allclose(
        live_sketch(projection, weights), defined_sketch(projection, weights), atol=rounding(weights)
    )


def test_integers_are_not_sketched() -> None:
    projection, weights = Projection(bytes(32)), drawn((20,))
    counted = weights | {"weights.count": torch.arange(9)}
    np.testing.assert_array_equal(live_sketch(projection, counted), live_sketch(projection, weights))


def test_another_seed_another_name_and_another_number_give_another_sketch() -> None:
    weights = drawn((40,))
    reference = live_sketch(Projection(bytes(32)), weights)
    changed = {"weights.0": weights["weights.0"].clone()}
    changed["weights.0"][39] += 1.0
    others = [
        live_sketch(Projection(b"\1" * 32), weights),
        live_sketch(Projection(bytes(32)), {"weights.other": weights["weights.0"]}),
        live_sketch(Projection(bytes(32)), changed),
    ]
    assert not any(np.array_equal(other, reference) for other in others)


def test_a_sketch_is_repeated_bit_for_bit() -> None:
    weights = drawn(*SIZES)
    sketches = {Sketcher(Projection(bytes(32)), weights).sketch() for _ in range(3)}
    assert len(sketches) == 1
