"""The verifier's trainer repeats an honest run, and gives up cleanly on a spec that does not run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.safetensors import read_state
from tallystick.core.tensor_digests import state_digest
from tallystick.engines.torch.training.verifier_stack import TorchReplayer
from tallystick.formats.data.samples import Dataset
from tallystick.formats.data.step_program import batch_plan, open_data
from tallystick.formats.records import StepRecord, anchor_file, read_record
from tallystick.formats.spec import Spec
from tallystick.formats.store.log import read_lines
from tallystick.formats.store.run import RunDirectory

Build = Callable[..., Any]


@pytest.fixture
def spec(honest: Path) -> Spec:
    return RunDirectory(honest).spec()


@pytest.fixture
def dataset(honest: Path, spec: Spec) -> Dataset:
    return open_data(spec, RunDirectory(honest).data_path)


def steps_of(honest: Path) -> list[StepRecord]:
    records = [read_record(line, "record") for line in read_lines(RunDirectory(honest).transcript_path)]
    return [record for record in records if isinstance(record, StepRecord)]


def with_model(spec: Spec, **changes: Any) -> Spec:
    """The spec of another model over the same data, as a hostile prover would write it."""
    table: Any = spec.to_json()
    table["recipe"]["model"] |= {"config": table["recipe"]["model"]["config"] | changes}
    return Spec.from_json(table, "spec")


def test_the_initial_state_is_anchor_0(honest: Path, spec: Spec, dataset: Dataset) -> None:
    replayer = TorchReplayer(spec, dataset, batch_plan(spec, dataset))
    initial = replayer.initial_state()
    wanted = state_digest(read_state(honest / anchor_file(0)))
    assert state_digest(initial) == wanted
    replayer.step(1)
    assert state_digest(replayer.initial_state()) == wanted


def test_a_segment_between_two_anchors_is_repeated(honest: Path, spec: Spec, dataset: Dataset) -> None:
    replayer = TorchReplayer(spec, dataset, batch_plan(spec, dataset), "cpu")
    replayer.restore(read_state(honest / anchor_file(4)))
    for record in steps_of(honest)[4:8]:
        replayed = replayer.step(record.index)
        assert replayed.summary == record.post
        assert round(replayed.loss, 4) == record.loss
        assert replayed.activation is not None
    assert state_digest(replayer.state()) == state_digest(read_state(honest / anchor_file(8)))


def test_a_state_of_another_spec_is_refused(honest: Path, spec: Spec, dataset: Dataset) -> None:
    other = with_model(spec, num_hidden_layers=1)
    replayer = TorchReplayer(other, dataset, batch_plan(other, dataset), "cpu")
    with pytest.raises(MalformedError, match="unknown"):
        replayer.restore(read_state(honest / anchor_file(4)))
    replayer.restore(replayer.initial_state())


@pytest.mark.parametrize(
    "changes",
    [{"attention_dropout": 7.0}, {"attention_dropout": -1.0}, {"num_key_value_heads": 3, "num_attention_heads": 2}],
)
def test_a_model_that_builds_and_does_not_run_is_unavailable(
    spec: Spec, dataset: Dataset, changes: dict[str, Any]
) -> None:
    hostile = with_model(spec, **changes)
    replayer = TorchReplayer(hostile, dataset, batch_plan(hostile, dataset), "cpu")
    with pytest.raises(UnavailableError, match=r"step 1 does not run here: \w+"):
        replayer.step(1)
    TorchReplayer(spec, dataset, batch_plan(spec, dataset), "cpu").step(1)


def test_a_model_over_the_verifiers_limit_is_unavailable(spec: Spec, dataset: Dataset) -> None:
    with pytest.raises(UnavailableError, match="more than the 1000 allowed"):
        TorchReplayer(spec, dataset, batch_plan(spec, dataset), "cpu", parameters_max=1000)
