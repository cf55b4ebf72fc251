"""Loops recorded with the three lines alone: the first step shows what the loss is, or what is missing is said."""

from __future__ import annotations

import gc
import json
import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.formats.store.run import RunDirectory

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

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


def network() -> Any:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def attending() -> Any:
    return nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), nn.Linear(4, 1))


def sequences(step: int) -> Any:
    return torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(step)), torch.zeros(2, 3, 1)


def adamw(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def batch_of(step: int) -> Any:
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
    return x, x.sum(1, keepdim=True)


def squares(model: Any, batch: Any) -> Any:
    return functional.mse_loss(model(batch[0]), batch[1])


@dataclass
class Loop:
    """A loop as people write it; each part can be another."""

    model: Callable[[], Any] = network
    optimizer: Callable[[Any], Any] = adamw
    batch: Callable[[int], Any] = batch_of
    loss: Callable[[Any, Any], Any] = squares
    given: Callable[[Any], Any] = lambda batch: batch
    around: Callable[[], Any] = nullcontext
    before_step: Callable[[Any], Any] = lambda model: None
    after_step: Callable[[Any], Any] = lambda batch: None
    schedule: Callable[[Any], Any] | None = None
    steps: int = 5
    said: list[str] = field(default_factory=list)

    def run(self, out: Path) -> Path:
        """Train and record; `said` are the recorder's warnings."""
        torch.manual_seed(0)
        model = self.model()
        optimizer = self.optimizer(model)
        schedule = self.schedule(optimizer) if self.schedule else None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with tallystick.record_training(out, model, optimizer, anchor_stride=2) as recorder:
                for step in range(self.steps):
                    batch = self.batch(step)
                    with self.around():
                        loss = self.loss(model, batch)
                    optimizer.zero_grad()
                    loss.backward()
                    self.before_step(model)
                    optimizer.step()
                    if schedule:
                        schedule.step()
                    self.after_step(batch)
                    recorder.step(loss, batch=self.given(batch))
        self.said = [str(each.message) for each in caught if each.category is RuntimeWarning]
        return out


def convolving() -> Any:
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(36, 10))


def images(step: int) -> Any:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 1, 8, 8, generator=generator), torch.randint(10, (8,), generator=generator)


def labelled(model: Any, batch: Any) -> Any:
    return functional.cross_entropy(model(batch[0]), batch[1])


def by_class(model: Any, batch: Any) -> Any:
    """The weights of classes are neither of the model nor of the batch."""
    return functional.cross_entropy(model(batch[0]), batch[1], weight=torch.linspace(0.5, 2.0, 10))


def two_groups(model: Any) -> Any:
    groups = [{"params": [model[0].weight, model[2].weight], "weight_decay": 0.1}, {"params": [model[0].bias]}]
    groups.append({"params": [model[2].bias], "lr": 1e-3})
    return torch.optim.SGD(groups, lr=1e-2, momentum=0.9)


def in_bfloat16() -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def clips(model: Any) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def weighted(model: Any, batch: Any) -> Any:
    with torch.no_grad():
        scale = model(batch[0]).abs().mean()
    return squares(model, batch) * torch.tensor(0.5) + 0.01 * scale.detach() * sum(p.norm() for p in model.parameters())


def reads_a_number(model: Any, batch: Any) -> Any:
    loss = squares(model, batch)
    assert loss.item() >= 0
    return loss


@pytest.mark.parametrize(
    "loop",
    [
        Loop(),
        Loop(model=convolving, batch=images, loss=labelled),
        Loop(model=convolving, batch=images, loss=by_class),
        Loop(model=convolving, batch=images, loss=labelled, around=in_bfloat16, before_step=clips),
        Loop(optimizer=two_groups, schedule=lambda each: torch.optim.lr_scheduler.ExponentialLR(each, 0.5)),
        Loop(before_step=clips),
        Loop(model=attending, batch=sequences),
        Loop(loss=weighted),
        Loop(loss=reads_a_number),
        Loop(given=lambda batch: {"x": batch[0].clone(), "y": batch[1].detach()}),
    ],
    ids=["mlp", "cnn", "classes", "autocast", "groups", "clipped", "attention", "constants", "item", "copies"],
)
def test_a_loop_is_accepted_with_the_three_lines_alone(loop: Loop, tmp_path: Path, audit: Audit) -> None:
    verdict = audit(loop.run(tmp_path / "run"))
    assert loop.said == []
    assert (verdict.outcome, verdict.objections) == ("accepted", ())


def drops() -> Any:
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.1), nn.Linear(8, 1))


def noisy(model: Any, batch: Any) -> Any:
    return squares(model, (batch[0] + 0.1 * torch.randn_like(batch[0]), batch[1]))


def shakes(model: Any) -> None:
    for parameter in model.parameters():
        parameter.grad.add_(torch.randn_like(parameter), alpha=1e-3)


def from_a_list(step: int) -> Any:
    return batch_of(step)[0], torch.tensor([[float(step + row)] for row in range(8)])


