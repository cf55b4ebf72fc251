"""Summaries of a live model are those that NumPy computes from its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tallystick.core.tensor_digests import state_digest
from tallystick.formats.recipe import Recipe, RecordRecipe
from tallystick.formats.records import decode_sketch
from tallystick.verdicts.distances import Projection

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")
SEED = bytes(range(32))


@pytest.mark.parametrize("width", [1, 7, 16, 64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sketch_is_the_projection_to_the_rounding_of_float32(width: int, dtype: str) -> None:
    from tallystick.engines.torch.tensors import to_tensor
    from tallystick.engines.torch.training.trainer import Sketcher

    torch.manual_seed(3)
    shapes = {"weights.a": (5, 9), "weights.b": (64, 33), "weights.c": (1,), "weights.d": (3, 2, 16)}
    weights = {name: torch.randn(shape).to(getattr(torch, dtype)) for name, shape in shapes.items()}
    projection = Projection(SEED, width)
    found = projection.decode(decode_sketch(Sketcher(projection, weights).sketch()))
    exact = projection.sketch({name: to_tensor(value) for name, value in weights.items()})
    norm = np.sqrt(sum(float(value.double().square().sum()) for value in weights.values()))
    assert np.linalg.norm(found - exact) <= 4 * 2.0**-24 * norm


def test_a_sketch_follows_the_weights_and_leaves_integers_out() -> None:
    from tallystick.engines.torch.training.trainer import Sketcher

    weights = {"weights.a": torch.ones(8, 8), "weights.n": torch.ones(3, dtype=torch.int64)}
    sketcher = Sketcher(Projection(SEED, 4), weights)
    before = sketcher.sketch()
    weights["weights.n"].add_(1)
    assert sketcher.sketch() == before
    weights["weights.a"].add_(1)
    after = sketcher.sketch()
    assert after != before
    weights["weights.a"].data = weights["weights.a"].detach().clone()
    assert sketcher.sketch() == after


def test_a_weight_that_moved_or_is_strided_is_sketched_all_the_same() -> None:
    from tallystick.engines.torch.training.trainer import Sketcher

    values = torch.randn(6, 10)
    strided = values.t().contiguous().t()
    projection = Projection(SEED, 4)
    assert Sketcher(projection, {"w": values}).sketch() == Sketcher(projection, {"w": strided}).sketch()


@pytest.mark.parametrize(
    "recorded",
    [
        {},
        {"summaries": []},
        {"summaries": ["exact"], "exact_stride": 2},
        {"summaries": ["bucket"], "bucket_mode": "both", "bucket_stride": 2},
        {"summaries": ["exact", "bucket", "projection"], "bucket_mode": "grid", "hint_margin": 0.01},
    ],
)
def test_the_summaries_of_a_step_are_those_the_recipe_asks_for(
    recipe_of: Callable[..., Recipe], recorded: dict[str, Any]
) -> None:
    from tallystick.core.digests import digest
    from tallystick.engines.torch.training.trainer import Summariser, Trainer

    settings = RecordRecipe.from_json(recorded, "record")
    trainer = Trainer(recipe_of(), 256)
    kept: list[bytes] = []

    def keep(data: bytes) -> Any:
        kept.append(data)
        return digest("blob", data)

    summariser = Summariser(settings, SEED, trainer.weights(), trainer.state, keep)
    for step in (1, 2):
        summary = summariser.after_step(step)
        assert summary.model_dump(exclude_none=True).keys() == settings.summaries_due(step)
        if summary.exact is not None:
            assert summary.exact == state_digest(trainer.state())
    assert bool(kept) == (settings.hint_margin > 0)
    anchored = summariser.at_anchor().model_dump(exclude_none=True).keys()
    assert anchored >= set(settings.bucket_modes)


def test_a_sketch_is_the_same_under_autocast_and_reduced_precision() -> None:
    from tallystick.engines.torch.training.trainer import Sketcher

    torch.manual_seed(3)
    sketcher = Sketcher(Projection(SEED, 16), {"w": torch.randn(300, 64)})
    expected = sketcher.sketch()
    kept = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.autocast("cpu", torch.bfloat16):
            assert sketcher.sketch() == expected
    finally:
        torch.set_float32_matmul_precision(kept)


def test_a_sketch_in_blocks_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from tallystick.engines.torch.training.trainer import Sketcher

    weights = {"w": torch.arange(1000.0)}
    expected = Sketcher(Projection(SEED, 16), weights).sketch()
    monkeypatch.setitem(Sketcher.__init__.__globals__["BLOCK"], "cpu", 48)
    assert Sketcher(Projection(SEED, 16), weights).sketch() == expected
