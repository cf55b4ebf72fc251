"""Loops of somebody's own whose step is captured: recorded with their batches, and audited by replaying the graph."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.core.errors import UsageError
from tallystick.formats.records import StepRecord, read_record
from tallystick.formats.spec import Spec
from tallystick.formats.store.log import read_lines
from tallystick.formats.store.run import RunDirectory

torch = pytest.importorskip("torch")

Replayed = Callable[..., Any]


def loss_of(model: Any, batch: Any) -> Any:
    x, y = batch
    return (model(x) - y).square().mean()


def batches(count: int, rows: int = 8) -> list[Any]:
    generator = torch.Generator().manual_seed(5)
    drawn = [torch.randn(rows, 3, generator=generator) for _ in range(count)]
    return [(x, x.sum(1, keepdim=True)) for x in drawn]


def fit(
    out: Path, data: list[Any], *, clip: float | None = None, clips: float = 1.0, each: int = 1, **settings: Any
) -> None:
    """A plain loop with two parameter groups and a falling learning rate."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    decayed = [value for name, value in model.named_parameters() if "weight" in name]
    plain = [value for name, value in model.named_parameters() if "bias" in name]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0, "lr": 3e-3}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    example = data[0] if each == 1 else data[:each]
    recording = tallystick.record_training(
        out, model, optimizer, loss=loss_of, example=example, clip_norm=clip, accumulation=each, **settings
    )
    with recording as recorder:
        for start in range(0, len(data), each):
            optimizer.zero_grad()
            parts, losses = data[start : start + each], []
            for part in parts:
                loss = loss_of(model, part)
                (loss / each).backward()
                losses.append(loss.detach())
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip * clips) if clip else None
            optimizer.step()
            rates = [group["lr"] for group in optimizer.param_groups]
            given = parts[0] if each == 1 else parts
            recorder.step(torch.stack(losses).mean(), given, None if norm is None else float(norm), rates)
            for group in optimizer.param_groups:
                group["lr"] *= 0.9


@pytest.fixture
def replayed(one_thread: None) -> Replayed:
    """Audit a run on this machine, replaying its graph."""
    from tallystick.audits.policy import Policy
    from tallystick.audits.training import audit_training
    from tests.support.this_machine import verifier_stack

    def audit(path: Path, **policy: Any) -> Any:
        run, asked = RunDirectory(path), Policy.from_json({"full": True, **policy}, "policy")
        return audit_training(run, asked, bytes(32), verifier_stack(run, None, asked))

    return audit


@pytest.fixture(scope="module")
def recorded(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("loop") / "run"
    fit(out, batches(7), anchor_stride=3, summaries=["exact", "projection"])
    return out


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(recorded, tmp_path / "run"))


def steps_of(run: Path) -> list[StepRecord]:
    records = (read_record(line, "record") for line in read_lines(run / "transcript.jsonl"))
    return [record for record in records if isinstance(record, StepRecord)]


def test_a_recorded_loop_is_replayed_from_its_graph_bit_for_bit(recorded: Path, replayed: Replayed) -> None:
    report = replayed(recorded)
    assert (report.verdict.outcome, report.replayed_steps) == ("accepted", 7)
    assert report.replayed == f"graph {RunDirectory(recorded).spec().graph}"
    assert report.to_json()["replayed"] == report.replayed
    assert any("where the first state came from" in line for line in report.verdict.not_checked)
    assert any("the program that should have run is the graph" in line for line in report.verdict.assumptions)


def test_a_segment_of_a_loop_is_audited_alone_from_its_graph_and_its_batches(
    recorded: Path, tmp_path: Path, one_thread: None
) -> None:
    import tallystick

    tallystick.open_segment(recorded, 3, 6, tmp_path / "opened")
    assert len(list((tmp_path / "opened/batches").iterdir())) == 3
    result = tallystick.audit(tmp_path / "opened")
    assert (result.outcome, result.report.replayed_steps) == ("accepted", 3)  # type: ignore[union-attr]
    batch = next((tmp_path / "opened/batches").iterdir())
    batch.unlink()
    assert tallystick.audit(tmp_path / "opened").outcome == "inconclusive"


