"""A prover whose replay has other bits than its records keeps its bond, whatever a wrong challenger does.

Real stacks are compared by `research/dispute_stacks.py`; here the last bits are moved in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tallystick.disputes.evidence.doubting import doubter_for  # noqa: E402
from tallystick.disputes.evidence.judging import DisputeJudge  # noqa: E402
from tallystick.disputes.evidence.traces import RecordTrace, torch_engine  # noqa: E402
from tallystick.disputes.game.protocols import Doubt  # noqa: E402
from tallystick.tally.attacks.provers import forge_swapped_layer, swapped_layer_trace  # noqa: E402
from tallystick.verdicts.verdict import Fault  # noqa: E402
from tests.support.attacks.disputes.noise import other_kernels  # noqa: E402
from tests.support.attacks.disputes.scene import WEIGHT, Scene  # noqa: E402
from tests.support.attacks.disputes.stubborn import StubbornDoubter  # noqa: E402
from tests.support.attacks.disputes.values import contested_call, contested_step  # noqa: E402
from tests.support.rehearsal import Rehearsal  # noqa: E402

PROTESTS = (None, None, None, 0, 1)
Contested = tuple[Path, RecordTrace, Doubt]


@pytest.fixture(scope="module", params=["step", "call"])
def contested(request: pytest.FixtureRequest, scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Contested:
    work = tmp_path_factory.mktemp("work")
    if request.param == "call":
        return scene.calls, scene.call_trace(work, other_kernels(7)), contested_call()
    return scene.run, scene.training_trace(work, other_kernels(7)), contested_step(scene)


def test_the_replay_has_other_bits(contested: Contested, scene: Scene, tmp_path: Path) -> None:
    statement, trace, doubt = contested
    make = scene.call_trace if statement == scene.calls else scene.training_trace
    found, base = trace.operators(doubt.low), make(tmp_path).operators(doubt.low)
    assert found is not None
    assert base is not None
    assert found.root != base.root


@pytest.mark.parametrize("seed", range(len(PROTESTS)))
def test_no_path_of_choices_convicts_an_honest_prover(seed: int, contested: Contested, board: Path) -> None:
    statement, trace, doubt = contested
    outcome = Rehearsal(statement, board).play(trace, StubbornDoubter(seed, PROTESTS[seed]), DisputeJudge(), doubt)
    assert outcome is not None
    assert outcome.fault in (Fault.CHALLENGER, Fault.NOBODY, None), outcome.reason
    fault, reason = DisputeJudge(torch_engine()).rule(outcome.answered)
    assert fault in (Fault.CHALLENGER, Fault.NOBODY, None), reason


def test_honest_calls_are_not_doubted_on_other_kernels_and_a_swapped_layer_is(scene: Scene, tmp_path: Path) -> None:
    play: Callable[[Path], Rehearsal] = lambda path: Rehearsal(path, tmp_path / f"board-{path.name}")  # noqa: E731
    doubter = doubter_for(other_kernels(3))
    assert play(scene.calls).play(scene.call_trace(tmp_path / "work"), doubter, DisputeJudge()) is None
    forge_swapped_layer(scene.calls, tmp_path / "forged", WEIGHT)
    trace = swapped_layer_trace(tmp_path / "forged", tmp_path / "forger", WEIGHT)
    outcome = play(tmp_path / "forged").play(trace, doubter, DisputeJudge())
    assert outcome is not None
    assert outcome.fault is Fault.PROVER
    assert "aten.linear.default" in outcome.reason
