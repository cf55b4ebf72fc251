"""A loop of somebody's own, recorded with three changed lines, and what an audit can say about it."""

from __future__ import annotations

import random
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.core.errors import UsageError
from tallystick.formats.records import AnchorRecord, FailedRecord, StepRecord, read_record
from tallystick.formats.store.log import read_lines
from tallystick.formats.store.run import RunDirectory

torch = pytest.importorskip("torch")

EXAMPLE = Path(tallystick.__file__).parent / "examples" / "own_loop.py"


def fit(
    out: Path,
    steps: int = 7,
    crash_at: int | None = None,
    drops: float = 0.0,
    error: type[BaseException] = FloatingPointError,
    **settings: Any,
) -> None:
    torch.manual_seed(0)
    x = torch.linspace(-3, 3, 64)[:, None]
    layers = (torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Dropout(drops), torch.nn.Linear(8, 1))
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with tallystick.record_training(out, model, optimizer, **settings) as recorder:
        for step in range(1, steps + 1):
            if step == crash_at:
                raise error("the loop fell over")
            rows = torch.randint(0, 64, (8,))
            loss = (model(x[rows]) - torch.sin(x[rows])).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch=(x[rows], torch.sin(x[rows])))


@pytest.fixture
def recorded(one_thread: None, tmp_path: Path) -> Path:
    fit(tmp_path / "run", anchor_stride=3, description={"purpose": "a sine"})
    return tmp_path / "run"


def records_of(run: Path) -> list[Any]:
    return [read_record(line, "record") for line in read_lines(run / "transcript.jsonl")]


def test_every_step_and_anchor_of_the_loop_is_recorded(recorded: Path) -> None:
    records = records_of(recorded)
    assert [r.index for r in records if isinstance(r, StepRecord)] == [1, 2, 3, 4, 5, 6, 7]
    assert [r.index for r in records if isinstance(r, AnchorRecord)] == [0, 3, 6, 7]
    assert all(r.batch.digest is not None for r in records if isinstance(r, StepRecord))
    assert RunDirectory(recorded).spec().description == {"model": "Sequential", "purpose": "a sine"}


def test_an_audit_replays_the_loop_from_what_its_first_step_showed(recorded: Path) -> None:
    result = tallystick.audit(recorded, tallystick.Policy(full=True))
    assert result.outcome == "accepted"
    assert result.report.replayed_steps == 7


def test_the_example_is_accepted_as_it_stands(one_thread: None, tmp_path: Path) -> None:
    runpy.run_path(str(EXAMPLE))["main"](str(tmp_path / "run"))
    result = tallystick.audit(tmp_path / "run", tallystick.Policy(full=True))
    assert (result.outcome, result.report.replayed_steps) == ("accepted", 100)


@pytest.fixture
def dropped(one_thread: None, unknown_draws: None, tmp_path: Path) -> Path:
    with pytest.warns(RuntimeWarning, match=r"will be inconclusive: dropout draws random numbers \(layer 2\)"):
        fit(tmp_path / "dropped", anchor_stride=3, drops=0.5)
    return tmp_path / "dropped"


def test_the_anchors_of_a_loop_that_draws_hold_every_generator_in_use(dropped: Path) -> None:
    from tallystick.core.safetensors import read_state

    for anchor in (dropped / "anchors").iterdir():
        names = read_state(anchor, canonical=True).keys()
        assert {"rng.torch_cpu", "rng.python", "rng.numpy", "position.step"} <= names


def test_an_audit_of_a_loop_that_cannot_be_replayed_repeats_the_reason(
    dropped: Path, audited: Callable[..., Any]
) -> None:
    report = audited(dropped)
    assert report.verdict.outcome == "inconclusive"
    (line,) = (line for line in report.verdict.unavailable if "no step was replayed" in line)
    assert line.endswith(": the recorder captured no step graph, " + RunDirectory(dropped).claim().no_graph)
    assert "set its probability to 0" in line
    assert report.replayed_steps == 0
    assert report.verdict.objections == ()
    assert set(report.detection().values()) == {0.0}


