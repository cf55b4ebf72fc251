"""What an audit tells its reader to do: each is done, and the line is gone or the run is accepted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.errors import UsageError
from tallystick.store.run import RunDirectory
from tallystick.tensors.safetensors import write_state
from tallystick.tensors.tensor import Tensor
from tests.audits import test_first_state as first_states
from tests.recorders import honest, test_every_loop as loops
from tests.recorders.honest import Loop
from tests.recorders.test_remedies import said_by

torch = pytest.importorskip("torch")
FULL = tallystick.Policy(full=True)


@pytest.fixture(scope="module")
def plain(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plain") / "run"
    Loop(settings={"anchor_stride": 4}).train(out)
    return out


def audited(run: Path, initial: Path | None = None, **policy: Any) -> Any:
    return tallystick.audit(run, tallystick.Policy(**policy) if policy else FULL, initial=initial)


def with_a_last_branch(step: int, model: Any, batch: Any) -> Any:
    """Another loss in the last step."""
    loss = honest.squares(step, model, batch)
    return loss * 2 if step == honest.STEPS - 1 else loss


@pytest.mark.parametrize(
    "remedy", ["tell the recorder what the loop does there and record it again", "or end the run before these steps"]
)
def test_what_mends_an_end_that_nobody_can_replay(one_thread: None, tmp_path: Path, remedy: str) -> None:
    loop = Loop(loss=with_a_last_branch, settings={"self_audit": float("inf")})
    said_by(loop, tmp_path / "broken")
    result = audited(tmp_path / "broken")
    assert result.outcome == "inconclusive"
    assert any(remedy in line for line in result.verdict.unavailable), result.text()
    if remedy.endswith("record it again"):
        said = said_by(Loop(loss=times_a_tensor, batches=with_a_last_factor), tmp_path / "mended")
    else:
        said = said_by(Loop(batches=lambda: honest.rows()[:-1]), tmp_path / "mended")
    assert said == []
    assert audited(tmp_path / "mended").accepted


def times_a_tensor(_step: int, model: Any, batch: Any) -> Any:
    return honest.squares(0, model, batch) * batch[2]


def with_a_last_factor() -> Any:
    last = honest.STEPS - 1
    return [(*batch, torch.tensor(2.0 if step == last else 1.0)) for step, batch in enumerate(honest.rows())]


def test_the_window_that_an_audit_names_reaches_the_steps(plain: Path) -> None:
    short = audited(plain, samples=9, window=1)
    assert short.outcome == "inconclusive"
    lines = [line for line in short.verdict.unavailable if "reach" in line]
    assert len(lines) >= 1, short.text()
    named = max(int(found) for line in lines for found in re.findall(r"--window (\d+) reaches them", line))
    assert audited(plain, samples=9, window=named).accepted


def test_what_mends_weights_of_another_directory(one_thread: None, tmp_path: Path) -> None:
    right, wrong = (tmp_path / name for name in ("right", "wrong"))
    model = first_states.network()
    write_state(directory(right) / "model.safetensors", weights_of(model))
    other = {name: Tensor.of(value.array() + 1) for name, value in weights_of(model).items()}
    write_state(directory(wrong) / "model.safetensors", other)
    run = first_states.fit(tmp_path / "run", model, torch.optim.AdamW(model.parameters(), lr=1e-2), right)
    result = audited(run, wrong)
    assert result.outcome == "inconclusive"
    assert "give the directory that the run began with" in result.text()
    open_line = next(line for line in audited(run).verdict.not_checked if "give their directory with --initial" in line)
    assert audited(run, right).accepted
    assert open_line not in audited(run, right).verdict.not_checked


def directory(path: Path) -> Path:
    path.mkdir()
    return path


def weights_of(model: Any) -> dict[str, Tensor]:
    return {name: Tensor.of(value.detach().numpy().copy()) for name, value in model.state_dict().items()}


def test_the_run_that_ended_with_a_memory_mends_it(one_thread: None, tmp_path: Path) -> None:
    model = first_states.network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first_states.fit(tmp_path / "first", model, optimizer, None)
    write_state(directory(tmp_path / "weights") / "model.safetensors", weights_of(model))
    first_states.fit(tmp_path / "second", model, optimizer, tmp_path / "weights")
    result = audited(tmp_path / "second", tmp_path / "weights")
    assert result.outcome == "inconclusive"
    assert "give the run that ended with them as --initial" in result.text()
    assert audited(tmp_path / "second", tmp_path / "first").accepted


def test_a_model_without_its_idle_copy_is_accepted(one_thread: None, tmp_path: Path) -> None:
    write_state(directory(tmp_path / "origin") / "model.safetensors", weights_of(first_states.network()))
    model = first_states.Copied()
    with torch.no_grad():
        for parameter in model.trainee.parameters():
            parameter += 0.5
    optimizer = torch.optim.AdamW(model.trainee.parameters(), lr=1e-2)
    run = first_states.fit(tmp_path / "broken", model, optimizer, tmp_path / "origin")
    assert "leave idle copies out of the model" in audited(run, tmp_path / "origin").text()
    alone = first_states.network()
    mended = torch.optim.AdamW(alone.parameters(), lr=1e-2)
    run = first_states.fit(tmp_path / "mended", alone, mended, tmp_path / "origin")
    assert audited(run, tmp_path / "origin").accepted


def test_a_claim_that_is_given_is_no_open_question(plain: Path) -> None:
    asked = "give its digest with --claim"
    assert any(asked in line for line in audited(plain).verdict.not_checked)
    known = audited(plain, full=True, claim=RunDirectory(plain).claim().identity)
    assert known.accepted
    assert not any(asked in line for line in known.verdict.not_checked)
    assert not audited(plain, full=True, claim="sha256:" + "0" * 64).accepted


def test_a_tolerance_is_asked_in_the_mode_that_has_one() -> None:
    with pytest.raises(UsageError, match="ask for the mode tolerant"):
        tallystick.Policy(tolerance="bucket")
    assert tallystick.Policy(tolerance="bucket", mode="tolerant").tolerance == "bucket"


def test_two_of_the_anchors_that_are_named_make_a_segment(plain: Path) -> None:
    with pytest.raises(UsageError, match="two anchors in ascending order are needed") as refused:
        tallystick.verify_segment(plain, 1, 3)
    marks = [int(mark) for mark in re.findall(r"\(([\d, ]+) …\)", str(refused.value))[0].split(", ")]
    assert tallystick.verify_segment(plain, *marks[:2]).accepted


def test_what_the_line_of_a_stack_says_mends_it(one_thread: None, plain: Path) -> None:
    """A setting of PyTorch that differs from that of the run."""
    torch.set_float32_matmul_precision("medium")
    try:
        result = audited(plain)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert result.outcome == "inconclusive"
    assert "bit for bit needs the stack that was claimed" in result.text()
    assert audited(plain).accepted


def test_a_thawed_layer_is_accepted_after_its_approval(one_thread: None, tmp_path: Path) -> None:
    said_by(loops.LOOPS["a layer thawed later"][1], tmp_path / "run")
    result = audited(tmp_path / "run")
    root = re.search(r"approve it with --graph (sha256:[0-9a-f]{64})", result.text().replace("\n", " "))
    assert root is not None, result.text()
    assert audited(tmp_path / "run", full=True, graphs=(root[1],)).accepted
