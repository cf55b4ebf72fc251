"""Whatever an honest loop does, its training goes on, and its audit accepts it or says why it cannot judge."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.core.errors import UnavailableError
from tallystick.formats.records import StepRecord, read_record
from tallystick.formats.store.log import read_lines
from tallystick.formats.store.run import RunDirectory, RunLock
from tallystick.recording.run_recorder import RunRecorder
from tests.recording import loops

torch = pytest.importorskip("torch")

Audit = Callable[[Path], Any]


@pytest.fixture
def audit(one_thread: None) -> Audit:
    from tallystick.audits.policy import Policy
    from tallystick.audits.training import audit_training
    from tests.support.this_machine import verifier_stack

    def judged(path: Path) -> Any:
        run, asked = RunDirectory(path), Policy(full=True)
        return audit_training(run, asked, bytes(32), verifier_stack(run, None, asked)).verdict

    return judged


@pytest.fixture(scope="class")
def one_process() -> Iterator[None]:
    """A group of one process over gloo, as DDP and FSDP ask for."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def steps_of(run: Path) -> list[StepRecord]:
    records = (read_record(line, "record") for line in read_lines(run / "transcript.jsonl"))
    return [record for record in records if isinstance(record, StepRecord)]


def said(out: Path, **loop: Any) -> list[str]:
    """The lines that a recorder warns with while a loop takes all its steps."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert loops.fit(out, **loop) == loops.STEPS
    return [str(each.message) for each in caught if each.category is RuntimeWarning]


@pytest.mark.parametrize(
    "loop",
    [
        {},
        {"scheduled": True},
        {"clips": 0.05, "clip_norm": 0.05},
        {"clips": 0.05},
        {"clips": 1e6},
        {"clips": 0.1, "clip_norm": 0.05},
        {"clip_norm": 0.05},
        {"autocast": True},
        {"autocast": True, "loss_outside": True},
    ],
    ids=str,
)
def test_a_loop_that_the_graph_gives_is_accepted(tmp_path: Path, audit: Audit, loop: dict[str, Any]) -> None:
    assert said(tmp_path / "run", **loop) == []
    assert loops.claim_of(tmp_path / "run").no_graph is None
    assert audit(tmp_path / "run").outcome == "accepted"


def test_a_warning_ends_no_loop_where_warnings_are_errors(
    tmp_path: Path, audit: Audit, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loops.fit(tmp_path / "run", change=loops.averages) == loops.STEPS
    assert "RuntimeWarning: step 2 cannot be replayed, nor any other of its kind: w" in capsys.readouterr().err
    assert audit(tmp_path / "run").outcome == "inconclusive"


def test_the_rate_of_a_step_is_the_one_it_was_taken_with(tmp_path: Path) -> None:
    loops.fit(tmp_path / "run", scheduled=True)
    assert [step.learning_rate for step in steps_of(tmp_path / "run")[:3]] == [1e-2, 5e-3, 2.5e-3]


def test_rates_that_a_loop_gives_after_its_schedule_moved_are_not_those_of_the_step(
    tmp_path: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.recording.loop.self_check.SelfCheck.is_due", lambda _, index: index == 1)
    model, optimizer = loops.network()
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [4], 0.1)
    with tallystick.record_training(tmp_path / "run", model, optimizer, anchor_stride=3) as recorder:
        for batch in loops.batches():
            optimizer.zero_grad()
            loss = loops.loss_of(model, batch)
            loss.backward()
            optimizer.step()
            schedule.step()
            recorder.step(loss, batch, learning_rates=schedule.get_last_lr())
    assert [step.learning_rate for step in steps_of(tmp_path / "run")] == pytest.approx([1e-2] * 4 + [1e-3] * 4)
    assert audit(tmp_path / "run").outcome == "accepted"


@pytest.mark.parametrize("after", [True, False])
def test_a_rate_that_moves_inside_the_step_is_inconclusive_with_the_reason(
    tmp_path: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """A schedule in a hook of the optimizer, before or after the recorder's own."""
    monkeypatch.setattr("tallystick.recording.loop.self_check.SelfCheck.is_due", lambda _, index: index == 1)
    model, optimizer = loops.network()
    monkeypatch.setattr(loops, "network", lambda: (model, optimizer))
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [4], 0.1)

    def moves(*_: Any) -> None:
        schedule.step()

    def hooks(step: int, _model: Any, optimizer: Any) -> None:
        if step == 1 and not after:
            optimizer.register_step_pre_hook(moves)

    if after:
        optimizer.register_step_post_hook(moves)
    lines = said(tmp_path / "run", change=hooks)
    assert any("changes the learning rate inside `optimizer.step()`" in line for line in lines)
    verdict = audit(tmp_path / "run")
    assert (verdict.outcome, verdict.objections) == ("inconclusive", ())