def test_the_spec_holds_the_rules_of_both_groups_and_the_records_both_learning_rates(recorded: Path) -> None:
    spec = RunDirectory(recorded).spec()
    assert spec.optimizer is not None
    assert [rule.weight_decay for rule in spec.optimizer] == [0.1, 0.0]
    first, second = steps_of(recorded)[:2]
    assert first.learning_rates == (1e-2, 3e-3)
    assert second.learning_rate == pytest.approx(9e-3)


@pytest.mark.parametrize("settings", [{"clip": 0.05}, {"each": 2}, {"each": 3, "clip": 0.1}])
def test_clipping_and_accumulation_are_replayed_too(
    settings: dict[str, Any], tmp_path: Path, replayed: Replayed
) -> None:
    fit(tmp_path / "run", batches(6), anchor_stride=2, summaries=["exact"], **settings)
    assert replayed(tmp_path / "run").verdict.outcome == "accepted"


def test_a_limit_of_clipping_that_is_not_the_stated_one_is_seen(
    tmp_path: Path, replayed: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorder that does not look at its own steps, as a prover may use one, is caught by the audit."""
    monkeypatch.setattr("tallystick.recording.loop.self_check.SelfCheck.difference", lambda *_: "")
    monkeypatch.setattr("tallystick.recording.loop.self_check.SelfAudit.replay", lambda *_: None)
    monkeypatch.setattr("tallystick.recording.loop.program_watch.clip_norm_of", lambda *_: 0.05)
    fit(tmp_path / "run", batches(4), anchor_stride=2, summaries=["exact"], clip=0.05, clips=2.0)
    report = replayed(tmp_path / "run")
    assert report.verdict.outcome == "rejected"
    assert {finding.name for finding in report.verdict.objections} >= {"state", "exact summary"}


def test_a_batch_that_was_exchanged_is_rejected(run: Path, replayed: Replayed) -> None:
    path = next((run / "batches").iterdir())
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    report = replayed(run)
    assert report.verdict.outcome == "rejected"
    assert [finding.name for finding in report.verdict.objections] == ["batch"]


def test_a_batch_that_was_not_handed_over_is_inconclusive(run: Path, replayed: Replayed) -> None:
    next((run / "batches").iterdir()).unlink()
    report = replayed(run)
    assert report.verdict.outcome == "inconclusive"
    assert any("batches" in line or ".safetensors" in line for line in report.verdict.unavailable)


def test_another_graph_than_the_spec_names_is_rejected(run: Path, replayed: Replayed) -> None:
    import dataclasses

    from tallystick.programs.encoding import graph_bytes
    from tallystick.programs.files import load_program

    graph, _ = load_program(run / "graphs" / "step.json")

    other = dataclasses.replace(graph, outputs=tuple(o for o in graph.outputs if not o.name.startswith("gradients.")))
    (run / "graphs" / "step.json").write_bytes(graph_bytes(other))
    report = replayed(run)
    assert report.verdict.outcome == "rejected"
    assert "step graph" in {finding.name for finding in report.verdict.objections}


def test_a_record_with_another_learning_rate_is_rejected(
    run: Path, replayed: Replayed, rewrite: Callable[..., None]
) -> None:
    def change(records: list[dict[str, Any]]) -> None:
        step = next(record for record in records if record["kind"] == "step")
        step["learning_rates"] = [0.02, 0.003]

    rewrite(run, change)
    report = replayed(run)
    assert report.verdict.outcome == "rejected"
    assert "state" in {finding.name for finding in report.verdict.objections}


def test_a_loop_that_cannot_be_captured_goes_on_without_a_graph(tmp_path: Path, unknown_draws: None) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (batch,) = batches(1)
    recording = tallystick.record_training(tmp_path / "run", model, optimizer, loss=loss_of, example=batch)
    reason = r"will be inconclusive: dropout draws random numbers \(layer 1\); set its probability to 0"
    with recording as recorder:
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        with pytest.warns(RuntimeWarning, match=reason):
            recorder.step(loss, batch)
    assert RunDirectory(tmp_path / "run").spec().graph is None
    assert not (tmp_path / "run/graphs").exists()


def test_a_loss_without_an_example_is_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(UsageError, match="`loss` and `example`"),
        tallystick.record_training(tmp_path / "run", model, optimizer, loss=loss_of),
    ):
        pass


def test_rules_of_an_optimizer_stand_beside_a_graph_and_nowhere_else(recorded: Path) -> None:
    from tallystick.core.errors import MalformedError

    held = RunDirectory(recorded).spec().to_json()
    assert isinstance(held, dict)
    assert Spec.from_json(held, "spec").graph is not None
    for missing in ("graph", "optimizer"):
        with pytest.raises(MalformedError, match="optimizer belongs to the step graph"):
            Spec.from_json({name: value for name, value in held.items() if name != missing}, "spec")


class Module(torch.nn.Module):
    """As a module of Lightning: its step calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(3, 1)

    def forward(self, x: Any) -> Any:
        return self.body(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": loss_of(self, batch)}


def test_a_loop_that_announces_its_batches_by_hooks_is_recorded_and_replayed(
    one_thread: None, tmp_path: Path, replayed: Replayed
) -> None:
    from tallystick import BatchHooks

    torch.manual_seed(1)
    module = Module()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    trainer = types.SimpleNamespace(optimizers=[optimizer], accumulate_grad_batches=1, gradient_clip_val=None)
    hooks = BatchHooks(tmp_path / "run", anchor_stride=2, summaries=["exact"])
    for number, batch in enumerate(batches(4)):
        hooks.on_train_batch_start(trainer, module, batch, number)
        optimizer.zero_grad()
        outputs = module.training_step(batch, number)
        outputs["loss"].backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.5
        hooks.on_train_batch_end(trainer, module, outputs, batch, number)
    hooks.on_train_end(trainer, module)
    assert [step.learning_rate for step in steps_of(tmp_path / "run")] == [0.1, 0.05, 0.025, 0.0125]
    assert replayed(tmp_path / "run").verdict.outcome == "accepted"


def test_hooks_say_at_once_what_blocks_a_replay_and_the_audit_repeats_it(
    one_thread: None, tmp_path: Path, replayed: Replayed
) -> None:
    from tallystick import BatchHooks

    module, (batch,) = Module(), batches(1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, fused=True)
    trainer = types.SimpleNamespace(optimizers=[optimizer])
    hooks = BatchHooks(tmp_path / "run")
    with pytest.warns(RuntimeWarning, match="SGD with fused=True cannot be replayed; set fused=False"):
        hooks.on_train_batch_start(trainer, module, batch, 0)
    outputs = module.training_step(batch, 0)
    outputs["loss"].backward()
    optimizer.step()
    hooks.on_train_batch_end(trainer, module, outputs, batch, 0)
    hooks.on_train_end(trainer, module)
    verdict = replayed(tmp_path / "run").verdict
    assert verdict.outcome == "inconclusive"
    assert any("SGD with fused=True cannot be replayed; set fused=False" in line for line in verdict.unavailable)


def test_hooks_without_a_loss_leave_the_training_alone(one_thread: None, tmp_path: Path) -> None:
    from tallystick.recording.loop.own_loop import BatchHooks

    module = Module()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    trainer = types.SimpleNamespace(optimizers=[optimizer, optimizer])
    hooks = BatchHooks(tmp_path / "run")
    with pytest.warns(
        RuntimeWarning, match="the training is not recorded and goes on: BatchHooks records one optimizer"
    ):
        hooks.on_train_batch_start(trainer, module, batches(1)[0], 0)
    hooks.on_train_batch_end(trainer, module, None, batches(1)[0], 0)
    hooks.on_train_end(trainer, module)
    assert not (tmp_path / "run").exists() or not (tmp_path / "run/claim.json").exists()
    with pytest.warns(RuntimeWarning, match="one BatchHooks records one training"):
        hooks.on_train_start(trainer, module)
