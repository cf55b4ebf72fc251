"""Each message of a recorder that names a remedy: a loop that brings it up, and the same loop with the remedy."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.recorders import honest, test_every_loop as loops
from tests.recorders.honest import Loop

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
PLAIN = Loop()


class Doubled(torch.autograd.Function):
    """A function with a backward pass of its own."""

    @staticmethod
    def forward(_: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(_: Any, gradient: Any) -> Any:
        return gradient * 2


def through_a_function(_step: int, model: Any, batch: Any) -> Any:
    return Doubled.apply(honest.squares(0, model, batch))


def doubled(_step: int, model: Any, batch: Any) -> Any:
    return honest.squares(0, model, batch) * 2


def times_a_tensor(_step: int, model: Any, batch: Any) -> Any:
    return honest.squares(0, model, batch) * batch[2]


def with_masks(_step: int, model: Any, batch: Any) -> Any:
    return model(batch[0])[batch[0][:, 0] > 0].square().mean()


def with_weights_of_rows(_step: int, model: Any, batch: Any) -> Any:
    return torch.where(batch[0][:, :1] > 0, model(batch[0]), torch.zeros(())).square().mean()


def scaled_then(step: int) -> Any:
    return torch.tensor(3.0 if step == 4 else 1.0)


def with_factors() -> Any:
    return [(*batch, scaled_then(step)) for step, batch in enumerate(honest.rows())]


def with_noise() -> Any:
    generator = torch.Generator().manual_seed(3)
    return [(*batch, torch.randn(8, 3, generator=generator)) for batch in honest.rows()]


def noise_of_the_batch(_step: int, model: Any, batch: Any) -> Any:
    return functional.mse_loss(model(batch[0] + 0.1 * batch[2]), batch[1])


def clips_by_a_tensor(step: int, model: Any, optimizer: Any) -> None:
    norm = torch.sqrt(sum(each.grad.square().sum() for each in model.parameters()))
    for each in model.parameters():
        each.grad.mul_(torch.where(norm > 0.05, 0.05 / norm, torch.ones(())))


def normalises_in_place(step: int, model: Any, optimizer: Any) -> None:
    with torch.no_grad():
        model[0].weight.copy_(functional.normalize(model[0].weight, dim=1))


def cycled(_model: Any, momentum: bool) -> Any:
    optimizer = torch.optim.SGD(_model.parameters(), lr=1e-2, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20, cycle_momentum=momentum)
    optimizer.__dict__["schedule"] = schedule
    return optimizer


def steps_its_schedule(step: int, model: Any, optimizer: Any) -> None:
    optimizer.schedule.step()


def moves_its_rate(step: int, model: Any, optimizer: Any) -> None:
    if step == 0:
        optimizer.register_step_pre_hook(lambda *_: optimizer.param_groups[0].update(lr=1e-2 * 0.9))
        optimizer.register_step_post_hook(lambda *_: optimizer.param_groups[0].update(lr=1e-2))


def sets_the_rate_behind(step: int, model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = 1e-2 * 0.9


def average_of_all(model_momentum: float | None) -> Any:
    return lambda: nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8, momentum=model_momentum), nn.Linear(8, 1))


def only_the_last(model: Any) -> Any:
    return torch.optim.AdamW(model[2].parameters(), lr=1e-2)


def steps_the_first_layer(step: int, model: Any, optimizer: Any) -> None:
    torch.optim.SGD(model[0].parameters(), lr=1e-2).step()


def writes_into_the_batch(step: int, batch: Any) -> Any:
    batch[0].mul_(2)
    return batch


def a_copy_from_before() -> Any:
    return honest.rows()


def sums_of_two(step: int, model: Any, optimizer: Any) -> None:
    """A second loss of the same batch, with a backward pass of its own."""
    (0.1 * model(honest.rows()[step][0]).square().mean()).backward()


def both_losses(step: int, model: Any, batch: Any) -> Any:
    return honest.squares(step, model, batch) + 0.1 * model(batch[0]).square().mean()


def mean_of_all(step: int, model: Any, batch: Any) -> Any:
    return honest.squares(step, model, batch)


def damped(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, dampening=0.1)


def fused(is_fused: bool) -> Any:
    return lambda model: torch.optim.SGD(model.parameters(), lr=1e-2, fused=is_fused)


REMEDIES: dict[str, tuple[str, Loop, Loop]] = {
    "gradients touched": (
        "clip in every step",
        Loop(after_backward=loops.clips_from_the_fourth),
        Loop(after_backward=loops.clips(max_norm=0.05)),
    ),
    "clipped to another norm": (
        "clip in every step, to the same norm",
        Loop(after_backward=loops.clips_tighter_later),
        Loop(after_backward=loops.clips(max_norm=0.01)),
    ),
    "a number is read back": (
        "keep it a tensor, as with torch.clamp or torch.where",
        Loop(after_backward=loops.clips_in_python),
        Loop(after_backward=clips_by_a_tensor),
    ),
    "loss scaled in one step": (
        "multiply the loss by a tensor of batch=, and record the product",
        Loop(scaled=loops.once_scaled),
        Loop(loss=times_a_tensor, batches=with_factors),
    ),
    "another loss than that of backward": (
        "the loss that was recorded is not the one of backward(); give that, or the mean of its micro-batches",
        Loop(scaled=loops.always_scaled),
        Loop(loss=doubled),
    ),
    "temperature": (
        "give numbers that change as tensors in batch=",
        Loop(loss=loops.annealed),
        Loop(loss=loops.annealed_by_a_tensor, batches=loops.with_numbers),
    ),
    "a number of the batch": (
        "make it a tensor, or leave it out of the batch where the loss does not use it",
        Loop(given=loops.as_floats, loss=honest.squares),
        Loop(batches=loops.with_numbers, loss=loops.annealed_by_a_tensor),
    ),
    "targets left out": (
        "give batch=(inputs, targets), all that the loss reads",
        Loop(given=loops.without_targets, settings={}),
        PLAIN,
    ),
    "no batch": ("give batch=(inputs, targets), the tensors that the loss reads", Loop(given=loops.no_batch), PLAIN),
    "a random input": (
        "give in batch= what the loop itself draws",
        Loop(loss=loops.drawn_noise),
        Loop(loss=noise_of_the_batch, batches=with_noise),
    ),
    "noise on gradients": ("record the loop without them", Loop(after_backward=loops.adds_noise), PLAIN),
    "weights changed behind the record": (
        "between `optimizer.step()` and `recorder.step()`",
        Loop(after_record=loops.clamps),
        Loop(after_step=loops.clamps),
    ),
    "weights changed in one step": (
        "do that in every step from the first one on",
        Loop(after_step=lambda step, *rest: loops.clamps(step, *rest) if step == 4 else None),
        Loop(after_step=loops.clamps),
    ),
    "weights assigned anew": (
        "write into them in place",
        Loop(after_step=loops.assigns_normalised_data),
        Loop(after_step=normalises_in_place),
    ),
    "validated in training mode": (
        "call model.eval() before a validation and model.train() after it",
        Loop(model=loops.normed, after_record=loops.validates_in_training_mode),
        Loop(model=loops.normed, after_record=loops.validates),
    ),
    "momentum cycled": (
        "OneCycleLR: cycle_momentum=False",
        Loop(optimizer=lambda model: cycled(model, True), after_step=steps_its_schedule),
        Loop(optimizer=lambda model: cycled(model, False), after_step=steps_its_schedule),
    ),
    "rate moved inside the step": (
        "step the schedule after it",
        Loop(before=moves_its_rate),
        Loop(after_step=sets_the_rate_behind),
    ),
    "batch norm over all batches": (
        "give it a number, such as momentum=0.1",
        Loop(model=average_of_all(None)),
        Loop(model=average_of_all(0.1)),
    ),
    "an optimizer left out": (
        "give all optimizers as a list",
        Loop(optimizer=only_the_last, after_step=steps_the_first_layer),
        Loop(optimizer=loops.two),
    ),
    "a batch written to": (
        "give the recorder a copy from before",
        Loop(given=writes_into_the_batch),
        Loop(given=lambda step, batch: a_copy_from_before()[step]),
    ),
    "two losses": (
        "add up losses of the same batch and call it once",
        Loop(after_backward=sums_of_two),
        Loop(loss=both_losses),
    ),
    "micro-batches as one": (
        "give batch= as a list of as many micro-batches",
        Loop(micro=lambda _: 2, given=lambda step, parts: dict(enumerate(honest.rows()[step]))),
        Loop(micro=lambda _: 2),
    ),
    "a function of autograd": (
        "write it with operators of PyTorch",
        Loop(loss=through_a_function),
        Loop(loss=doubled),
    ),
    "rows selected by a mask": (
        "select rows with torch.where",
        Loop(loss=with_masks),
        Loop(loss=with_weights_of_rows),
    ),
    "a fused optimizer": ("set fused=False", Loop(optimizer=fused(True)), Loop(optimizer=fused(False))),
    "a step left out": ("has to once", Loop(steps=loops.skips), PLAIN),
    "gradients accumulated over records": (
        "record after `optimizer.step()` and give batch= as a list of them",
        Loop(steps=lambda step, model, optimizer: step % 2 == 1),
        Loop(micro=lambda _: 2),
    ),
}


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    """After the first step none is replayed while a loop runs, except by the replays of what was recorded."""
    monkeypatch.setattr("tallystick.recorders.self_check.SelfCheck.is_due", lambda _, index: index in {1, 5})


def said_by(loop: Loop, out: Path) -> list[str]:
    """The lines that a recorder warns with."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop.train(out)
    return [str(each.message) for each in caught if each.category is RuntimeWarning]


@pytest.mark.parametrize("name", REMEDIES)
def test_a_remedy_mends_what_its_message_says(tmp_path: Path, name: str) -> None:
    remedy, broken, mended = REMEDIES[name]
    said = said_by(broken, tmp_path / "broken")
    assert any(remedy in line for line in said), said
    verdict = loops.audited(tmp_path / "broken")
    assert (verdict.outcome, verdict.objections) == ("inconclusive", ())
    assert said_by(mended, tmp_path / "mended") == []
    assert loops.audited(tmp_path / "mended").outcome == "accepted"
