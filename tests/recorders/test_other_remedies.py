"""Remedies for optimizers, buffers, numbers, settings of PyTorch and losses that are stated: each as in a loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.recorders import honest, test_every_loop as loops, test_remedies as remedies
from tests.recorders.honest import Loop
from tests.recorders.test_remedies import PLAIN, said_by

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional


class Counting(nn.Module):  # type: ignore[misc]
    """A layer with a running mean that its forward pass writes in place, or assigns anew."""

    def __init__(self, in_place: bool = True) -> None:
        super().__init__()
        self.layer, self.in_place = nn.Linear(3, 1), in_place
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        result = self.layer(x)
        new = self.seen * 0.9 + result.detach().mean()
        if self.in_place:
            self.seen.copy_(new)
        else:
            self.seen = new
        return result + self.seen


class WithScale(nn.Module):  # type: ignore[misc]
    """A layer and a scale that trains with it, which is a parameter of the module or only lies in it."""

    def __init__(self, is_registered: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        scale = nn.Parameter(torch.ones(1))
        if is_registered:
            self.scale = scale
        else:
            self.__dict__["scale"] = scale

    def forward(self, x: Any) -> Any:
        return self.layer(x) * self.scale


class Unsteady(nn.Module):  # type: ignore[misc]
    """A layer whose last bits differ from call to call, as kernels do that add up in the order of threads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.__dict__["calls"] = [0]

    def forward(self, x: Any) -> Any:
        self.calls[0] += 1
        is_steady = torch.are_deterministic_algorithms_enabled() or torch.get_num_threads() == 1
        is_steady = is_steady or torch.compiler.is_exporting()
        return self.layer(x) * (1.0 if is_steady else 1.0 + 1e-6 * (self.calls[0] % 7))


class ByAttention(nn.Module):  # type: ignore[misc]
    """A layer of a library that computes otherwise while it is exported, but with eager attention."""

    def __init__(self, attention: str) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.__dict__["config"] = type("Config", (), {"_attn_implementation": attention})

    def forward(self, x: Any) -> Any:
        is_other = torch.compiler.is_exporting() and self.config._attn_implementation != "eager"
        return self.layer(x) * (3.0 if is_other else 1.0)


def halves_the_mean(step: int, model: Any, optimizer: Any) -> None:
    model.seen.mul_(0.5)


def halves_the_mean_once(step: int, model: Any, optimizer: Any) -> None:
    if step == 3:
        model.seen.mul_(0.5)


def of_all_weights(model: Any) -> Any:
    return torch.optim.SGD([*model.layer.parameters(), model.scale], lr=1e-2)


def already_stepped(dampening: float) -> Any:
    def make(model: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, dampening=dampening)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        return optimizer

    return make


def damped(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, dampening=0.5)


def thawed_in_the_same_optimizer(model: Any) -> Any:
    optimizer = honest.adamw(model)
    model[0].requires_grad_(False)
    for batch in honest.rows(4):
        optimizer.zero_grad()
        honest.squares(0, model, batch).backward()
        optimizer.step()
    model[0].requires_grad_(True)
    optimizer.zero_grad()
    return optimizer


def thawed_in_a_new_optimizer(model: Any) -> Any:
    thawed_in_the_same_optimizer(model)
    return honest.adamw(model)


def of_two_groups(model: Any) -> Any:
    groups = [{"params": [*model[0].parameters()], "lr": 0.0}, {"params": [*model[2].parameters()], "lr": 1e-2}]
    return torch.optim.AdamW(groups)