def test_steps_that_depart_from_their_graph_are_open_and_the_others_judged(tmp_path: Path, audit: Audit) -> None:
    (line,) = said(tmp_path / "run", change=loops.averages)
    reason = "weights.0.weight was changed outside of `optimizer.step()`; do that in every step, in place"
    assert line.startswith(f"step 2 cannot be replayed, nor any other of its kind: {reason}")
    verdict = audit(tmp_path / "run")
    assert (verdict.outcome, verdict.objections, verdict.coverage.done) == ("inconclusive", (), 1)
    assert verdict.unavailable[0].startswith(f"steps 2–3 cannot be replayed: step 2 has no step graph: {reason}")


def test_one_record_for_each_micro_batch_is_inconclusive_with_the_reason(tmp_path: Path, audit: Audit) -> None:
    model, optimizer = loops.network()
    data = loops.batches()

    def every_micro_batch() -> None:
        captured = {"loss": loops.loss_of, "example": data[0]}
        with tallystick.record_training(tmp_path / "run", model, optimizer, **captured) as recorder:
            for step, batch in enumerate(data):
                loss = loops.loss_of(model, batch)
                (loss / 2).backward()
                if step % 2:
                    optimizer.step()
                    optimizer.zero_grad()
                recorder.step(loss, batch)

    with pytest.warns(RuntimeWarning, match="stepped 0 times since the last record.*`accumulation=`"):
        every_micro_batch()
    assert audit(tmp_path / "run").outcome == "inconclusive"


def test_a_compiled_loop_is_inconclusive_with_the_reason(tmp_path: Path, audit: Audit) -> None:
    """Stands for compiled kernels: gradients that lie one rounding beside those of the graph."""

    def rounds_otherwise(model: Any) -> Any:
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient * (1 + 2**-20))
        return model

    (line,) = said(tmp_path / "run", wrap=rounds_otherwise)
    assert "the loop's kernels round otherwise" in line
    assert audit(tmp_path / "run").outcome == "inconclusive"


def test_autocast_inside_the_loss_is_captured(tmp_path: Path, audit: Audit) -> None:
    def loss_of(model: Any, batch: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loops.loss_of(model, batch)

    model, optimizer = loops.network()
    data = loops.batches(3)
    with tallystick.record_training(tmp_path / "run", model, optimizer, loss=loss_of, example=data[0]) as recorder:
        for batch in data:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch)
    assert audit(tmp_path / "run").outcome == "accepted"


