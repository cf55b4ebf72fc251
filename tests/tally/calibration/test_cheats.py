"""Every cheat changes what is computed, leaves counters as they should be, and its twin changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tallystick.core.tensor_digests import state_digest
from tallystick.tally.calibration.cheats import CLAIMED, KINDS, LADDERS, Cheat, train_falsely
from tallystick.tally.calibration.drift import Drift
from tallystick.tally.calibration.segments import Bench, Stretch, recipe_on, replay
from tallystick.tally.calibration.stacks import BASE, stack_named

STRETCH = Stretch(4, (6,))


@pytest.fixture(scope="module")
def bench(
    trained: Callable[..., Any], recipe_of: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Bench:
    out = tmp_path_factory.mktemp("cheats") / "run"
    config = recipe_of().model.config | {"attention_dropout": 0.0}
    trained(out, {"record": {"anchor_stride": 2}, "model": {"config": config}})
    return Bench(out)


def drift_of(bench: Bench, cheat: Cheat) -> Drift:
    [(_, honest)] = replay(bench, bench.trainer(bench.recipe), BASE, STRETCH)
    [(_, claimed)] = train_falsely(bench, cheat.trainer(bench), cheat, STRETCH, touched=5, seed=3)
    return bench.drift(bench.anchor(4), claimed, honest, (4, 6))


@pytest.mark.parametrize("cheat", CLAIMED, ids=lambda cheat: cheat.name)
def test_a_cheat_moves_the_weights_away_from_the_replay(bench: Bench, cheat: Cheat) -> None:
    drift = drift_of(bench, cheat)
    assert drift.weights.overall > 1e-6


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in LADDERS])
def test_a_cheat_of_size_zero_is_honest(bench: Bench, kind: str) -> None:
    drift = drift_of(bench, Cheat(kind, 0))
    assert (drift.weights.overall, drift.memory.overall, drift.loss) == (0.0, 0.0, 0.0)


def test_a_skipped_step_is_counted_all_the_same(bench: Bench) -> None:
    cheat = Cheat("last step skipped", 1)
    [(_, claimed)] = train_falsely(bench, cheat.trainer(bench), cheat, STRETCH, touched=5, seed=3)
    [(_, honest)] = replay(bench, bench.trainer(bench.recipe), BASE, STRETCH)
    counters = [name for name in honest.state if name.endswith(".step")]
    assert counters
    assert all(bytes(claimed.state[name].data) == bytes(honest.state[name].data) for name in counters)


def test_the_base_stack_repeats_the_run_bit_for_bit_and_another_order_of_sums_does_not(bench: Bench) -> None:
    [(_, repeated)] = replay(bench, bench.trainer(bench.recipe), BASE, STRETCH)
    assert state_digest(repeated.state) == state_digest(bench.anchor(6))
    stack = stack_named("2 micro-batches")
    [(_, other)] = replay(bench, bench.trainer(recipe_on(stack, bench.recipe)), stack, STRETCH)
    assert state_digest(other.state) != state_digest(bench.anchor(6))
    drift = bench.drift(bench.anchor(4), repeated, other, (4, 6))
    assert drift.weights.overall < 1e-4


def test_every_kind_of_cheat_is_among_those_that_a_calibration_is_tried_on() -> None:
    assert {cheat.kind for cheat in CLAIMED} == KINDS.keys()