def opens_its_first_group(step: int, model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = 0.0 if step < 4 else 1e-2


def made(kind: str, **settings: Any) -> Any:
    return lambda model: getattr(torch.optim, kind)(model.parameters(), **settings)


def never_forgets(model: Any) -> Any:
    optimizer = honest.adamw(model)
    optimizer.zero_grad = lambda set_to_none=True: None
    return optimizer


def norm_of(model: Any) -> float:
    return float(nn.utils.get_total_norm([each.grad for each in model.parameters()]))


def halves_once(step: int, model: Any, optimizer: Any) -> None:
    if step == 6:
        for each in model.parameters():
            each.grad.mul_(0.5)


def with_a_half() -> Any:
    return [(*batch, torch.tensor(0.5 if step == 6 else 1.0)) for step, batch in enumerate(honest.rows())]


def of_three_lengths() -> Any:
    return [tuple(each[: 8 - step % 3] for each in batch) for step, batch in enumerate(honest.rows())]


def padded_with_weights() -> Any:
    """Rows of three lengths in batches of one length, with a weight of 0 for what was padded."""
    weights = [(torch.arange(8)[:, None] < 8 - step % 3).float() for step in range(honest.STEPS)]
    return [(*batch, weight) for batch, weight in zip(honest.rows(), weights, strict=True)]


def weighted(_step: int, model: Any, batch: Any) -> Any:
    return ((model(batch[0]) - batch[1]).square() * batch[2]).sum() / batch[2].sum()


def shrinks_its_betas(step: int, model: Any, optimizer: Any) -> None:
    """Other betas at each of two steps."""
    if step in (4, 5):
        optimizer.param_groups[0]["betas"] = (0.9 - 0.02 * step, 0.999)


def shrinks_its_betas_behind(step: int, model: Any, optimizer: Any) -> None:
    shrinks_its_betas(step + 1, model, optimizer)


def shrinks_its_decay(step: int, model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.05


def rounds_more(step: int, model: Any, optimizer: Any) -> None:
    torch.set_float32_matmul_precision("medium")


def rounds_more_later(step: int, model: Any, optimizer: Any) -> None:
    torch.set_float32_matmul_precision("medium" if step >= 4 else "highest")


def validates_as_before(step: int, model: Any, optimizer: Any) -> None:
    rounds_more(step, model, optimizer)
    with torch.no_grad():
        model(torch.ones(2, 3))
    torch.set_float32_matmul_precision("highest")


def as_it_was_set(model: Any) -> Any:
    torch.set_float32_matmul_precision("medium")
    return honest.adamw(model)


def swapped_across_the_record(factor: float) -> Any:
    def swap(step: int, model: Any, optimizer: Any) -> None:
        if step == 4:
            model[0].weight.detach().mul_(factor)

    return swap


def swapped_behind_the_record(step: int, model: Any, optimizer: Any) -> None:
    for factor in (0.5, 2.0):
        swapped_across_the_record(factor)(step, model, optimizer)


def keeps_a_size(_step: int, model: Any, batch: Any) -> Any:
    found = model(batch[0])
    model.__dict__["size"] = found.detach().square().mean()
    return functional.mse_loss(found, batch[1])


def scales_by_the_size(step: int, model: Any, optimizer: Any) -> None:
    for each in model.parameters():
        each.grad.mul_(model.__dict__["size"])


def normalises_as_a_list(step: int, model: Any, optimizer: Any) -> None:
    norm = torch.stack(torch._foreach_powsum([each.grad for each in model.parameters()], 2)).sum().sqrt()
    for each in model.parameters():
        each.grad.div_(norm)


def normalises_one_by_one(step: int, model: Any, optimizer: Any) -> None:
    norm = torch.stack([each.grad.square().sum() for each in model.parameters()]).sum().sqrt()
    for each in model.parameters():
        each.grad.div_(norm)


def scaled_for_halves() -> Loop:
    scaler = torch.amp.GradScaler("cpu")
    return Loop(
        backward=lambda loss: scaler.scale(loss).backward(),
        after_backward=lambda step, model, optimizer: scaler.unscale_(optimizer),
        after_step=lambda *_: scaler.update(),
    )


def in_bfloat16(step: int, model: Any, batch: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return honest.squares(step, model, batch)


def stated(loss: Any, example: Any = None) -> dict[str, Any]:
    return {"loss": lambda model, batch: loss(0, model, batch), "example": example or honest.rows()[0]}


SCALE = {"now": 1.0}


def annealed_by_a_global(step: int, model: Any, batch: Any) -> Any:
    SCALE["now"] = 1.0 + 0.1 * step
    return by_a_global(step, model, batch)


def by_a_global(_step: int, model: Any, batch: Any) -> Any:
    return functional.mse_loss(model(batch[0]) / SCALE["now"], batch[1])


def function_in_bfloat16(step: int, model: Any, batch: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return remedies.through_a_function(step, model, batch)


def doubled_in_bfloat16(step: int, model: Any, batch: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return remedies.doubled(step, model, batch)


REMEDIES: dict[str, tuple[str, Loop, Loop]] = {
    "gradients halved once": (
        "scale the loss by a tensor of batch= instead",
        Loop(after_backward=halves_once),
        Loop(loss=remedies.times_a_tensor, batches=with_a_half),
    ),
    "gradients of another step": (
        "left from before (optimizer.zero_grad())",
        Loop(optimizer=never_forgets),
        PLAIN,
    ),
    "another norm": (
        "leave `gradient_norm=` out",
        Loop(norm=lambda _: 3.0),
        PLAIN,
    ),
    "the norm before clipping": (
        "is not that of the gradient before clipping",
        Loop(norm=lambda _: 3.0),
        Loop(norm=norm_of),
    ),
    "a buffer assigned anew": (
        "write into it in place, as with `copy_`",
        Loop(model=lambda: Counting(in_place=False)),
        Loop(model=Counting),
    ),
    "a buffer changed after the forward pass": (
        "in every step before that pass",
        Loop(model=Counting, after_step=halves_the_mean),
        Loop(model=Counting, before=halves_the_mean),
    ),
    "a buffer changed in one step": (
        "write into it in every step if the loop itself does",
        Loop(model=Counting, before=halves_the_mean_once),
        Loop(model=Counting, before=halves_the_mean),
    ),
    "a compiled model": (
        "record the loop uncompiled",
        Loop(model=lambda: torch.compile(honest.network(), backend="eager")),
        PLAIN,
    ),
    "a number of a stated loss": (
        "a number in `loss=` has changed since the graph was captured; give such numbers as tensors in batch=",
        Loop(loss=annealed_by_a_global, settings=stated(by_a_global)),
        Loop(
            loss=loops.annealed_by_a_tensor,
            batches=loops.with_numbers,
            settings=stated(loops.annealed_by_a_tensor, loops.with_numbers()[0]),
        ),
    ),
    "a number that a watched loss reads": (
        "give batch=(inputs, targets), all that the loss reads, and what changes as a tensor",
        Loop(loss=loops.warmed_up),
        Loop(loss=loops.annealed_by_a_tensor, batches=loops.with_numbers),
    ),
    "autocast that is not stated": (
        "put `with torch.autocast(...)` inside `loss=`",
        Loop(loss=function_in_bfloat16, settings=stated(remedies.doubled)),
        Loop(loss=function_in_bfloat16, settings=stated(doubled_in_bfloat16)),
    ),
    "momentum from before": (
        "set dampening=0",
        Loop(optimizer=already_stepped(0.5)),
        Loop(optimizer=already_stepped(0.0)),
    ),
    "momentum from before, recorded from there": (
        "or record from its first step",
        Loop(optimizer=already_stepped(0.5)),
        Loop(optimizer=damped),
    ),
    "a parameter of another module": (
        "record the model that has them all",
        Loop(model=lambda: WithScale(False), optimizer=of_all_weights),
        Loop(model=lambda: WithScale(True), optimizer=of_all_weights),
    ),
    "an unknown optimizer": (
        "SGD; use one of them",
        Loop(optimizer=made("Rprop")),
        Loop(optimizer=made("SGD", lr=1e-2)),
    ),
    "a tensor as rate": (
        "give a float",
        Loop(optimizer=made("RMSprop", lr=torch.tensor(0.01))),
        Loop(optimizer=made("RMSprop", lr=0.01)),
    ),
    "a tensor of 16 bits as rate": (
        "give a float",
        Loop(optimizer=made("AdamW", lr=torch.tensor(0.01, dtype=torch.float16), foreach=False)),
        Loop(optimizer=made("AdamW", lr=0.01, foreach=False)),
    ),
    "a fused Adagrad": (
        "set fused=False",
        Loop(optimizer=made("Adagrad", fused=True)),
        Loop(optimizer=made("Adagrad", fused=False)),
    ),
    "a fused AMSGrad": (
        "set fused=False",
        Loop(optimizer=made("AdamW", fused=True, amsgrad=True)),
        Loop(optimizer=made("AdamW", fused=False, amsgrad=True)),
    ),
    "a short batch behind dropout": (
        "give `loss=` and `example=`",
        Loop(model=loops.dropping, batches=loops.a_short_last_one, settings={"seed": 1}),
        Loop(model=loops.dropping, batches=loops.a_short_last_one, settings={"seed": 1} | stated(honest.squares)),
    ),
    "a layer thawed under AdamW": (
        "train them from the start with a learning rate of 0",
        Loop(before=loops.unfreezes),
        Loop(optimizer=of_two_groups, before=opens_its_first_group),
    ),
    "a layer thawed before the run": (
        "or record a run of its own from there, with a new optimizer",
        Loop(optimizer=thawed_in_the_same_optimizer),
        Loop(optimizer=thawed_in_a_new_optimizer),
    ),
    "a number that the loss does not use": (
        "or leave it out of the batch where the loss does not use it",
        Loop(given=loops.as_floats),
        PLAIN,
    ),
    "many lengths": (
        "pad to a few lengths",
        Loop(batches=of_three_lengths),
        Loop(loss=weighted, batches=padded_with_weights),
    ),
    "betas that move behind the step": (
        "change that before the next step begins",
        Loop(after_step=shrinks_its_betas_behind),
        Loop(before=shrinks_its_betas),
    ),
    "decay that moves behind the first step": (
        "leave the optimizer as it is while it is recorded",
        Loop(after_step=shrinks_its_decay),
        PLAIN,
    ),
    "a switch turned meanwhile": (
        "set them before the recording",
        Loop(before=rounds_more_later),
        Loop(optimizer=as_it_was_set),
    ),
    "a switch left by a validation": (
        "and put back what a validation changes",
        Loop(after_record=rounds_more),
        Loop(after_record=validates_as_before),
    ),
    "averages put in across a record": (
        "or call `recorder.step` right after `optimizer.step()`",
        Loop(after_step=swapped_across_the_record(0.5), after_record=swapped_across_the_record(2.0)),
        Loop(after_record=swapped_behind_the_record),
    ),
    "a gradient given to backward": (
        "backward() was not called on one number; call it on the loss",
        Loop(backward=lambda loss: loss.backward(torch.tensor(2.0))),
        PLAIN,
    ),
    "micro-batches summed": (
        "divide each loss by 2, so that their mean is minimised",
        Loop(micro=lambda _: 2, backward=lambda loss: (loss * 2).backward()),
        Loop(micro=lambda _: 2),
    ),
    "gradients scaled by an activation": (
        "record the loop without it",
        Loop(loss=keeps_a_size, after_backward=scales_by_the_size),
        PLAIN,
    ),
    "an operator on lists": (
        "call it on one at a time",
        Loop(after_backward=normalises_as_a_list),
        Loop(after_backward=normalises_one_by_one),
    ),
    "a scaler": (
        "compute in bfloat16, which needs none",
        scaled_for_halves(),
        Loop(loss=in_bfloat16),
    ),
    "eager attention": (
        "others have attn_implementation='eager'",
        Loop(model=lambda: ByAttention("sdpa"), settings=stated(honest.squares)),
        Loop(model=lambda: ByAttention("eager"), settings=stated(honest.squares)),
    ),
}
FEW = {"many lengths": 0}
"""How many graphs are captured besides the first, where that is not as it is shipped."""


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Iterator[None]:
    """After the first step two are replayed while a loop runs; what it sets in PyTorch is put back."""
    monkeypatch.setattr("tallystick.recorders.self_check.SelfCheck.is_due", lambda _, index: index in {1, 5})
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("name", REMEDIES)
def test_a_remedy_mends_what_its_message_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    remedy, broken, mended = REMEDIES[name]
    if name in FEW:
        monkeypatch.setattr("tallystick.recorders.step_graphs.CAPTURES_MAX", FEW[name])
    said = said_by(broken, tmp_path / "broken")
    assert any(remedy in line for line in said), said
    verdict = loops.audited(tmp_path / "broken")
    assert (verdict.outcome, verdict.objections) == ("inconclusive", ())
    torch.set_float32_matmul_precision("highest")
    assert said_by(mended, tmp_path / "mended") == []
    assert loops.audited(tmp_path / "mended").outcome == "accepted"


@pytest.mark.parametrize("remedy", ["deterministic", "thread"])
def test_what_mends_kernels_with_other_bits_each_time(tmp_path: Path, two_threads: None, remedy: str) -> None:
    loop = Loop(model=Unsteady, settings=stated(honest.squares))
    said = said_by(loop, tmp_path / "broken")
    line = "two eager steps have not the same bits, first in loss: call torch.use_deterministic_algorithms(True), or"
    assert any(f"{line} use one thread" in each for each in said), said
    torch.use_deterministic_algorithms(remedy == "deterministic")
    try:
        torch.set_num_threads(1 if remedy == "thread" else 2)
        assert said_by(loop, tmp_path / "mended") == []
        assert loops.audited(tmp_path / "mended").outcome == "accepted"
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_mends_kernels_that_differ_when_a_step_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay whose last bits differ each time stands for kernels that add up in the order of threads."""
    from tallystick.recorders.self_check import SelfCheck

    replay, calls = SelfCheck.replay, [0]

    def unsteadily(self: Any, *given: Any) -> Any:
        calls[0] += 1
        factor = 1.0 if torch.are_deterministic_algorithms_enabled() else 1.0 + 1e-6 * calls[0]
        return {
            name: value * factor if value.is_floating_point() else value for name, value in replay(self, *given).items()
        }

    monkeypatch.setattr(SelfCheck, "replay", unsteadily)
    said = said_by(PLAIN, tmp_path / "broken")
    assert any("kernels here give other bits each time; use torch.use_determ" in line for line in said), said
    torch.use_deterministic_algorithms(True)
    try:
        assert said_by(PLAIN, tmp_path / "mended") == []
        assert loops.audited(tmp_path / "mended").outcome == "accepted"
    finally:
        torch.use_deterministic_algorithms(False)
