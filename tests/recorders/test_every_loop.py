"""At least sixty honest loops, drawn worst for them: none is rejected, and each states its verdict."""

from __future__ import annotations

import copy
import math
import warnings
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tests.recorders import honest
from tests.recorders.honest import Loop

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

GOOD, OPEN = "accepted", "inconclusive"


# What is done to gradients, between the backward pass and the optimizer's step.


def clips(**stated: Any) -> Any:
    return lambda step, model, optimizer: nn.utils.clip_grad_norm_(model.parameters(), **stated)


def clips_values(step: int, model: Any, optimizer: Any) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 0.01)


def clips_some(step: int, model: Any, optimizer: Any) -> None:
    nn.utils.clip_grad_norm_(model[0].parameters(), 0.05)


def clips_each_layer(step: int, model: Any, optimizer: Any) -> None:
    nn.utils.clip_grad_norm_(model[0].parameters(), 0.05)
    nn.utils.clip_grad_norm_(model[2].parameters(), 0.1)


def clips_each_parameter(step: int, model: Any, optimizer: Any) -> None:
    for each in model.parameters():
        nn.utils.clip_grad_norm_([each], 0.05)


def clips_by_hand(step: int, model: Any, optimizer: Any) -> None:
    norm = torch.sqrt(sum(each.grad.square().sum() for each in model.parameters()))
    for each in model.parameters():
        each.grad.mul_(torch.clamp(0.05 / (norm + 1e-6), max=1.0))


def clips_in_python(step: int, model: Any, optimizer: Any) -> None:
    norm = math.sqrt(sum(float(each.grad.square().sum()) for each in model.parameters()))
    if norm > 0.05:
        for each in model.parameters():
            each.grad.mul_(0.05 / norm)


def clips_twice(step: int, model: Any, optimizer: Any) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    nn.utils.clip_grad_value_(model.parameters(), 0.01)


def clips_from_the_fourth(step: int, model: Any, optimizer: Any) -> None:
    if step >= 3:
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def clips_tighter_later(step: int, model: Any, optimizer: Any) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.05 if step < 4 else 0.01)


def adapts_its_clip(step: int, model: Any, optimizer: Any) -> None:
    """Adaptive gradient clipping: by the norm of each weight."""
    for each in model.parameters():
        limit = each.detach().norm().clamp(min=1e-3) * 0.01
        each.grad.mul_((limit / each.grad.norm().clamp(min=1e-6)).clamp(max=1.0))


def centralises(step: int, model: Any, optimizer: Any) -> None:
    for each in model.parameters():
        if each.dim() > 1:
            each.grad.sub_(each.grad.mean(dim=1, keepdim=True))


def adds_noise(step: int, model: Any, optimizer: Any) -> None:
    for each in model.parameters():
        each.grad.add_(torch.randn_like(each), alpha=1e-3)


def takes_signs(step: int, model: Any, optimizer: Any) -> None:
    for each in model.parameters():
        each.grad.sign_()


def replaces_gradients(step: int, model: Any, optimizer: Any) -> None:
    for each in model.parameters():
        each.grad = each.grad * 0.5


def edits_through_data(step: int, model: Any, optimizer: Any) -> None:
    for each in model.parameters():
        each.grad.data.mul_(0.5)


def edits_through_data_once(step: int, model: Any, optimizer: Any) -> None:
    if step == 4:
        edits_through_data(step, model, optimizer)


def removes_nan(step: int, model: Any, optimizer: Any) -> None:
    for each in model.parameters():
        torch.nan_to_num_(each.grad, nan=0.0, posinf=0.0, neginf=0.0)


def scales_once(step: int, model: Any, optimizer: Any) -> None:
    if step == 4:
        for each in model.parameters():
            each.grad.mul_(0.5)


def decays_by_hand(step: int, model: Any, optimizer: Any) -> None:
    for each in model.parameters():
        each.grad.add_(each.detach(), alpha=1e-2)


