"""The arithmetic of optimizers that divide by means or sums of squared gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from tallystick.engines.torch.kernels import fused_adam
from tallystick.engines.torch.optimizers.catalogue import (
    Group,
    KnownOptimizer,
    Scalars,
    Tensors,
    Updated,
    decayed,
    decayed_either_way,
    pair,
    picked,
    refuse_fused,
    wide,
)
from tallystick.formats.optimizers import (
    AdadeltaRule,
    AdafactorRule,
    AdagradRule,
    AdamaxRule,
    AdamRule,
    NadamRule,
    RadamRule,
    RmspropRule,
    TransformersAdafactorRule,
)

# The arithmetic of `torch.optim.Adam` and `AdamW`, also with their fused kernel.


def adam_rule(_optimizer: torch.optim.Optimizer, group: Group) -> AdamRule:
    """The rule of a group."""
    rate, (first, second) = group["lr"], group["betas"]
    is_single = isinstance(rate, torch.Tensor) and rate.dtype == torch.float32 and not group["fused"]
    return AdamRule(
        kind="adamw" if group["decoupled_weight_decay"] else "adam",
        betas=(first, second),
        fused=bool(group["fused"]),
        rate_dtype="F32" if is_single else None,
        **picked(group, "eps", "weight_decay", "maximize", "amsgrad"),
    )


def _refused(group: Group) -> Iterator[tuple[str, str]]:
    if group["fused"] and group["amsgrad"]:
        yield "fused=True", "set fused=False"
    rate = group["lr"]
    if isinstance(rate, torch.Tensor) and rate.dtype not in {torch.float32, torch.float64}:
        yield f"a tensor of {rate.dtype} as lr", "give a float"


def update_adam(
    rule: AdamRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of Adam, AdamW or AMSGrad."""
    if rule.fused:
        return _fused(rule, parameter, gradient, slots, scalars)
    gradient = -gradient if rule.maximize else gradient
    first, second = rule.betas
    if rule.weight_decay and rule.kind == "adamw":
        parameter = (wide(parameter) * scalars.wide["decay"]).to(parameter.dtype)
    elif rule.weight_decay:
        gradient = gradient.add(parameter, alpha=rule.weight_decay)
    mean = slots["exp_avg"].lerp(gradient, 1 - first)
    square = (slots["exp_avg_sq"] * second).addcmul(gradient, gradient, value=1 - second)
    kept = {"step": slots["step"] + 1, "exp_avg": mean, "exp_avg_sq": square}
    if rule.amsgrad:
        kept["max_exp_avg_sq"] = square = torch.maximum(slots["max_exp_avg_sq"], square)
    denominator = (wide(square.sqrt()) / scalars.wide["root_correction"]).to(square.dtype).add(rule.eps)
    moved = torch.addcdiv(wide(parameter), wide(mean) * scalars.wide["step_size"], wide(denominator))
    return moved.to(parameter.dtype), kept