def test_tampering_with_a_record_of_it_is_rejected(recorded: Path, audited: Callable[..., Any]) -> None:
    path = recorded / "transcript.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"learning_rate":0.01', b'"learning_rate":0.02', 1))
    assert audited(recorded).verdict.outcome == "rejected"


def test_tampering_with_an_anchor_of_it_is_rejected(recorded: Path, audited: Callable[..., Any]) -> None:
    path = recorded / "anchors/step_00000003.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    assert audited(recorded).verdict.outcome == "rejected"


def test_a_crash_in_the_loop_is_a_failed_record_and_travels_on(one_thread: None, tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError):
        fit(tmp_path / "run", crash_at=3)
    assert records_of(tmp_path / "run")[-1] == FailedRecord(index=3, error="FloatingPointError: the loop fell over")
    assert not (tmp_path / "run/claim.json").exists()


def test_the_recording_does_not_change_the_loop(one_thread: None, tmp_path: Path) -> None:
    fit(tmp_path / "a", summaries=["exact", "projection", "bucket"])
    fit(tmp_path / "b", summaries=[], anchor_stride=1000)
    assert RunDirectory(tmp_path / "a").claim().final_state == RunDirectory(tmp_path / "b").claim().final_state


def test_a_loop_without_a_step_is_told_so_and_goes_on(one_thread: None, tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="no step was recorded: call `recorder.step"):
        fit(tmp_path / "run", steps=0)
    assert not (tmp_path / "run/claim.json").exists()


def test_an_unknown_setting_is_refused(one_thread: None, tmp_path: Path) -> None:
    from tallystick.core.errors import TallyError

    with pytest.raises(TallyError, match="anchor_strife"):
        fit(tmp_path / "run", anchor_strife=3)


@pytest.mark.parametrize("ended_by", [FloatingPointError, KeyboardInterrupt])
def test_a_recording_that_ended_before_its_first_step_begins_again_in_the_same_folder(
    one_thread: None, tmp_path: Path, ended_by: type[BaseException]
) -> None:
    for _ in range(2):
        with pytest.raises(ended_by):
            fit(tmp_path / "run", crash_at=1, error=ended_by)
        assert {"spec.json", "transcript.jsonl", "anchors"} <= {each.name for each in (tmp_path / "run").iterdir()}
    fit(tmp_path / "run", steps=3)
    assert tallystick.audit(tmp_path / "run").outcome == "accepted"


def test_a_directory_that_is_not_empty_is_refused(recorded: Path) -> None:
    with pytest.raises(UsageError, match=r"not empty; choose another directory \(a finished run is in it\)"):
        fit(recorded)


def test_recorded_steps_are_kept_and_the_refusal_says_what_is_there(one_thread: None, tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError):
        fit(tmp_path / "run", crash_at=2)
    before = records_of(tmp_path / "run")
    with pytest.raises(UsageError, match="an interrupted recording is in it, and a loop cannot be resumed"):
        fit(tmp_path / "run")
    assert records_of(tmp_path / "run") == before


def test_batches_are_named_by_positions_or_by_the_digest_of_their_tensors() -> None:
    from tallystick.recording.loop.step_graph import describe_batch

    tensor, other = torch.arange(4.0), torch.arange(4)
    assert describe_batch([3, 1, 2]).indices == (3, 1, 2)
    assert describe_batch(tensor) == describe_batch((tensor,)) != describe_batch((tensor, other))
    assert describe_batch({"a": tensor, "b": other}) == describe_batch({"b": other, "a": tensor})
    assert describe_batch(tensor).digest != describe_batch(tensor.double()).digest


def test_the_python_generator_is_left_alone(one_thread: None, tmp_path: Path) -> None:
    random.seed(3)
    expected = random.random()
    random.seed(3)
    fit(tmp_path / "run")
    assert random.random() == expected