def doubles(batch: Any) -> None:
    batch[1].mul_(2)


def validates(model: Any) -> None:
    """A forward pass in training mode beside that of the loss."""
    with torch.no_grad():
        model(images(99)[0])


def cycles(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)


def kept_rows(model: Any, batch: Any) -> Any:
    kept = batch[1] > 0
    return functional.mse_loss(model(batch[0])[kept], batch[1][kept])


class Growing:
    """A weight of the loss that grows from step to step."""

    def __init__(self) -> None:
        self.weight = 1.0

    def __call__(self, model: Any, batch: Any) -> Any:
        self.weight *= 1.5
        return squares(model, batch) * self.weight


class Stepping:
    """A second optimizer over the last layer."""

    def __call__(self, model: Any) -> None:
        torch.optim.SGD(model[2].parameters(), lr=0.1).step()


class Checked(torch.autograd.Function):
    """A function with a backward pass of its own."""

    @staticmethod
    def forward(_: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(_: Any, gradient: Any) -> Any:
        return gradient * 3


@pytest.mark.parametrize(
    ("loop", "reason"),
    [
        (Loop(loss=noisy), "random numbers (aten.randn_like.default)"),
        (Loop(batch=from_a_list, given=lambda batch: batch[0]), "that is not in batch=; give batch=(inputs, targets)"),
        (
            Loop(before_step=shakes),
            "random numbers are written into gradients (aten.randn_like.default); record the loop without them",
        ),
        (
            Loop(before_step=Stepping()),
            "SGD steps weights that the loss depends on too, and was not given; give all optimizers as a list",
        ),
        (Loop(after_step=doubles), "x1 of the batch was changed after the loss had read it"),
        (Loop(given=lambda batch: [3, 4]), "holds no tensors; give batch=(inputs, targets)"),
        (Loop(given=lambda batch: None), "batch= is left out or holds no tensors; give batch=(inputs, targets)"),
        (Loop(schedule=cycles), "leave the optimizer as it is while it is recorded (OneCycleLR: cycle_momentum=False)"),
        (
            Loop(model=convolving, batch=images, loss=labelled, before_step=validates),
            "another buffers.1.num_batches_tracked than the loop: a forward pass outside of the step writes into it",
        ),
        (Loop(loss=kept_rows), "indices are I64 or I32, not BOOL; select rows with torch.where"),
        (Loop(loss=Growing()), "a number in the loss that changes"),
        (Loop(loss=lambda model, batch: Checked.apply(squares(model, batch))), "the autograd.Function Checked"),
        (Loop(optimizer=lambda model: torch.optim.Rprop(model.parameters())), "use one of them"),
    ],
    ids=[
        "noise",
        "targets",
        "shaken",
        "optimizers",
        "changed",
        "indices",
        "left out",
        "cycled",
        "validated",
        "masked",
        "growing",
        "function",
        "rprop",
    ],
)
def test_a_loop_that_cannot_be_replayed_is_told_at_once_and_its_audit_repeats_it(
    loop: Loop, reason: str, tmp_path: Path, audit: Audit
) -> None:
    verdict = audit(loop.run(tmp_path / "run"))
    line, *_ = loop.said  # a check drawn at random may say more at a later step
    assert reason in line
    assert (verdict.outcome, verdict.objections) == ("inconclusive", ())
    said = line.partition(": ")[2]
    assert any(said in each for each in verdict.unavailable)


def test_an_optimizer_that_learned_with_other_betas_is_accepted(tmp_path: Path, audit: Audit) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.999), weight_decay=0.0)

    def trains(ids: list[list[int]]) -> tuple[Any, Any]:
        batch = torch.tensor(ids), torch.full((len(ids), 1), 3.0)
        loss = squares(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss, batch

    for ids in [*[[[1, 2], [3, 4]]] * 300, [[10, 11], [1, 2]]]:  # rows 10 and 11 are met once
        trains(ids)
    optimizer.param_groups[0]["betas"] = (0.9, 0.95)
    with tallystick.record_training(tmp_path / "run", model, optimizer, anchor_stride=1) as recorder:
        for _ in range(3):
            recorder.step(*trains([[1, 2], [3, 4]]))
    assert audit(tmp_path / "run").outcome == "accepted"


def trains_among(mode: Callable[[], Any], out: Path, steps: int = 4) -> list[float]:
    """A loop that calls the recorder inside a mode of PyTorch."""
    torch.manual_seed(0)
    model, losses = network(), []
    optimizer = adamw(model)
    with tallystick.record_training(out, model, optimizer, anchor_stride=2) as recorder:
        for step in range(steps):
            batch = batch_of(step)
            loss = squares(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with mode():
                recorder.step(loss, batch=batch)
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("mode", [torch.no_grad, in_bfloat16])
def test_a_step_may_be_recorded_without_gradients_or_under_autocast(mode: Any, tmp_path: Path, audit: Audit) -> None:
    trains_among(mode, tmp_path / "run")
    assert audit(tmp_path / "run").outcome == "accepted"


def test_a_step_recorded_in_inference_mode_leaves_the_loop_unharmed(tmp_path: Path, audit: Audit) -> None:
    alone = trains_among(nullcontext, tmp_path / "alone")
    with pytest.warns(RuntimeWarning, match="the audit of this run will be inconclusive"):
        assert trains_among(torch.inference_mode, tmp_path / "run") == alone
    verdict = audit(tmp_path / "run")
    assert (verdict.outcome, verdict.objections) == ("inconclusive", ())


def test_a_batch_may_be_left_out(tmp_path: Path) -> None:
    model = network()
    optimizer = adamw(model)
    with tallystick.record_training(tmp_path / "run", model, optimizer) as recorder:
        loss = squares(model, batch_of(0))
        loss.backward()
        optimizer.step()
        with pytest.warns(RuntimeWarning, match="batch= is left out"):
            recorder.step(loss)
    assert (tmp_path / "run/claim.json").exists()


def accumulates(out: Path, share: Callable[[Any], Any], given: Callable[[Any], Any]) -> list[str]:
    """Train with four micro-batches a step; the recorder's warnings."""
    torch.manual_seed(0)
    model = network()
    optimizer = adamw(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with tallystick.record_training(out, model, optimizer, anchor_stride=2) as recorder:
            for step in range(4):
                parts = [batch_of(4 * step + part) for part in range(4)]
                losses = [squares(model, part) for part in parts]
                optimizer.zero_grad()
                for loss in losses:
                    share(loss).backward()
                optimizer.step()
                recorder.step(sum(losses) / 4, batch=given(parts))
    return [str(each.message) for each in caught if each.category is RuntimeWarning]


@pytest.mark.parametrize("share", [lambda loss: loss / 4, lambda loss: loss * 0.25])
def test_micro_batches_are_found(share: Callable[[Any], Any], tmp_path: Path, audit: Audit) -> None:
    assert accumulates(tmp_path / "run", share, given=lambda parts: parts) == []
    assert audit(tmp_path / "run").outcome == "accepted"


@pytest.mark.parametrize(
    ("share", "given", "reason"),
    [
        (
            lambda loss: loss / 4,
            lambda parts: parts[-1],
            "called 4 times in the step; give batch= as a list of as many",
        ),
        (lambda loss: loss, lambda parts: parts, "divide each loss by 4, so that their mean is minimised"),
    ],
)
def test_micro_batches_that_are_not_given_or_not_averaged_are_said(
    share: Callable[[Any], Any], given: Callable[[Any], Any], reason: str, tmp_path: Path, audit: Audit
) -> None:
    (line,) = accumulates(tmp_path / "run", share, given)
    assert reason in line
    assert audit(tmp_path / "run").outcome == "inconclusive"


def test_two_networks_that_train_against_each_other_are_said(tmp_path: Path, audit: Audit) -> None:
    model, judge = network(), nn.Linear(1, 1)
    optimizer, other = adamw(model), torch.optim.SGD(judge.parameters(), lr=0.1)

    def play() -> None:
        with tallystick.record_training(tmp_path / "run", model, optimizer) as recorder:
            for step in range(2):
                x, _ = batch_of(step)
                other.zero_grad()
                judge(model(x).detach()).mean().backward()
                other.step()
                loss = -judge(model(x)).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                recorder.step(loss, batch=x)

    with pytest.warns(RuntimeWarning, match="SGD steps weights that the loss depends on too"):
        play()
    assert audit(tmp_path / "run").outcome == "inconclusive"


def test_a_loader_and_a_mode_of_the_loop_are_no_obstacle(tmp_path: Path, audit: Audit) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

    class Passing(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, target: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return target(*args, **(kwargs or {}))

    torch.manual_seed(0)
    x = torch.randn(24, 3)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    model = network()
    optimizer = adamw(model)
    with tallystick.record_training(tmp_path / "run", model, optimizer) as recorder, Passing():
        for batch in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
            loss = squares(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss.item(), batch=batch)
    assert _get_current_dispatch_mode_stack() == []
    assert audit(tmp_path / "run").outcome == "accepted"


def test_watching_keeps_no_activation_alive(tmp_path: Path) -> None:
    model = network()
    optimizer = adamw(model)
    hidden: list[Any] = []
    model[1].register_forward_hook(lambda _module, _args, result: hidden.append(weakref.ref(result)))
    with tallystick.record_training(tmp_path / "run", model, optimizer) as recorder:
        batch = batch_of(0)
        loss = squares(model, batch)
        optimizer.zero_grad()
        loss.backward()
        assert hidden[0]() is not None or loss.grad_fn is not None
        number = loss.item()
        del loss
        gc.collect()
        assert hidden[0]() is None
        optimizer.step()
        recorder.step(number, batch)


def test_nodes_of_a_watched_step_keep_the_module_they_came_from(tmp_path: Path) -> None:
    run = Loop(steps=1).run(tmp_path / "run")
    names = json.loads((run / "graphs/step.modules.json").read_text())["names"]
    assert {"0", "1", "2", "loss", "backward of 0"} <= set(names)