# What is done to weights, between the optimizer's step and the record, or behind it.


def clamps(step: int, model: Any, optimizer: Any) -> None:
    with torch.no_grad():
        for each in model.parameters():
            each.clamp_(-0.3, 0.3)


def clamps_data(step: int, model: Any, optimizer: Any) -> None:
    for each in model.parameters():
        each.data.clamp_(-0.3, 0.3)


def clamps_data_once(step: int, model: Any, optimizer: Any) -> None:
    if step == 4:
        clamps_data(step, model, optimizer)


def normalises(step: int, model: Any, optimizer: Any) -> None:
    with torch.no_grad():
        model[0].weight.div_(model[0].weight.norm(dim=1, keepdim=True))


def assigns_normalised_data(step: int, model: Any, optimizer: Any) -> None:
    model[0].weight.data = functional.normalize(model[0].weight.data, dim=1)


def projects_spectrally(step: int, model: Any, optimizer: Any) -> None:
    with torch.no_grad():
        model[0].weight.div_(max(1.0, float(torch.linalg.matrix_norm(model[0].weight, 2))))


def limits_norms(step: int, model: Any, optimizer: Any) -> None:
    with torch.no_grad():
        model[0].weight.copy_(torch.renorm(model[0].weight, 2, 0, 0.5))


def decays_behind(step: int, model: Any, optimizer: Any) -> None:
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(0.999)


def ties_again(step: int, model: Any, optimizer: Any) -> None:
    with torch.no_grad():
        model[2].weight.copy_(model[0].weight[:, :1].T)


def prunes(step: int, model: Any, optimizer: Any) -> None:
    with torch.no_grad():
        model[0].weight[0].zero_()


def begins_anew(step: int, model: Any, optimizer: Any) -> None:
    if step == 4:
        torch.manual_seed(3)
        model[2].reset_parameters()


def forgets_moments(step: int, model: Any, optimizer: Any) -> None:
    if step == 4:
        optimizer.state.clear()


def goes_to_averages(step: int, model: Any, optimizer: Any) -> None:
    """Averages are put into the model for a validation, and the weights are put back."""
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict({name: value * 0.9 for name, value in kept.items()})
    with torch.no_grad():
        model.eval()(torch.ones(2, 3))
    model.train().load_state_dict(kept)


def looks_ahead(step: int, model: Any, optimizer: Any) -> None:
    """Every third step half way back to the slow weights."""
    slow = model.__dict__.setdefault("slow", {name: value.clone() for name, value in model.state_dict().items()})
    if step % 3 == 2:
        with torch.no_grad():
            for name, value in model.named_parameters():
                slow[name].lerp_(value, 0.5)
                value.copy_(slow[name])


# What is done to the loss.


def with_a_term_in_every_seventh(step: int, model: Any, batch: Any) -> Any:
    loss = honest.squares(step, model, batch)
    return loss + 0.1 * model[0].weight.square().sum() if step % 7 == 3 else loss


def annealed(step: int, model: Any, batch: Any) -> Any:
    return functional.mse_loss(model(batch[0]) / (1.0 + 0.1 * step), batch[1])


def annealed_by_a_tensor(step: int, model: Any, batch: Any) -> Any:
    return functional.mse_loss(model(batch[0]) / batch[2], batch[1])


def mixed(step: int, model: Any, batch: Any) -> Any:
    share = 0.2 + 0.07 * step
    x, y = (share * each + (1 - share) * each.flip(0) for each in batch[:2])
    return functional.mse_loss(model(x), y)


def mixed_by_a_tensor(step: int, model: Any, batch: Any) -> Any:
    x, y = (batch[2] * each + (1 - batch[2]) * each.flip(0) for each in batch[:2])
    return functional.mse_loss(model(x), y)