def test_any_error_of_a_capture_is_a_reason_and_the_steps_are_recorded(
    tmp_path: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def falls(*_: object, **__: object) -> None:
        raise AssertionError("fake tensors mixed with real ones")

    monkeypatch.setattr("tallystick.recording.loop.step_graph.LoopStep.capture", falls)
    (line,) = said(tmp_path / "run")
    assert line.startswith("the audit of this run will be inconclusive: AssertionError: fake tensors mixed")
    verdict = audit(tmp_path / "run")
    assert (verdict.outcome, verdict.objections) == ("inconclusive", ())
    assert len(steps_of(tmp_path / "run")) == loops.STEPS


@pytest.mark.usefixtures("one_process")
class TestAmongProcesses:
    @pytest.mark.parametrize("outer", [False, True])
    def test_ddp_is_judged_whether_its_outer_or_its_inner_module_is_recorded(
        self, tmp_path: Path, audit: Audit, outer: bool
    ) -> None:
        def records(model: Any, wrapped: Any) -> Any:
            return wrapped if outer else model

        ddp = torch.nn.parallel.DistributedDataParallel
        lines = said(tmp_path / "run", wrap=ddp, records=records, graph=not outer)  # once by the first step alone
        verdict = audit(tmp_path / "run")
        assert (verdict.outcome, lines) == ("accepted", [])

    @pytest.mark.parametrize("graph", [False, True])
    def test_a_sharded_model_trains_unharmed_and_unrecorded(self, tmp_path: Path, graph: bool) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        data = loops.batches(3)
        model, _ = loops.network()
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        self._trains_unrecorded(tmp_path / "run", model, data, graph)

    @pytest.mark.filterwarnings("ignore:FSDP is switching", "ignore::FutureWarning")
    def test_a_model_in_fsdp_1_trains_unharmed_and_unrecorded(self, tmp_path: Path) -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(loops.network()[0], device_id=torch.device("cpu"))
        self._trains_unrecorded(tmp_path / "run", model, loops.batches(3), False)

    def test_two_processes_that_average_their_gradients_are_inconclusive_with_the_reason(
        self, tmp_path: Path, audit: Audit
    ) -> None:
        done = subprocess.run(
            [sys.executable, loops.__file__, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        )
        assert "2 processes average their gradients" in done.stderr
        verdict = audit(tmp_path / "run")
        assert (verdict.outcome, verdict.objections) == ("inconclusive", ())

    def _trains_unrecorded(self, out: Path, model: Any, data: list[Any], graph: bool) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        captured = {"loss": loops.loss_of, "example": data[0]} if graph else {}
        losses = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with tallystick.record_training(out, model, optimizer, **captured) as recorder:
                for batch in data:
                    optimizer.zero_grad()
                    loss = loops.loss_of(model, batch)
                    loss.backward()
                    optimizer.step()
                    recorder.step(loss, batch)
                    losses.append(float(loss.detach()))
        (line,) = [str(each.message) for each in caught if each.category is RuntimeWarning]
        assert "sharded over processes (FSDP)" in line
        assert "the loop goes on" in line
        assert len(losses) == 3
        assert not (out / "claim.json").exists()


def once(step: int, change: Callable[[Any, Any], None]) -> loops.Change:
    def changed(now: int, model: Any, optimizer: Any) -> None:
        if now == step:
            change(model, optimizer)

    return changed


def takes_two_threads(model: Any, optimizer: Any) -> None:
    torch.set_num_threads(2)


def multiplies_coarsely(model: Any, optimizer: Any) -> None:
    torch.set_float32_matmul_precision("medium")


def validates_on_two_threads(model: Any, optimizer: Any) -> None:
    torch.set_num_threads(2)
    with torch.no_grad():
        model.eval()(torch.ones(4, 3))
    model.train()
    torch.set_num_threads(1)


@pytest.fixture
def settings_put_back() -> Iterator[None]:
    """Threads and the precision of products are put back behind a test that changes them."""
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    yield
    torch.set_float32_matmul_precision(precision)
    torch.set_num_threads(threads)


def goes_back(model: Any, optimizer: Any) -> None:
    model.load_state_dict({name: value / 2 for name, value in model.state_dict().items()})


def forgets(model: Any, optimizer: Any) -> None:
    optimizer.load_state_dict(loops.network()[1].state_dict())


def steps_another(model: Any, optimizer: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(model.parameters(), lr=1e-2).step()


def validates_in_training_mode(model: Any, optimizer: Any) -> None:
    with torch.no_grad():
        model(torch.ones(4, 3))


def stays_in_evaluation_mode(model: Any, optimizer: Any) -> None:
    model.eval()


def adds_noise(model: Any, optimizer: Any) -> None:
    def noisy(parameter: Any) -> None:
        parameter.grad.add_(1e-3)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(noisy)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draw that is worst for an honest loop: after the first step none is replayed while it runs."""
    monkeypatch.setattr("tallystick.recording.loop.self_check.SelfCheck.is_due", lambda _, index: index == 1)


@pytest.mark.usefixtures("unchecked", "settings_put_back")
class TestWithoutLuck:
    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (goes_back, "was changed outside of `optimizer.step()`"),
            (forgets, "was changed outside of `optimizer.step()`"),
            (steps_another, "was changed outside of `optimizer.step()`"),
            (validates_in_training_mode, "buffers.1.num_batches_tracked was written to more or less often"),
            (stays_in_evaluation_mode, "call model.eval() before a validation and model.train() after it"),
            (adds_noise, "step 6: gradients are changed between backward() and optimizer.step()"),
            (takes_two_threads, "the number of threads of PyTorch was changed while the loop ran"),
            (multiplies_coarsely, "float32_matmul_precision of PyTorch was changed while the loop ran"),
        ],
    )
    def test_what_departs_in_one_step_is_inconclusive_with_the_reason(
        self, tmp_path: Path, audit: Audit, change: Any, reason: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(loops, "network", loops.normalised)
        (line,) = said(tmp_path / "run", change=once(5, change))
        verdict = audit(tmp_path / "run")
        assert reason in line
        assert (verdict.outcome, verdict.objections) == ("inconclusive", ())

    def test_clipping_that_binds_late_is_accepted(
        self, tmp_path: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = loops.batches()
        data[5] = (data[5][0], data[5][1] * 1000)
        monkeypatch.setattr(loops, "batches", lambda: data)
        assert said(tmp_path / "run", clips=100.0) == []
        assert audit(tmp_path / "run").outcome == "accepted"

    def test_a_number_of_the_loss_that_changes_and_stays_is_found_at_the_end(
        self, tmp_path: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loss_of, weight = loops.loss_of, [1.0]
        monkeypatch.setattr(loops, "loss_of", lambda model, batch: loss_of(model, batch) * weight[0])

        def warms_up(step: int, _model: Any, _optimizer: Any) -> None:
            weight[0] = 1.0 if step < 5 else 2.0

        (line,) = said(tmp_path / "run", change=warms_up)
        assert line.startswith(
            "step 6 cannot be replayed: step 6: the captured step gives another loss than the loop; "
        )
        assert [each.first for each in loops.claim_of(tmp_path / "run").withdrawn] == [6, 7]
        assert audit(tmp_path / "run").outcome == "inconclusive"

    def test_noise_beside_declared_clipping_is_inconclusive_with_the_reason(self, tmp_path: Path, audit: Audit) -> None:
        (line,) = said(tmp_path / "run", clips=0.05, clip_norm=0.05, change=once(5, adds_noise))
        assert "step 6: gradients are changed between backward() and optimizer.step() otherwise" in line
        assert audit(tmp_path / "run").outcome == "inconclusive"

    @pytest.mark.parametrize("other", [0.5, 1.0])
    def test_a_number_of_the_batch_is_a_constant_of_the_graph(
        self, tmp_path: Path, audit: Audit, other: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def weighs(model: Any, batch: Any) -> Any:
            return loss_of(model, batch[:2]) * batch[2]

        loss_of = loops.loss_of
        data = [(*batch, other if step == 5 else 1.0, f"batch {step}") for step, batch in enumerate(loops.batches())]
        monkeypatch.setattr(loops, "batches", lambda: data)
        monkeypatch.setattr(loops, "loss_of", weighs)
        lines, verdict = said(tmp_path / "run"), audit(tmp_path / "run")
        if other == 1.0:
            assert (lines, verdict.outcome) == ([], "accepted")
            return
        assert "step 6 cannot be replayed, nor any other of its kind: x2 of the batch is 0.5, and 1.0 in" in lines[0]
        assert (verdict.outcome, verdict.objections) == ("inconclusive", ())
        assert verdict.coverage is not None
        assert verdict.coverage.done == 7

    def test_an_average_that_is_put_in_and_taken_out_again_is_accepted(self, tmp_path: Path, audit: Audit) -> None:
        def validates(model: Any, optimizer: Any) -> None:
            kept = {name: value.clone() for name, value in model.state_dict().items()}
            goes_back(model, optimizer)
            model.load_state_dict(kept)

        assert said(tmp_path / "run", change=once(5, validates)) == []
        assert audit(tmp_path / "run").outcome == "accepted"

    def test_a_validation_with_other_threads_is_accepted(self, tmp_path: Path, audit: Audit) -> None:
        assert said(tmp_path / "run", change=once(5, validates_on_two_threads)) == []
        assert audit(tmp_path / "run").outcome == "accepted"

    def test_a_validation_in_evaluation_mode_is_accepted(
        self, tmp_path: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def validates(model: Any, optimizer: Any) -> None:
            validates_in_training_mode(model.eval(), optimizer)
            model.train()

        monkeypatch.setattr(loops, "network", loops.normalised)
        assert said(tmp_path / "run", change=once(5, validates)) == []
        assert audit(tmp_path / "run").outcome == "accepted"

    @pytest.mark.parametrize("graph", [False, True])
    def test_a_loop_that_diverges_is_recorded_up_to_the_anchor_before(
        self, tmp_path: Path, audit: Audit, graph: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = loops.batches()
        data[4] = (data[4][0], data[4][1] * float("nan"))
        monkeypatch.setattr(loops, "batches", lambda: data)
        (line,) = said(tmp_path / "run", graph=graph)
        assert "the loss of step 5 is nan" in line
        assert line.endswith("the run ends at its anchor of step 3")
        assert audit(tmp_path / "run").outcome == "accepted"


@pytest.mark.parametrize(("stride", "kept"), [(8, 8), (3, 6)])
@pytest.mark.parametrize("graph", [False, True])
def test_an_average_that_replaces_the_weights_at_the_end_is_no_part_of_the_run(
    tmp_path: Path, audit: Audit, stride: int, kept: int, graph: bool
) -> None:
    model, optimizer = loops.network()
    captured = {"loss": loops.loss_of, "example": loops.batches()[0]} if graph else {}
    recording = tallystick.record_training(tmp_path / "run", model, optimizer, anchor_stride=stride, **captured)

    def train() -> None:
        with recording as recorder:
            for batch in loops.batches():
                optimizer.zero_grad()
                loss = loops.loss_of(model, batch)
                loss.backward()
                optimizer.step()
                recorder.step(loss, batch)
            goes_back(model, optimizer)

    if kept == loops.STEPS:
        train()
    else:
        with pytest.warns(RuntimeWarning, match="weights were changed after the last record.*anchor of step 6"):
            train()
    assert audit(tmp_path / "run").outcome == "accepted"
    assert len(steps_of(tmp_path / "run")) == kept


def test_a_mask_of_minus_infinity_is_no_divergence(tmp_path: Path, audit: Audit) -> None:
    class Masked(torch.nn.Linear):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(3, 1)
            self.register_buffer("mask", torch.full((1, 1), float("-inf")))

        def forward(self, x: Any) -> Any:
            return super().forward(x) + self.mask.exp()

    model = Masked()
    optimizer, data = torch.optim.SGD(model.parameters(), lr=1e-2), loops.batches(3)
    captured = {"loss": loops.loss_of, "example": data[0]}
    with tallystick.record_training(tmp_path / "run", model, optimizer, **captured) as recorder:
        for batch in data:
            optimizer.zero_grad()
            loss = loops.loss_of(model, batch)
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch)
    assert audit(tmp_path / "run").outcome == "accepted"


def odd(what: str) -> Callable[[int, Any, Any], tuple[Any, Any]]:
    def told(step: int, loss: Any, batch: Any) -> tuple[Any, Any]:
        if step != 4:
            return loss, batch
        return {"no loss": (None, batch), "no batch": (loss, object()), "many losses": (torch.ones(2), batch)}[what]

    return told


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("what", ["no loss", "many losses"])
def test_what_cannot_be_recorded_ends_the_run_at_its_anchor_and_not_the_loop(
    tmp_path: Path, audit: Audit, what: str, graph: bool
) -> None:
    (line,) = said(tmp_path / "run", told=odd(what), graph=graph)
    assert line.startswith("recording ended at step 5, and the loop goes on: ")
    assert line.endswith("the run ends at its anchor of step 3")
    assert audit(tmp_path / "run").outcome == "accepted"
    assert len(steps_of(tmp_path / "run")) == 3


@pytest.mark.parametrize("graph", [False, True])
def test_a_step_whose_batch_holds_no_tensors_is_beyond_replay(tmp_path: Path, audit: Audit, graph: bool) -> None:
    (line,) = said(tmp_path / "run", told=odd("no batch"), graph=graph)
    verdict = audit(tmp_path / "run")
    assert line.startswith("step 5 cannot be replayed, nor any other of its kind")
    assert (verdict.outcome, verdict.objections) == ("inconclusive", ())
    assert verdict.coverage is not None
    assert verdict.coverage.done == 4 + 2  # step 6 starts from a state that nobody can replay
    assert any("step 5 has no step graph: inputs.x0 is not there" in each for each in verdict.unavailable)


def test_exchanged_parameters_end_the_run_and_not_the_loop(tmp_path: Path, audit: Audit) -> None:
    *_, line = said(tmp_path / "run", change=loops.exchanges)
    assert "parameters of the model were exchanged" in line
    assert audit(tmp_path / "run").objections == ()


def test_a_full_disk_ends_the_run_and_not_the_loop(
    tmp_path: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise UnavailableError("step_00000006.safetensors: could not be written: No space left on device")

    def fills(step: int, _model: Any, _optimizer: Any) -> None:
        if step == 4:
            monkeypatch.setattr("tallystick.formats.store.keeping.AnchorWriter.write", full)

    (line,) = said(tmp_path / "run", change=fills)
    assert "recording ended at step 6, and the loop goes on: step_00000006" in line
    assert audit(tmp_path / "run").outcome == "accepted"


def test_a_run_that_cannot_be_closed_either_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def full_once_closed(recorder: RunRecorder, *_: object) -> None:
        recorder.close()
        full()

    monkeypatch.setattr("tallystick.formats.store.keeping.AnchorWriter.write", full)
    monkeypatch.setattr(RunRecorder, "finish_at_anchor", full_once_closed)
    (line,) = said(tmp_path / "run")
    assert "recording ended at step 1" in line
    assert "the run has no claim (OSError: [Errno 28] No space left on device)" in line


def test_an_error_of_the_loop_stays_its_own_although_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def falls(step: int, _model: Any, _optimizer: Any) -> None:
        if step == 2:
            monkeypatch.setattr("tallystick.recording.run_recorder.RunJournal.fail", full)
            raise FloatingPointError("the loop fell over")

    with pytest.raises(FloatingPointError, match="fell over"):
        loops.fit(tmp_path / "run", change=falls)


def test_ctrl_c_passes_through_the_recorder_and_the_advice_fits_a_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tallystick.recording.run_recorder.RunRecorder.step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        loops.fit(tmp_path / "run")
    with pytest.raises(UnavailableError, match="record the loop anew") as refused:
        loops.claim_of(tmp_path / "run")
    assert "tally train --resume" not in str(refused.value)


def test_a_directory_that_another_recorder_writes_is_refused_before_the_loop(tmp_path: Path, audit: Audit) -> None:
    with RunLock(tmp_path / "run"), pytest.raises(UnavailableError, match="another process records into it"):
        loops.fit(tmp_path / "run")
    loops.fit(tmp_path / "run")
    assert audit(tmp_path / "run").outcome == "accepted"


def test_steps_behind_the_end_of_a_run_are_not_recorded_and_said_once(tmp_path: Path) -> None:
    model, optimizer = loops.network()
    recording = tallystick.record_training(tmp_path / "run", model, optimizer)
    with pytest.warns(RuntimeWarning, match="stepped 0 times"), recording as recorder:
        recorder.step(1.0, [1])
    before = (tmp_path / "run/transcript.jsonl").read_bytes()
    with pytest.warns(RuntimeWarning, match="the run is closed"):
        recorder.step(1.0, [2])
    recorder.step(1.0, [3])  # silently: a warning would be an error here
    assert (tmp_path / "run/transcript.jsonl").read_bytes() == before


def test_an_optimizer_without_a_rate_is_recorded_as_such(tmp_path: Path, audit: Audit) -> None:
    model, optimizer = loops.network()
    with tallystick.record_training(tmp_path / "run", model, optimizer) as recorder:
        optimizer.param_groups[0]["lr"] = None
        with pytest.warns(RuntimeWarning, match="stepped 0 times"):
            recorder.step(1.0, [1])
    (step,) = steps_of(tmp_path / "run")
    assert (step.learning_rate, step.tags) == (0.0, ("no-rate",))
    assert audit(tmp_path / "run").objections == ()