def _fused(
    rule: AdamRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One kernel for all of Adam, which rounds otherwise than single operators, and its scalars itself."""
    step, (first, second) = slots["step"] + 1, rule.betas
    tensors = (parameter, gradient, slots["exp_avg"], slots["exp_avg_sq"], step, scalars.exact["learning_rate"])
    settings = (first, second, rule.eps, rule.weight_decay, rule.kind == "adamw", rule.maximize)
    moved, mean, square = fused_adam(*tensors, *settings)
    return moved, {"step": step, "exp_avg": mean, "exp_avg_sq": square}


ADAM: Final = KnownOptimizer(adam_rule, update_adam, _refused, takes_tensor_rate=True)


# The arithmetic of `torch.optim.Adamax`.


def adamax_rule(_optimizer: torch.optim.Optimizer, group: Group) -> AdamaxRule:
    """The rule of a group."""
    return AdamaxRule(betas=pair(group["betas"]), **picked(group, "eps", "weight_decay", "maximize"))


def update_adamax(
    rule: AdamaxRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of Adamax."""
    gradient = decayed(rule, parameter, gradient, rule.maximize)
    mean = slots["exp_avg"].lerp(gradient, 1 - rule.betas[0])
    largest = torch.maximum(slots["exp_inf"] * rule.betas[1], gradient.abs().add(rule.eps))
    kept = {"step": slots["step"] + 1, "exp_avg": mean, "exp_inf": largest}
    return torch.addcdiv(parameter, mean * scalars["step_size"], largest), kept


ADAMAX: Final = KnownOptimizer(adamax_rule, update_adamax)


# The arithmetic of `torch.optim.NAdam`.


def nadam_rule(_optimizer: torch.optim.Optimizer, group: Group) -> NadamRule:
    """The rule of a group."""
    return NadamRule(
        betas=pair(group["betas"]),
        decoupled=group["decoupled_weight_decay"],
        **picked(group, "eps", "weight_decay", "momentum_decay", "maximize"),
    )


def update_nadam(
    rule: NadamRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of NAdam; the sizes of both moves follow from the product of momenta in float64."""
    parameter, gradient = decayed_either_way(rule, parameter, gradient, scalars)
    first, second = rule.betas
    product = slots["mu_product"] * scalars.exact["mu"].to(torch.float32)
    mean = slots["exp_avg"].lerp(gradient, 1 - first)
    square = (slots["exp_avg_sq"] * second).addcmul(gradient, gradient, value=1 - second)
    kept = {"step": slots["step"] + 1, "mu_product": product, "exp_avg": mean, "exp_avg_sq": square}
    root = (square / scalars["correction"]).sqrt().add(rule.eps)
    wide = product.to(torch.float64)
    of_gradient = scalars.exact["gradient_size"] / (1.0 - wide)
    of_mean = scalars.exact["mean_size"] / (1.0 - wide * scalars.exact["mu_next"])
    moved = torch.addcdiv(parameter, gradient * of_gradient.to(parameter.dtype), root)
    return torch.addcdiv(moved, mean * of_mean.to(parameter.dtype), root), kept


NADAM: Final = KnownOptimizer(nadam_rule, update_nadam)


# The arithmetic of `torch.optim.RAdam`.


def radam_rule(_optimizer: torch.optim.Optimizer, group: Group) -> RadamRule:
    """The rule of a group."""
    return RadamRule(
        betas=pair(group["betas"]),
        decoupled=group["decoupled_weight_decay"],
        **picked(group, "eps", "weight_decay", "maximize"),
    )


def update_radam(
    rule: RadamRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of RAdam: both of its branches, of which the rectification chooses one."""
    parameter, gradient = decayed_either_way(rule, parameter, gradient, scalars)
    first, second = rule.betas
    mean = slots["exp_avg"].lerp(gradient, 1 - first)
    square = (slots["exp_avg_sq"] * second).addcmul(gradient, gradient, value=1 - second)
    kept = {"step": slots["step"] + 1, "exp_avg": mean, "exp_avg_sq": square}
    move = mean / scalars["correction"] * scalars["learning_rate"]
    adaptive = square.sqrt().add(rule.eps).reciprocal() * scalars["root_correction"]
    rectified = move * adaptive * scalars["rectification"]
    return parameter - torch.where(scalars["rectification"] > 0, rectified, move), kept


RADAM: Final = KnownOptimizer(radam_rule, update_radam)


# The arithmetic of `torch.optim.Adadelta`.


def adadelta_rule(_optimizer: torch.optim.Optimizer, group: Group) -> AdadeltaRule:
    """The rule of a group."""
    return AdadeltaRule(**picked(group, "rho", "eps", "weight_decay", "maximize"))


def update_adadelta(
    rule: AdadeltaRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of Adadelta."""
    gradient = decayed(rule, parameter, gradient, rule.maximize)
    square = (slots["square_avg"] * rule.rho).addcmul(gradient, gradient, value=1 - rule.rho)
    root, moves = square.add(rule.eps).sqrt(), slots["acc_delta"].add(rule.eps).sqrt()
    move = moves / root * gradient
    kept = {
        "step": slots["step"] + 1,
        "square_avg": square,
        "acc_delta": (slots["acc_delta"] * rule.rho).addcmul(move, move, value=1 - rule.rho),
    }
    return torch.addcmul(parameter, move, scalars["step_size"]), kept


ADADELTA: Final = KnownOptimizer(adadelta_rule, update_adadelta)


# The arithmetic of `torch.optim.Adagrad`.


def adagrad_rule(optimizer: torch.optim.Optimizer, group: Group) -> AdagradRule:
    """The rule of a group; the sums of all groups start at one number."""
    start = optimizer.defaults["initial_accumulator_value"]
    return AdagradRule(initial_accumulator_value=start, **picked(group, "lr_decay", "eps", "weight_decay", "maximize"))


def update_adagrad(
    rule: AdagradRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of Adagrad."""
    gradient = decayed(rule, parameter, gradient, rule.maximize)
    total = slots["sum"].addcmul(gradient, gradient)
    kept = {"step": slots["step"] + 1, "sum": total}
    return torch.addcdiv(parameter, gradient * scalars["step_size"], total.sqrt().add(rule.eps)), kept


ADAGRAD: Final = KnownOptimizer(adagrad_rule, update_adagrad, refuse_fused)


# The arithmetic of `torch.optim.RMSprop`.


def rmsprop_rule(_optimizer: torch.optim.Optimizer, group: Group) -> RmspropRule:
    """The rule of a group."""
    return RmspropRule(**picked(group, "alpha", "eps", "weight_decay", "momentum", "centered", "maximize"))


def update_rmsprop(
    rule: RmspropRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of RMSprop."""
    gradient = decayed(rule, parameter, gradient, rule.maximize)
    square = (slots["square_avg"] * rule.alpha).addcmul(gradient, gradient, value=1 - rule.alpha)
    kept = {"step": slots["step"] + 1, "square_avg": square}
    if rule.centered:
        kept["grad_avg"] = mean = slots["grad_avg"].lerp(gradient, 1 - rule.alpha)
        square = square.addcmul(mean, mean, value=-1)
    root = square.sqrt().add(rule.eps)
    if rule.momentum:
        kept["momentum_buffer"] = moving = (slots["momentum_buffer"] * rule.momentum).addcdiv(gradient, root)
        return torch.addcmul(parameter, moving, scalars["step_size"]), kept
    return torch.addcdiv(parameter, gradient * scalars["step_size"], root), kept


RMSPROP: Final = KnownOptimizer(rmsprop_rule, update_rmsprop)


# The arithmetic of `torch.optim.Adafactor`.


def adafactor_rule(_optimizer: torch.optim.Optimizer, group: Group) -> AdafactorRule:
    """The rule of a group."""
    first, second = group["eps"]
    return AdafactorRule(
        eps1=first, eps2=second, clip=group["d"], **picked(group, "beta2_decay", "weight_decay", "maximize")
    )


def update_adafactor(
    rule: AdafactorRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of Adafactor; norms become numbers of Python, so what follows from them is computed in float64."""
    gradient = -gradient if rule.maximize else gradient
    least = torch.finfo(parameter.dtype).eps if rule.eps1 is None else rule.eps1
    size = (parameter.norm(2).double() / parameter.numel() ** 0.5).clamp(min=rule.eps2) * scalars.exact["rho"]
    if rule.weight_decay:
        parameter = parameter * scalars["decay"]
    moments, estimate = _second_moment(gradient, slots, scalars["moment_share"], least)
    move = estimate.clamp(min=least * least).rsqrt() * gradient
    limit = (move.norm(2).double() / (move.numel() ** 0.5 * rule.clip)).clamp(min=1.0)
    kept = {"step": slots["step"] + 1, **moments}
    return torch.addcmul(parameter, move, (-size / limit).to(parameter.dtype)), kept


def _second_moment(
    gradient: torch.Tensor, slots: Tensors, share: torch.Tensor, least: float
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The slots of the second moment, and its estimate of the gradient's shape."""
    if gradient.dim() < 2:
        variance = torch.lerp(slots["variance"], gradient * gradient, share)
        return {"variance": variance}, variance
    rows = torch.norm(gradient, dim=-1, keepdim=True).square() / gradient.size(-1)
    columns = torch.norm(gradient, dim=-2, keepdim=True).square() / gradient.size(-2)
    row, column = torch.lerp(slots["row_var"], rows, share), torch.lerp(slots["col_var"], columns, share)
    return {"row_var": row, "col_var": column}, row @ column / row.mean(dim=-2, keepdim=True).clamp(min=least)


ADAFACTOR: Final = KnownOptimizer(adafactor_rule, update_adafactor)


# The arithmetic of `transformers.Adafactor`.


def transformers_adafactor_rule(_optimizer: torch.optim.Optimizer, group: Group) -> TransformersAdafactorRule:
    """The rule of a group."""
    names = ("clip_threshold", "decay_rate", "beta1", "weight_decay", "scale_parameter", "relative_step", "warmup_init")
    return TransformersAdafactorRule(eps=pair(group["eps"]), **picked(group, *names))


def _refused_transformers(group: Group) -> Iterator[tuple[str, str]]:
    """A tensor as learning rate, but where none is read: `AdafactorSchedule` writes its own into the group."""
    if isinstance(group["lr"], torch.Tensor) and not group["relative_step"]:
        yield "a tensor as lr", "give a float"


def update_transformers_adafactor(
    rule: TransformersAdafactorRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of Adafactor."""
    root, decay = _root_mean_square(parameter), -rule.weight_decay
    kept = {"step": slots["step"] + 1, "RMS": root}
    moments, move = _scaled(rule, gradient, slots, scalars)
    kept |= moments
    move = move / (_root_mean_square(move) / rule.clip_threshold).clamp(min=1.0)
    move = move * _of_rate(rule, root, scalars, 1.0)
    if rule.beta1 is not None:
        kept["exp_avg"] = move = (slots["exp_avg"] * rule.beta1).add(move, alpha=1 - rule.beta1)
    if rule.weight_decay:
        parameter = torch.addcmul(parameter, parameter, _of_rate(rule, root, scalars, decay))
    return parameter + -move, kept


def _scaled(
    rule: TransformersAdafactorRule, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The slots of the second moment, and the gradient divided by its root."""
    square = gradient**2 + rule.eps[0]
    if gradient.dim() < 2:
        moment = _faded(slots["exp_avg_sq"], square, scalars)
        return {"exp_avg_sq": moment}, moment.rsqrt() * gradient
    row = _faded(slots["exp_avg_sq_row"], square.mean(dim=-1), scalars)
    column = _faded(slots["exp_avg_sq_col"], square.mean(dim=-2), scalars)
    shares = (row / row.mean(dim=-1, keepdim=True)).rsqrt().unsqueeze(-1)
    return {"exp_avg_sq_row": row, "exp_avg_sq_col": column}, shares * column.unsqueeze(-2).rsqrt() * gradient


def _faded(moment: torch.Tensor, found: torch.Tensor, scalars: Scalars) -> torch.Tensor:
    return torch.addcmul(moment * scalars["moment_decay"], found, scalars["moment_share"])


def _of_rate(rule: TransformersAdafactorRule, root: torch.Tensor, scalars: Scalars, factor: float) -> torch.Tensor:
    """The learning rate times `factor` in float32: of a number of Python, or of the tensor that scales it."""
    if not rule.scale_parameter:
        return (scalars.exact["rate"] * factor).to(root.dtype)
    least = rule.eps[1]
    return torch.where(
        root > least, root * scalars["rate"] * factor, (scalars.exact["rate"] * least * factor).to(root.dtype)
    )


def _root_mean_square(values: torch.Tensor) -> torch.Tensor:
    root: torch.Tensor = values.norm(2) / values.numel() ** 0.5
    return root


ADAFACTOR_TRANSFORMERS: Final = KnownOptimizer(
    transformers_adafactor_rule, update_transformers_adafactor, _refused_transformers, takes_tensor_rate=True
)