def smoothed(step: int, model: Any, batch: Any) -> Any:
    scores = model(batch[0])
    return functional.cross_entropy(scores, batch[1], label_smoothing=0.1 if step < 5 else 0.0)


def of_classes(step: int, model: Any, batch: Any) -> Any:
    return functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)


def huber_later(step: int, model: Any, batch: Any) -> Any:
    return functional.smooth_l1_loss(model(batch[0]), batch[1]) if step >= 5 else honest.squares(step, model, batch)


def penalised(step: int, model: Any, batch: Any) -> Any:
    return honest.squares(step, model, batch) + 1e-3 * sum(each.abs().sum() for each in model.parameters())


def warmed_up(step: int, model: Any, batch: Any) -> Any:
    return honest.squares(step, model, batch) * min(1.0, (step + 1) / 4)


def drawn_noise(step: int, model: Any, batch: Any) -> Any:
    return functional.mse_loss(model(batch[0] + 0.1 * torch.randn_like(batch[0])), batch[1])


def on_a_random_half(step: int, model: Any, batch: Any) -> Any:
    rows = torch.randperm(8)[:4]
    return functional.mse_loss(model(batch[0][rows]), batch[1][rows])


def scored_by_a_teacher(step: int, model: Any, batch: Any) -> Any:
    if "teacher" not in model.__dict__:
        model.__dict__["teacher"] = copy.deepcopy(model)
    with torch.no_grad():
        wanted = model.__dict__["teacher"](batch[0])
    return functional.mse_loss(model(batch[0]), wanted + batch[1])


def with_hard_examples(step: int, model: Any, batch: Any) -> Any:
    errors = (model(batch[0]) - batch[1]).square().flatten()
    return errors.topk(4).values.mean()


def balanced_by_values(step: int, model: Any, batch: Any) -> Any:
    loss = honest.squares(step, model, batch)
    return loss / float(loss.detach()) if float(loss.detach()) > 1 else loss


def once_scaled(step: int) -> float:
    return 3.0 if step == 4 else 1.0


def always_scaled(step: int) -> float:
    return 3.0


def scaled_every_seventh(step: int) -> float:
    return 2.0 if step % 7 == 3 else 1.0


# Models, optimizers and batches.


def classifier() -> Any:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))


def normed() -> Any:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


def dropping() -> Any:
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 1))


def labelled() -> Any:
    generator = torch.Generator().manual_seed(5)
    draws = range(honest.STEPS)
    return [(torch.randn(8, 3, generator=generator), torch.randint(0, 4, (8,), generator=generator)) for _ in draws]


def with_numbers() -> Any:
    return [(*batch, torch.tensor(0.2 + 0.07 * step)) for step, batch in enumerate(honest.rows())]


def of_two_lengths() -> Any:
    return [tuple(each[:4] if step % 3 == 2 else each for each in batch) for step, batch in enumerate(honest.rows())]


def a_short_last_one() -> Any:
    *most, last = honest.rows()
    return [*most, tuple(each[:3] for each in last)]


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def two(model: Any) -> Any:
    return [torch.optim.AdamW(model[0].parameters(), lr=1e-2), torch.optim.SGD(model[2].parameters(), lr=1e-2)]


def grouped(model: Any) -> Any:
    groups = [{"params": [*model[0].parameters()], "lr": 1e-2}, {"params": [*model[2].parameters()], "lr": 1e-3}]
    return torch.optim.AdamW(groups)


def validates(step: int, model: Any, optimizer: Any) -> None:
    with torch.no_grad():
        model.eval()(torch.ones(4, 3))
    model.train()


def validates_in_training_mode(step: int, model: Any, optimizer: Any) -> None:
    if step % 3 == 1:
        with torch.no_grad():
            model(torch.ones(4, 3))


def freezes_statistics(step: int, model: Any, optimizer: Any) -> None:
    if step == 4:
        model.eval()


def toggles(step: int, model: Any, optimizer: Any) -> None:
    model.eval()
    model.train()


