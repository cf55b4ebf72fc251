"""The optimizers of PyTorch whose steps can be captured: how their settings are read, and their arithmetic.

The arithmetic writes nothing in place. Each operation is the one of the library's single-tensor code, in the same
order, so the results have the same bits. Values that depend on the step number are 0-dimensional tensors. `addcmul`
and `addcdiv` replace the addition of a multiple by a Python number: they round and fuse as `add` with `alpha` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from pydantic import ValidationError
from torch import Tensor

from tallystick.core.documents import explain
from tallystick.core.errors import UnavailableError
from tallystick.engines.torch.kernels import fused_adam
from tallystick.formats.optimizers import (
    AdadeltaRule,
    AdafactorRule,
    AdagradRule,
    AdamaxRule,
    AdamRule,
    GroupRule,
    LionRule,
    MuonRule,
    NadamRule,
    RadamRule,
    RmspropRule,
    SgdRule,
    TransformersAdafactorRule,
)

Group: TypeAlias = Mapping[str, Any]
"""The settings of one parameter group of an optimizer."""
Tensors: TypeAlias = Mapping[str, Tensor]
Updated: TypeAlias = tuple[Tensor, dict[str, Tensor]]
"""The parameter and its slots after one step."""


@dataclass(frozen=True)
class Scalars:
    """The scalars that a rule names, 0-dimensional: `exact` in F64, `rounded` once to the parameter's dtype.

    `wide` ones are rounded once to the dtype that kernels compute in; it is another one for parameters of 16 bits.
    """

    exact: Tensors
    rounded: Tensors
    wide: Tensors

    def __getitem__(self, name: str) -> Tensor:
        """The rounded scalar: what an operator of the library makes of a Python number."""
        return self.rounded[name]


def arithmetic_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which kernels of PyTorch compute on numbers of `dtype`, and round once at their end."""
    return torch.float32 if dtype in {torch.bfloat16, torch.float16} else dtype


def wide(value: Tensor) -> Tensor:
    """A tensor in the dtype that kernels compute in."""
    return value.to(arithmetic_dtype(value.dtype))


Update: TypeAlias = Callable[[Any, Tensor, Tensor, Tensors, Scalars], Updated]
"""Takes the rule, the parameter (any shape, a float dtype), its gradient of the same form, its slots, the scalars."""
Setting: TypeAlias = tuple[str, str]
"""A setting whose arithmetic is another one, and its remedy."""


@dataclass(frozen=True)
class KnownOptimizer:
    """An optimizer whose steps can be captured.

    `names` are the settings of the rule `kind` that a group has under the same name, in one string; `others` gives
    those that it has otherwise. `refused` names settings whose arithmetic is another one. `begins_otherwise` says of a
    rule that the first step of the optimizer is another one, and no slot counts steps.
    """

    kind: type[GroupRule]
    update: Update
    names: str
    others: Callable[[Any, Group], Mapping[str, Any]] = lambda _optimizer, _group: {}
    refused: Callable[[Group], Iterable[Setting]] = lambda _: ()
    takes_tensor_rate: bool = False
    begins_otherwise: Callable[[Any], bool] = lambda _: False

    def rule(self, optimizer: torch.optim.Optimizer, group: Group) -> GroupRule:
        """The rule of a group; raises `ValidationError` for a setting that no rule states."""
        given = {name: group[name] for name in self.names.split()}
        numbers = {name: tuple(map(float, value)) for name, value in given.items() if isinstance(value, list | tuple)}
        return self.kind(**given | numbers, **self.others(optimizer, group))


# What the arithmetic of several optimizers has in common.


