"""Which calls of a model are doubted: each is decided by itself, and honest ones in 16 bits are left alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tallystick.audits.opening import gather_whole  # noqa: E402
from tallystick.core.errors import UnavailableError, UsageError  # noqa: E402
from tallystick.core.safetensors import write_state  # noqa: E402
from tallystick.core.tensors import State, Tensor  # noqa: E402
from tallystick.disputes.evidence.calls import doubt_calls  # noqa: E402
from tallystick.disputes.evidence.locate import ChallengerWork  # noqa: E402
from tallystick.disputes.evidence.traces import torch_engine  # noqa: E402
from tallystick.disputes.game.protocols import Doubt  # noqa: E402
from tallystick.disputes.parties.prover import offer_of  # noqa: E402
from tallystick.formats.claims import call_file  # noqa: E402
from tallystick.formats.store.directories import InferenceDirectory  # noqa: E402
from tallystick.programs.execution import Engine  # noqa: E402
from tallystick.tally.attacks.provers import seal  # noqa: E402
from tests.support.attacks.disputes.answers import layers, record, with_outputs  # noqa: E402
from tests.support.attacks.disputes.noise import other_kernels  # noqa: E402
from tests.support.attacks.disputes.scene import CALL, Scene  # noqa: E402

Change = Callable[[np.ndarray], np.ndarray]
NOT_TAKEN: dict[str, Change] = {
    "another dtype": lambda tokens: tokens.astype(np.int32),
    "another shape": lambda tokens: tokens[:1],
    "a token out of range": lambda tokens: tokens + 1000,
}


def doubted(run: Path, engine: Engine | None = None) -> Doubt | None:
    return doubt_calls(gather_whole(InferenceDirectory(run)), engine or torch_engine(), ChallengerWork())


def with_inputs(run: Path, out: Path, change: Change, numbers: tuple[int, ...] = (CALL,)) -> Path:
    """A copy of recorded calls, of which some read other tokens."""
    shutil.copytree(run, out)
    calls = gather_whole(InferenceDirectory(run))
    for number in numbers:
        inputs = {
            name: Tensor.of(change(each.array())) for name, each in calls.inputs(calls.records[number - 1]).items()
        }
        write_state(out / call_file(number, "inputs"), inputs)
    seal(InferenceDirectory(out), calls)
    return out


@pytest.mark.parametrize("name", NOT_TAKEN)
def test_a_call_that_the_graph_does_not_take_is_doubted_alone(name: str, scene: Scene, tmp_path: Path) -> None:
    found = doubted(with_inputs(scene.calls, tmp_path / "calls", NOT_TAKEN[name]))
    assert found is not None
    assert (found.low, found.high) == (CALL - 1, CALL)


def test_other_tokens_that_the_graph_takes_are_doubted_for_their_outputs(scene: Scene, tmp_path: Path) -> None:
    found = doubted(with_inputs(scene.calls, tmp_path / "calls", lambda tokens: tokens[::-1].copy()))
    assert found is not None
    assert "tolerances" in found.reason
    assert doubted(with_inputs(scene.calls, tmp_path / "same", lambda tokens: tokens)) is None


def test_a_call_that_no_definition_takes_is_doubted_though_none_runs(scene: Scene, tmp_path: Path) -> None:
    found = doubted(with_inputs(scene.calls, tmp_path / "calls", lambda tokens: tokens + 1000, (1, 2, 3)))
    assert found is not None
    assert found.low == 0


class Refusing:
    """An engine without a kernel for one operator, for the calls of which `refuses` says so."""

    name = "refusing"

    def __init__(self, refuses: Callable[[int], bool]) -> None:
        self._engine, self._refuses, self._calls = torch_engine(), refuses, 0
        self.load, self.unload = self._engine.load, self._engine.unload

    def prepare(self, node):  # type: ignore[no-untyped-def]
        self._calls += node.number == 0
        if node.number == 0 and self._refuses(self._calls):
            return self._refuse
        return self._engine.prepare(node)

    def _refuse(self, _: object) -> tuple[object, ...]:
        raise UnavailableError("no kernel here")


def test_nothing_is_said_where_no_call_runs_here(scene: Scene) -> None:
    with pytest.raises(UnavailableError, match="no kernel here"):
        doubted(scene.calls, Refusing(lambda _: True))


def test_a_call_is_doubted_that_does_not_run_where_others_do(scene: Scene) -> None:
    found = doubted(scene.calls, Refusing(lambda call: call == CALL))
    assert found is not None
    assert found.low == CALL - 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["F16", "BF16"])
def test_honest_calls_in_16_bits_are_not_doubted_on_other_kernels(dtype: torch.dtype, tmp_path: Path) -> None:
    record(layers(48).to(dtype), tmp_path / "calls")
    assert doubted(tmp_path / "calls", other_kernels(3)) is None

    def zeros(state: State) -> State:
        return {name: Tensor(each.dtype, each.shape, bytes(len(bytes(each.data)))) for name, each in state.items()}

    calls = gather_whole(InferenceDirectory(tmp_path / "calls"))
    silent = with_outputs(
        tmp_path / "calls", tmp_path / "silent", {CALL: zeros(calls.outputs(calls.records[CALL - 1]))}
    )
    found = doubted(silent.statement, other_kernels(3))
    assert found is not None
    assert found.low == CALL - 1


@pytest.mark.parametrize("name", ["another dtype", "another shape"])
def test_calls_that_could_not_be_defended_are_not_offered(name: str, scene: Scene, tmp_path: Path) -> None:
    run = with_inputs(scene.calls, tmp_path / "calls", NOT_TAKEN[name])
    assert offer_of(scene.calls).size == 3
    with pytest.raises(UsageError, match=f"call {CALL} cannot be disputed: .*record calls of each shape"):
        offer_of(run)