def freezes(step: int, model: Any, optimizer: Any) -> None:
    if step == 4:
        model[0].requires_grad_(False)


def unfreezes(step: int, model: Any, optimizer: Any) -> None:
    model[0].requires_grad_(step >= 4)


def sets_rate(step: int, model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = 1e-2 * 0.9**step


def sets_decay(step: int, model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.1 + 0.01 * step


def sets_momentum(step: int, model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["momentum"] = 0.9 - 0.05 * step


def perturbs(step: int, model: Any, optimizer: Any) -> None:
    """Sharpness-aware minimisation: a second pass at weights that are moved along the gradient, and moved back."""
    batch, moved = honest.rows()[step], []
    with torch.no_grad():
        norm = torch.sqrt(sum(each.grad.square().sum() for each in model.parameters()))
        for each in model.parameters():
            moved.append(each.grad * (0.05 / norm))
            each.add_(moved[-1])
    optimizer.zero_grad()
    honest.squares(step, model, batch).backward()
    with torch.no_grad():
        for each, shift in zip(model.parameters(), moved, strict=True):
            each.sub_(shift)


def skips(step: int, model: Any, optimizer: Any) -> bool:
    return step != 4


def steps_twice(step: int, model: Any, optimizer: Any) -> bool:
    if step == 4:
        optimizer.step()
    return True


def as_lists(step: int, batch: Any) -> Any:
    return [*batch]


def without_targets(step: int, batch: Any) -> Any:
    return (batch[0],)


def as_floats(step: int, batch: Any) -> Any:
    return (*batch, 1.0 + 0.1 * step)


def no_batch(step: int, batch: Any) -> Any:
    return None


LOOPS: dict[str, tuple[str, Loop]] = {
    "plain": (GOOD, Loop()),
    "clipped in the L2 norm": (GOOD, Loop(after_backward=clips(max_norm=0.05))),
    "clipped in the largest norm": (GOOD, Loop(after_backward=clips(max_norm=0.01, norm_type=float("inf")))),
    "clipped in the L1 norm": (GOOD, Loop(after_backward=clips(max_norm=0.2, norm_type=1.0))),
    "clipped in the L3 norm": (GOOD, Loop(after_backward=clips(max_norm=0.05, norm_type=3.0))),
    "clipped without foreach": (GOOD, Loop(after_backward=clips(max_norm=0.05, norm_type=1.0, foreach=False))),
    "clipped by value": (GOOD, Loop(after_backward=clips_values)),
    "one layer clipped": (GOOD, Loop(after_backward=clips_some)),
    "each layer clipped": (GOOD, Loop(after_backward=clips_each_layer)),
    "each parameter clipped": (GOOD, Loop(after_backward=clips_each_parameter)),
    "clipped by hand": (GOOD, Loop(after_backward=clips_by_hand)),
    "clipped by a branch in Python": (OPEN, Loop(after_backward=clips_in_python)),
    "clipped by norm and value": (GOOD, Loop(after_backward=clips_twice)),
    "clipped from step 4 on": (OPEN, Loop(after_backward=clips_from_the_fourth)),
    "clipped tighter from step 5 on": (OPEN, Loop(after_backward=clips_tighter_later)),
    "clipped by the weights": (GOOD, Loop(after_backward=adapts_its_clip)),
    "gradients centralised": (GOOD, Loop(after_backward=centralises)),
    "noise on gradients": (OPEN, Loop(after_backward=adds_noise)),
    "signs of gradients": (GOOD, Loop(after_backward=takes_signs, optimizer=sgd)),
    "gradients replaced": (GOOD, Loop(after_backward=replaces_gradients)),
    "gradients scaled through data": (GOOD, Loop(after_backward=edits_through_data)),
    "gradients scaled through data once": (OPEN, Loop(after_backward=edits_through_data_once)),
    "gradients without NaN": (GOOD, Loop(after_backward=removes_nan)),
    "gradients scaled in one step": (OPEN, Loop(after_backward=scales_once)),
    "decay added to gradients": (GOOD, Loop(after_backward=decays_by_hand)),
    "weights clamped": (GOOD, Loop(after_step=clamps)),
    "weights clamped through data": (GOOD, Loop(after_step=clamps_data)),
    "weights clamped behind the record": (OPEN, Loop(after_record=clamps)),
    "weights clamped through data behind the record": (OPEN, Loop(after_record=clamps_data)),
    "weights clamped through data in one step": (OPEN, Loop(after_step=clamps_data_once)),
    "weights normalised": (GOOD, Loop(after_step=normalises)),
    "weights normalised by another tensor": (OPEN, Loop(after_step=assigns_normalised_data)),
    "weights projected to a spectral norm": (OPEN, Loop(after_step=projects_spectrally)),
    "norms of rows limited": (OPEN, Loop(after_step=limits_norms)),
    "weights decayed behind the step": (GOOD, Loop(after_step=decays_behind)),
    "weights tied again": (GOOD, Loop(after_step=ties_again)),
    "weights pruned": (GOOD, Loop(after_step=prunes)),
    "a layer begun anew": (OPEN, Loop(before=begins_anew)),
    "moments forgotten": (OPEN, Loop(before=forgets_moments)),
    "averages put in for a validation": (GOOD, Loop(after_record=goes_to_averages)),
    "averages put in before the record": (GOOD, Loop(after_step=goes_to_averages)),
    "lookahead": (OPEN, Loop(after_step=looks_ahead)),
    "a term in every seventh step": (OPEN, Loop(loss=with_a_term_in_every_seventh)),
    "temperature as a number": (OPEN, Loop(loss=annealed)),
    "temperature as a tensor": (GOOD, Loop(loss=annealed_by_a_tensor, batches=with_numbers)),
    "mixup by a number": (OPEN, Loop(loss=mixed)),
    "mixup by a tensor": (GOOD, Loop(loss=mixed_by_a_tensor, batches=with_numbers)),
    "label smoothing": (GOOD, Loop(loss=of_classes, model=classifier, batches=labelled)),
    "label smoothing that ends": (OPEN, Loop(loss=smoothed, model=classifier, batches=labelled)),
    "another loss from step 6 on": (OPEN, Loop(loss=huber_later)),
    "L1 penalty": (GOOD, Loop(loss=penalised)),
    "loss warmed up": (OPEN, Loop(loss=warmed_up)),
    "noise on inputs": (OPEN, Loop(loss=drawn_noise)),
    "a random half of the batch": (OPEN, Loop(loss=on_a_random_half)),
    "a teacher": (GOOD, Loop(loss=scored_by_a_teacher)),
    "the hardest examples": (GOOD, Loop(loss=with_hard_examples)),
    "a loss divided by its value": (OPEN, Loop(loss=balanced_by_values)),
    "loss scaled in one step": (OPEN, Loop(scaled=once_scaled)),
    "loss scaled in every step": (OPEN, Loop(scaled=always_scaled)),
    "loss scaled in every seventh step": (OPEN, Loop(scaled=scaled_every_seventh)),
    "batch norm": (GOOD, Loop(model=normed)),
    "batch norm, validated": (GOOD, Loop(model=normed, after_record=validates)),
    "batch norm, validated in training mode": (OPEN, Loop(model=normed, after_record=validates_in_training_mode)),
    "batch norm, frozen later": (OPEN, Loop(model=normed, before=freezes_statistics)),
    "modes toggled": (GOOD, Loop(model=normed, before=toggles)),
    "dropout": (GOOD, Loop(model=dropping)),
    "dropout from a seed": (GOOD, Loop(model=dropping, settings={"seed": 1})),
    "a layer frozen later": (GOOD, Loop(before=freezes)),
    "a layer thawed later": (OPEN, Loop(before=unfreezes, optimizer=sgd)),
    "rate set in the loop": (GOOD, Loop(before=sets_rate)),
    "rate set behind the step": (GOOD, Loop(after_step=sets_rate)),
    "weight decay in motion": (GOOD, Loop(before=sets_decay)),
    "momentum in motion": (OPEN, Loop(before=sets_momentum, optimizer=sgd)),
    "momentum": (GOOD, Loop(optimizer=sgd)),
    "two optimizers": (GOOD, Loop(optimizer=two)),
    "two groups": (GOOD, Loop(optimizer=grouped)),
    "two groups, one clipped": (GOOD, Loop(optimizer=grouped, after_backward=clips_some)),
    "gradients set to zero": (GOOD, Loop(set_to_none=False)),
    "two micro-batches": (GOOD, Loop(micro=lambda _: 2)),
    "two micro-batches, clipped by value": (GOOD, Loop(micro=lambda _: 2, after_backward=clips_values)),
    "more micro-batches later": (GOOD, Loop(micro=lambda step: 2 if step < 5 else 4)),
    "micro-batches from step 6 on": (GOOD, Loop(micro=lambda step: 1 if step < 5 else 2)),
    "two passes (SAM)": (OPEN, Loop(after_backward=perturbs)),
    "a step left out": (OPEN, Loop(steps=skips)),
    "a step taken twice": (OPEN, Loop(steps=steps_twice)),
    "batches of two lengths": (GOOD, Loop(batches=of_two_lengths)),
    "a short last batch": (GOOD, Loop(batches=a_short_last_one)),
    "batches as lists": (GOOD, Loop(given=as_lists)),
    "batches without their targets": (OPEN, Loop(given=without_targets)),
    "a number in the batch that moves": (OPEN, Loop(given=as_floats, loss=annealed)),
    "no batch given": (OPEN, Loop(given=no_batch)),
    "one anchor at the end": (GOOD, Loop(settings={"anchor_stride": 100})),
    "a term in every seventh step, one anchor": (
        OPEN,
        Loop(loss=with_a_term_in_every_seventh, settings={"anchor_stride": 100}),
    ),
    "only the last anchors stay": (OPEN, Loop(settings={"keep": "1"})),
    "loss scaled in one step, only the last anchors stay": (OPEN, Loop(scaled=once_scaled, settings={"keep": "1"})),
}


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    """The draw that is worst for an honest loop: after the first step none is replayed while it runs."""
    monkeypatch.setattr("tallystick.recorders.self_check.SelfCheck.is_due", lambda _, index: index == 1)


def audited(run: Path) -> Any:
    return tallystick.audit(run, tallystick.Policy(full=True)).report.verdict


@pytest.mark.parametrize("name", LOOPS)
def test_an_honest_loop_is_never_rejected(tmp_path: Path, name: str) -> None:
    outcome, loop = LOOPS[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop.train(tmp_path / "run")
    said = [str(each.message) for each in caught if each.category is RuntimeWarning]
    verdict = audited(tmp_path / "run")
    assert (verdict.outcome, verdict.objections) == (outcome, ()), (said, verdict.unavailable)
    if "only the last anchors" not in name:  # whether a draw meets such a step is chance
        assert bool(said) == (outcome == OPEN), said


@pytest.mark.parametrize(("name", "is_open"), [("weights clamped", True), ("plain", False)])
def test_weights_that_the_step_writes_into_are_not_screened_by_name(tmp_path: Path, name: str, is_open: bool) -> None:
    """A prover who adds such a write turns a screen off, and the report says so."""
    LOOPS[name][1].train(tmp_path / "run")
    line = "how far 4 weights moved (weights.0.bias): the step writes into them after its update"
    assert (line in audited(tmp_path / "run").not_checked) == is_open


def test_there_are_at_least_sixty_of_them() -> None:
    assert len(LOOPS) >= 60