def _decayed(rule: Any, parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of what is minimised, with the weight decay of L2."""
    gradient = -gradient if rule.maximize else gradient
    return gradient.add(parameter, alpha=rule.weight_decay) if rule.weight_decay else gradient


def _decayed_either_way(rule: Any, parameter: Tensor, gradient: Tensor, scalars: Scalars) -> tuple[Tensor, Tensor]:
    """The parameter and the gradient of what is minimised; `rule.decoupled` says which of them has the weight decay."""
    if not rule.decoupled:
        return parameter, _decayed(rule, parameter, gradient)
    gradient = -gradient if rule.maximize else gradient
    return parameter * scalars["decay"] if rule.weight_decay else parameter, gradient


def _mean_square(mean: Tensor, decay: float, values: Tensor) -> Tensor:
    return (mean * decay).addcmul(values, values, value=1 - decay)


# The optimizers that keep momentum alone.


def _sgd(rule: SgdRule, parameter: Tensor, gradient: Tensor, slots: Tensors, scalars: Scalars) -> Updated:
    """`torch.optim.SGD`."""
    kept: dict[str, Tensor] = {}
    gradient = _decayed(rule, parameter, gradient)
    if rule.momentum:
        faded = slots["momentum_buffer"] * rule.momentum
        weakened = rule.dampening > 0
        moving = torch.addcmul(faded, gradient, scalars["gradient_share"]) if weakened else faded.add(gradient)
        kept["momentum_buffer"] = moving
        gradient = gradient.add(moving, alpha=rule.momentum) if rule.nesterov else moving
    return torch.addcmul(parameter, gradient, scalars["step_size"]), kept


def _lion(rule: LionRule, parameter: Tensor, gradient: Tensor, slots: Tensors, scalars: Scalars) -> Updated:
    """`lion_pytorch.Lion`."""
    (first, second), mean = rule.betas, slots["exp_avg"]
    sign = (mean * first).add(gradient, alpha=1.0 - first).sgn()
    moved = torch.addcmul(parameter * scalars["decay"], sign, scalars["step_size"])
    return moved, {"exp_avg": (mean * second).add(gradient, alpha=1.0 - second)}


def _muon(rule: MuonRule, parameter: Tensor, gradient: Tensor, slots: Tensors, scalars: Scalars) -> Updated:
    """`torch.optim.Muon`, for a matrix."""
    moving = slots["momentum_buffer"].lerp(gradient, 1 - rule.momentum)
    move = _orthogonal(rule, gradient.lerp(moving, rule.momentum) if rule.nesterov else moving)
    rows, columns = parameter.shape
    is_matched = rule.adjust == "match_rms_adamw"
    growth = 0.2 * math.sqrt(max(rows, columns)) if is_matched else math.sqrt(max(1, rows / columns))
    size = (scalars.exact["step_size"] * growth).to(parameter.dtype)
    moved = torch.addcmul(parameter * scalars["decay"], move.to(parameter.dtype), size)
    return moved, {"momentum_buffer": moving}


def _orthogonal(rule: MuonRule, matrix: Tensor) -> Tensor:
    """Newton–Schulz iterations in bfloat16, of the matrix or its transpose, whichever is wide."""
    a, b, c = rule.coefficients
    is_tall = matrix.size(0) > matrix.size(1)
    rows = matrix.bfloat16().T if is_tall else matrix.bfloat16()
    rows = rows / rows.norm().clamp(min=rule.eps)
    for _ in range(rule.steps):
        gram = rows @ rows.T
        rows = torch.addmm(rows, torch.addmm(gram, gram, gram, beta=b, alpha=c), rows, beta=a)
    return rows.T if is_tall else rows


# The optimizers that divide by means or sums of squared gradients.


def _adam(rule: AdamRule, parameter: Tensor, gradient: Tensor, slots: Tensors, scalars: Scalars) -> Updated:
    """`torch.optim.Adam` and `AdamW`, also AMSGrad."""
    first, second = rule.betas
    if rule.fused:  # one kernel, which rounds otherwise than single operators, and computes its scalars itself
        step = slots["step"] + 1
        tensors = (parameter, gradient, slots["exp_avg"], slots["exp_avg_sq"], step, scalars.exact["learning_rate"])
        settings = {"beta1": first, "beta2": second, "eps": rule.eps, "weight_decay": rule.weight_decay}
        is_decoupled = rule.kind == "adamw"
        moved, mean, square = fused_adam(*tensors, **settings, decoupled=is_decoupled, maximize=rule.maximize)
        return moved, {"step": step, "exp_avg": mean, "exp_avg_sq": square}
    gradient = -gradient if rule.maximize else gradient
    if rule.weight_decay and rule.kind == "adamw":
        parameter = (wide(parameter) * scalars.wide["decay"]).to(parameter.dtype)
    elif rule.weight_decay:
        gradient = gradient.add(parameter, alpha=rule.weight_decay)
    mean = slots["exp_avg"].lerp(gradient, 1 - first)
    square = _mean_square(slots["exp_avg_sq"], second, gradient)
    kept = {"step": slots["step"] + 1, "exp_avg": mean, "exp_avg_sq": square}
    if rule.amsgrad:
        kept["max_exp_avg_sq"] = square = torch.maximum(slots["max_exp_avg_sq"], square)
    denominator = (wide(square.sqrt()) / scalars.wide["root_correction"]).to(square.dtype).add(rule.eps)
    moved = torch.addcdiv(wide(parameter), wide(mean) * scalars.wide["step_size"], wide(denominator))
    return moved.to(parameter.dtype), kept


def _adamax(rule: AdamaxRule, parameter: Tensor, gradient: Tensor, slots: Tensors, scalars: Scalars) -> Updated:
    """`torch.optim.Adamax`."""
    gradient = _decayed(rule, parameter, gradient)
    mean = slots["exp_avg"].lerp(gradient, 1 - rule.betas[0])
    largest = torch.maximum(slots["exp_inf"] * rule.betas[1], gradient.abs().add(rule.eps))
    kept = {"step": slots["step"] + 1, "exp_avg": mean, "exp_inf": largest}
    return torch.addcdiv(parameter, mean * scalars["step_size"], largest), kept


def _nadam(rule: NadamRule, parameter: Tensor, gradient: Tensor, slots: Tensors, scalars: Scalars) -> Updated:
    """`torch.optim.NAdam`; the sizes of both moves follow from the product of momenta in float64."""
    parameter, gradient = _decayed_either_way(rule, parameter, gradient, scalars)
    first, second = rule.betas
    product = slots["mu_product"] * scalars.exact["mu"].to(torch.float32)
    mean = slots["exp_avg"].lerp(gradient, 1 - first)
    square = _mean_square(slots["exp_avg_sq"], second, gradient)
    kept = {"step": slots["step"] + 1, "mu_product": product, "exp_avg": mean, "exp_avg_sq": square}
    root = (square / scalars["correction"]).sqrt().add(rule.eps)
    exact = product.to(torch.float64)
    of_gradient = scalars.exact["gradient_size"] / (1.0 - exact)
    of_mean = scalars.exact["mean_size"] / (1.0 - exact * scalars.exact["mu_next"])
    moved = torch.addcdiv(parameter, gradient * of_gradient.to(parameter.dtype), root)
    return torch.addcdiv(moved, mean * of_mean.to(parameter.dtype), root), kept


def _radam(rule: RadamRule, parameter: Tensor, gradient: Tensor, slots: Tensors, scalars: Scalars) -> Updated:
    """`torch.optim.RAdam`: both of its branches, of which the rectification chooses one."""
    parameter, gradient = _decayed_either_way(rule, parameter, gradient, scalars)
    first, second = rule.betas
    mean = slots["exp_avg"].lerp(gradient, 1 - first)
    square = _mean_square(slots["exp_avg_sq"], second, gradient)
    kept = {"step": slots["step"] + 1, "exp_avg": mean, "exp_avg_sq": square}
    move = mean / scalars["correction"] * scalars["learning_rate"]
    adaptive = square.sqrt().add(rule.eps).reciprocal() * scalars["root_correction"]
    rectified = move * adaptive * scalars["rectification"]
    return parameter - torch.where(scalars["rectification"] > 0, rectified, move), kept


def _adadelta(rule: AdadeltaRule, parameter: Tensor, gradient: Tensor, slots: Tensors, scalars: Scalars) -> Updated:
    """`torch.optim.Adadelta`."""
    gradient = _decayed(rule, parameter, gradient)
    square = _mean_square(slots["square_avg"], rule.rho, gradient)
    root, moves = square.add(rule.eps).sqrt(), slots["acc_delta"].add(rule.eps).sqrt()
    move = moves / root * gradient
    kept = {
        "step": slots["step"] + 1,
        "square_avg": square,
        "acc_delta": _mean_square(slots["acc_delta"], rule.rho, move),
    }
    return torch.addcmul(parameter, move, scalars["step_size"]), kept


def _adagrad(rule: AdagradRule, parameter: Tensor, gradient: Tensor, slots: Tensors, scalars: Scalars) -> Updated:
    """`torch.optim.Adagrad`."""
    gradient = _decayed(rule, parameter, gradient)
    total = slots["sum"].addcmul(gradient, gradient)
    kept = {"step": slots["step"] + 1, "sum": total}
    return torch.addcdiv(parameter, gradient * scalars["step_size"], total.sqrt().add(rule.eps)), kept


def _rmsprop(rule: RmspropRule, parameter: Tensor, gradient: Tensor, slots: Tensors, scalars: Scalars) -> Updated:
    """`torch.optim.RMSprop`."""
    gradient = _decayed(rule, parameter, gradient)
    square = _mean_square(slots["square_avg"], rule.alpha, gradient)
    kept = {"step": slots["step"] + 1, "square_avg": square}
    if rule.centered:
        kept["grad_avg"] = mean = slots["grad_avg"].lerp(gradient, 1 - rule.alpha)
        square = square.addcmul(mean, mean, value=-1)
    root = square.sqrt().add(rule.eps)
    if rule.momentum:
        kept["momentum_buffer"] = moving = (slots["momentum_buffer"] * rule.momentum).addcdiv(gradient, root)
        return torch.addcmul(parameter, moving, scalars["step_size"]), kept
    return torch.addcdiv(parameter, gradient * scalars["step_size"], root), kept


def _adafactor(rule: AdafactorRule, parameter: Tensor, gradient: Tensor, slots: Tensors, scalars: Scalars) -> Updated:
    """`torch.optim.Adafactor`; norms become numbers of Python, so what follows from them is computed in float64."""
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


def _second_moment(gradient: Tensor, slots: Tensors, share: Tensor, least: float) -> tuple[dict[str, Tensor], Tensor]:
    """The slots of the second moment, and its estimate of the gradient's shape."""
    if gradient.dim() < 2:
        variance = torch.lerp(slots["variance"], gradient * gradient, share)
        return {"variance": variance}, variance
    rows = torch.norm(gradient, dim=-1, keepdim=True).square() / gradient.size(-1)
    columns = torch.norm(gradient, dim=-2, keepdim=True).square() / gradient.size(-2)
    row, column = torch.lerp(slots["row_var"], rows, share), torch.lerp(slots["col_var"], columns, share)
    return {"row_var": row, "col_var": column}, row @ column / row.mean(dim=-2, keepdim=True).clamp(min=least)


def _transformers_adafactor(
    rule: TransformersAdafactorRule, parameter: Tensor, gradient: Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """`transformers.Adafactor`."""
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
    rule: TransformersAdafactorRule, gradient: Tensor, slots: Tensors, scalars: Scalars
) -> tuple[dict[str, Tensor], Tensor]:
    """The slots of the second moment, and the gradient divided by its root."""
    square = gradient**2 + rule.eps[0]
    if gradient.dim() < 2:
        moment = _faded(slots["exp_avg_sq"], square, scalars)
        return {"exp_avg_sq": moment}, moment.rsqrt() * gradient
    row = _faded(slots["exp_avg_sq_row"], square.mean(dim=-1), scalars)
    column = _faded(slots["exp_avg_sq_col"], square.mean(dim=-2), scalars)
    shares = (row / row.mean(dim=-1, keepdim=True)).rsqrt().unsqueeze(-1)
    return {"exp_avg_sq_row": row, "exp_avg_sq_col": column}, shares * column.unsqueeze(-2).rsqrt() * gradient


def _faded(moment: Tensor, values: Tensor, scalars: Scalars) -> Tensor:
    return torch.addcmul(moment * scalars["moment_decay"], values, scalars["moment_share"])


def _of_rate(rule: TransformersAdafactorRule, root: Tensor, scalars: Scalars, factor: float) -> Tensor:
    """The learning rate times `factor` in float32: of a number of Python, or of the tensor that scales it."""
    if not rule.scale_parameter:
        return (scalars.exact["rate"] * factor).to(root.dtype)
    least = rule.eps[1]
    return torch.where(
        root > least, root * scalars["rate"] * factor, (scalars.exact["rate"] * least * factor).to(root.dtype)
    )


def _root_mean_square(values: Tensor) -> Tensor:
    root: Tensor = values.norm(2) / values.numel() ** 0.5
    return root


# Settings that a rule has in another form, and settings that cannot be captured.


def _of_adam(_optimizer: Any, group: Group) -> dict[str, Any]:
    rate = group["lr"]
    is_single = isinstance(rate, Tensor) and rate.dtype == torch.float32 and not group["fused"]
    kind = "adamw" if group["decoupled_weight_decay"] else "adam"
    first, second = group["betas"]
    return {
        "kind": kind,
        "betas": (first, second),
        "fused": bool(group["fused"]),
        "rate_dtype": "F32" if is_single else None,
    }


def _of_lion(optimizer: Any, group: Group) -> dict[str, Any]:
    # an independent decay does not follow the learning rate, and was divided by the first one
    rate = optimizer._init_lr if optimizer.decoupled_wd else 1
    return {"weight_decay": group["weight_decay"] / rate}


def _refuse_fused(group: Group) -> Iterator[Setting]:
    """The fused kernel of an optimizer rounds otherwise."""
    if group.get("fused"):
        yield "fused=True", "set fused=False"


def _refuse_of_adam(group: Group) -> Iterator[Setting]:
    if group["fused"] and group["amsgrad"]:
        yield "fused=True", "set fused=False"
    rate = group["lr"]
    if isinstance(rate, Tensor) and rate.dtype not in {torch.float32, torch.float64}:
        yield f"a tensor of {rate.dtype} as lr", "give a float"


def _refuse_tensor_rate(group: Group) -> Iterator[Setting]:
    """Where it is read: under `relative_step`, `AdafactorSchedule` writes its own tensor into the group."""
    if isinstance(group["lr"], Tensor) and not group["relative_step"]:
        yield "a tensor as lr", "give a float"


# All optimizers that can be captured; one more is a rule in `formats.optimizers`, its arithmetic here, and two rows.

_COMMON: Final = "eps weight_decay maximize"
_ADAM: Final = KnownOptimizer(AdamRule, _adam, f"{_COMMON} amsgrad", _of_adam, _refuse_of_adam, takes_tensor_rate=True)
KNOWN: Final[Mapping[str, KnownOptimizer]] = {
    "lion_pytorch.lion_pytorch.Lion": KnownOptimizer(LionRule, _lion, "betas", _of_lion),
    "torch.optim.Adafactor": KnownOptimizer(
        AdafactorRule,
        _adafactor,
        "beta2_decay weight_decay maximize",
        lambda _, group: {"eps1": group["eps"][0], "eps2": group["eps"][1], "clip": group["d"]},
    ),
    "torch.optim.Muon": KnownOptimizer(
        MuonRule,
        _muon,
        "weight_decay momentum nesterov eps",
        lambda _, group: {
            "coefficients": tuple(group["ns_coefficients"]),
            "steps": group["ns_steps"],
            "adjust": group["adjust_lr_fn"] or "original",
        },
    ),
    "torch.optim.adadelta.Adadelta": KnownOptimizer(AdadeltaRule, _adadelta, f"{_COMMON} rho"),
    "torch.optim.adagrad.Adagrad": KnownOptimizer(
        AdagradRule,
        _adagrad,
        f"{_COMMON} lr_decay",
        # the sums of all groups start at one number
        lambda optimizer, _: {"initial_accumulator_value": optimizer.defaults["initial_accumulator_value"]},
        _refuse_fused,
    ),
    "torch.optim.adam.Adam": _ADAM,
    "torch.optim.adamax.Adamax": KnownOptimizer(AdamaxRule, _adamax, f"{_COMMON} betas"),
    "torch.optim.adamw.AdamW": _ADAM,
    "torch.optim.nadam.NAdam": KnownOptimizer(
        NadamRule,
        _nadam,
        f"{_COMMON} betas momentum_decay",
        lambda _, group: {"decoupled": group["decoupled_weight_decay"]},
    ),
    "torch.optim.radam.RAdam": KnownOptimizer(
        RadamRule, _radam, f"{_COMMON} betas", lambda _, group: {"decoupled": group["decoupled_weight_decay"]}
    ),
    "torch.optim.rmsprop.RMSprop": KnownOptimizer(RmspropRule, _rmsprop, f"{_COMMON} alpha momentum centered"),
    "torch.optim.sgd.SGD": KnownOptimizer(
        SgdRule,
        _sgd,
        "weight_decay momentum nesterov maximize dampening",
        refused=_refuse_fused,
        takes_tensor_rate=True,
        begins_otherwise=lambda rule: rule.momentum > 0 and rule.dampening > 0,
    ),
    "transformers.optimization.Adafactor": KnownOptimizer(
        TransformersAdafactorRule,
        _transformers_adafactor,
        "eps clip_threshold decay_rate beta1 weight_decay scale_parameter relative_step warmup_init",
        refused=_refuse_tensor_rate,
        takes_tensor_rate=True,
    ),
}
"""The optimizers by the full names of their classes.

Another class under such a name is found out when the first steps are compared.
"""
OFF: Final = ("capturable", "differentiable")
"""Settings under which every optimizer of `torch.optim` computes otherwise."""


def rules_of(optimizer: torch.optim.Optimizer) -> tuple[GroupRule, ...]:
    """The rule of every parameter group, in order; raises `UnavailableError` if its arithmetic is not supported."""
    rules: list[GroupRule] = []
    for each in each_of(optimizer):
        known, name = _known(each), type(each).__name__
        for setting, _ in (pair for group in each.param_groups for pair in unsupported(each, group)):
            raise UnavailableError(f"{name} with {setting} cannot be captured")
        try:
            rules += [known.rule(each, group) for group in each.param_groups]
        except ValidationError as error:
            raise UnavailableError(f"{name} cannot be captured: {explain(error)}") from None
    return tuple(rules)


def each_of(optimizer: torch.optim.Optimizer) -> Sequence[torch.optim.Optimizer]:
    """The optimizers of an `InTurn`, or the only one."""
    return getattr(optimizer, "optimizers", (optimizer,))


def updates_of(optimizer: torch.optim.Optimizer) -> tuple[Update, ...]:
    """The arithmetic of every parameter group, in order."""
    return tuple(_known(each).update for each in each_of(optimizer) for _ in each.param_groups)


def begins_otherwise(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer goes on from momentum, and only its very first step would be as a run takes it."""
    known = _known(optimizer)
    groups = [group for group in optimizer.param_groups if known.begins_otherwise(known.rule(optimizer, group))]
    return any(optimizer.state.get(each) for group in groups for each in group["params"])


def unsupported(optimizer: torch.optim.Optimizer, group: Group) -> Iterator[Setting]:
    """The settings of a group whose arithmetic cannot be captured, each with what mends it."""
    known = _known(optimizer)
    for name in OFF:
        if group.get(name):
            yield f"{name}=True", f"set {name}=False"
    if isinstance(group.get("lr"), Tensor) and not known.takes_tensor_rate:
        yield "a tensor as lr", "give a float"
    yield from known.refused(group)


def _known(optimizer: torch.optim.Optimizer) -> KnownOptimizer:
    kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    if kind not in KNOWN:
        names = ", ".join(sorted({name.rpartition(".")[2] for name in KNOWN}))
        raise UnavailableError(f"{kind} cannot be captured; these can: {names}")
    return KNOWN[kind]
