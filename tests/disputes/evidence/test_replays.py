"""A replay decides about a state also where no limits are calibrated: by bits at home, by drift elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tallystick.audits.limits import shipped_calibration  # noqa: E402
from tallystick.audits.opening import graph_replayer, replay_to  # noqa: E402
from tallystick.core.tensors import State, Tensor  # noqa: E402
from tallystick.disputes.evidence import replays  # noqa: E402
from tallystick.disputes.evidence.replays import Replays, objection  # noqa: E402
from tallystick.disputes.evidence.training import (  # noqa: E402
    TrainingStatement,
    limits_of,
)
from tallystick.formats.store.run import RunDirectory  # noqa: E402
from tests.support.attacks.disputes.scene import STEP, Scene  # noqa: E402

ADAM = ("language", "adamw", "fp32")


@pytest.fixture
def held(scene: Scene) -> TrainingStatement:
    """A training of a kind that nothing was calibrated for."""
    uncalibrated = shipped_calibration().model_copy(update={"entries": ()})
    return TrainingStatement(RunDirectory(scene.run), calibration=uncalibrated)


@pytest.fixture
def opened(scene: Scene) -> State:
    """The state before the disputed step."""
    replayer = graph_replayer(scene.evidence)
    replay_to(scene.evidence, replayer, STEP - 1)
    return {name: tensor.copy() for name, tensor in replayer.state().items() if not name.startswith("rng.")}


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, scene: Scene) -> None:
    other = scene.evidence.environment.model_copy(update={"torch": "another"})
    monkeypatch.setattr(replays, "environment_here", lambda _: other)


def times(opened: State, factor: float, ending: str) -> State:
    moved = {n: Tensor.of(t.array() * np.float32(factor)) for n, t in opened.items() if n.endswith(ending)}
    assert moved
    return {**opened, **moved}


def said(held: TrainingStatement, opened: State) -> str:
    return objection(Replays(held).check_before(opened, STEP))


def test_at_home_every_bit_counts(held: TrainingStatement, opened: State) -> None:
    assert said(held, opened) == ""
    assert "state" in said(held, times(opened, 1 + 2.0**-20, ".exp_avg"))


@pytest.mark.usefixtures("elsewhere")
def test_elsewhere_a_state_may_drift_and_no_more(held: TrainingStatement, opened: State) -> None:
    assert said(held, times(opened, 1 + 2.0**-20, ".exp_avg")) == ""
    assert "state drift" in said(held, times(opened, 1.5, ".exp_avg"))


def test_an_anchor_is_that_of_a_replay_at_home(held: TrainingStatement) -> None:
    assert objection(Replays(held).check_anchor(3)) == ""


def test_limits_are_stretched_to_twice_the_longest_window() -> None:
    table = shipped_calibration()
    longest, near = (limits_of(table, ADAM, 0, steps) for steps in (32, 64))
    assert longest is not None
    assert near is not None
    assert near.memory.overall == pytest.approx(8 * longest.memory.overall)
    assert near.window == 64
    assert limits_of(table, ADAM, 0, 65) is None
    assert limits_of(table, ("language", "adamw", "fp8"), 0, 1) is None
