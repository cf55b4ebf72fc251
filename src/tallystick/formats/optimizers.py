"""The settings of optimizers, as a spec states them: one rule for each, with its slots and scalars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import not_
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

import numpy as np
from pydantic import Field, PlainSerializer, PlainValidator

from tallystick.core.documents import Document
from tallystick.core.errors import MalformedError, UsageError
from tallystick.core.tensors import TensorSpec
from tallystick.formats.recipe import Beta, OptimizerRecipe, Rate, Share

# The settings of an optimizer in the spec of a run without a recipe: one kind of rule for each optimizer.
#
# A rule also says what its optimizer keeps for each weight, and which scalars a step reads. The scalars follow from the
# learning rate and the step number in binary64, so that a graph holds neither; they enter it as `schedule.<name>`.

Exponent = Annotated[float, Field(ge=-1e6, le=0.0)]
"""The exponent of a step number; it makes nothing larger, so no power overflows."""


@dataclass(frozen=True)
class SlotSpec:
    """A tensor that an optimizer keeps for a weight, and the number that fills it before the first step."""

    spec: TensorSpec
    start: float = 0.0


COUNTER: Final = SlotSpec(TensorSpec("F32"))
"""The slot `step` of `torch.optim`."""


class GroupRule(Document):
    """The settings of one parameter group that no schedule changes; variants that are off are left out.

    `moments` names the slots that have the form of the weight and begin with 0; unless `counts`, no step number stands
    beside them. `decay` is 1 − η·λ wherever a rule has
    that scalar: the optimizer takes the decay off the weight then.
    """

    moments: ClassVar[tuple[str, ...]] = ()
    counts: ClassVar[bool] = True

    kind: str
    weight_decay: Rate = 0.0

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """What the optimizer keeps for a weight, by the names of its slots: the step number, and the moments."""
        step = {"step": COUNTER} if self.counts else {}
        return step | {name: SlotSpec(weight) for name in self.moments}

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """The scalars that step `step` (1-based) reads, each in binary64; `step_size` is −η."""
        return {"step_size": -learning_rate}

    @property
    def second_moment_decay(self) -> float | None:
        """β₂ where a slot `exp_avg_sq` is the mean of squared gradients that Adam divides by; otherwise `None`."""
        return self.betas[1] if isinstance(self, AdamRule | NadamRule | RadamRule) else None


def read_rule(value: Any) -> GroupRule:
    """The rule that JSON states by its `kind`; raises `MalformedError` naming the field."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in RULES:
        raise MalformedError(f"kind: must be one of {', '.join(sorted(RULES))}, not {kind!r:.40}")
    return RULES[kind].from_json(value, kind)


def _stated_rule(value: Any) -> GroupRule:
    try:
        return value if isinstance(value, GroupRule) else read_rule(value)
    except MalformedError as error:
        raise ValueError(str(error)) from None


def changed_setting(before: Sequence[GroupRule], now: Sequence[GroupRule]) -> str:
    """Names the first setting of an optimizer in which two lists of rules differ; empty if they are the same."""
    if len(before) != len(now):
        return f"{len(now)} groups of parameters, and {len(before)} before"
    for number, (old, new) in enumerate(zip(before, now, strict=True)):
        for setting in type(old).model_fields:
            was, is_now = getattr(old, setting), getattr(new, setting, None)
            if was != is_now:
                return f"{setting} of parameter group {number} is {is_now}, and {was} before"
    return ""


# The settings of an optimizer as a field of a document: one rule for each parameter group.

StatedRule = Annotated[
    GroupRule, PlainValidator(_stated_rule), PlainSerializer(lambda rule: rule.to_json(), return_type=Any)
]
StatedRules = Annotated[tuple[StatedRule, ...], Field(min_length=1, max_length=4096)]


class AdamRule(GroupRule):
    """Adam (Kingma & Ba 2015, Algorithm 1), AdamW (Loshchilov & Hutter 2019, Algorithm 2), AMSGrad (Reddi et al. 2018).

    `adamw` takes the decay off the weight, `adam` adds it to the gradient.

    `fused` names the kernel that updates a parameter in one pass, `amsgrad` the variant that divides by the largest
    second moment. `rate_dtype` is stated for a learning rate that is a tensor: its scalars are computed in that dtype.
    `momentum` and `nesterov` are stated since the first version, and read by nothing.
    """

    moments = ("exp_avg", "exp_avg_sq")

    kind: Literal["adamw", "adam"]
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Share = 1e-8
    momentum: Beta = 0.0
    nesterov: bool = False
    maximize: bool = False
    amsgrad: bool = Field(default=False, exclude_if=not_)
    fused: bool = Field(default=False, exclude_if=not_)
    rate_dtype: Literal["F32"] | None = None

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """The step, both moments, and for AMSGrad the largest second moment."""
        return super().slots(weight) | ({"max_exp_avg_sq": SlotSpec(weight)} if self.amsgrad else {})

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`step_size` is −η / (1 − β₁ᵗ), `root_correction` √(1 − β₂ᵗ), `decay` 1 − η·λ (Kingma & Ba, end of §2).

        A fused kernel computes these itself from `learning_rate`, which is η.
        """
        if self.fused:
            return {"learning_rate": learning_rate}
        first, second = self.betas
        number = np.float32 if self.rate_dtype else float
        rate = number(learning_rate)
        scalars = {
            "root_correction": (1 - second**step) ** 0.5,
            "step_size": -float(rate / number(1 - first**step)),
        }
        if self.kind == "adamw" and self.weight_decay:
            scalars["decay"] = float(number(1) - rate * number(self.weight_decay))
        return scalars


class AdamaxRule(GroupRule):
    """Adamax (Kingma & Ba 2015, Algorithm 2).

    Divides the mean by the largest gradient, which decays by β₂.
    """

    moments = ("exp_avg", "exp_inf")

    kind: Literal["adamax"] = "adamax"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Share = 1e-8
    maximize: bool = False

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`step_size` is −η / (1 − β₁ᵗ)."""
        return {"step_size": -(learning_rate / (1 - self.betas[0] ** step))}


FALL: Final = 0.96


class NadamRule(GroupRule):
    """NAdam (Dozat 2016, Algorithm 8), with the schedule of momentum of `torch.optim.NAdam`.

    `decoupled` takes the decay off the weight, as AdamW; otherwise it is added to the gradient.
    """

    moments = ("exp_avg", "exp_avg_sq")

    kind: Literal["nadam"] = "nadam"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Share = 1e-8
    momentum_decay: Rate = 4e-3
    decoupled: bool = False
    maximize: bool = False

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """The step, the product of all momenta μ, and both moments."""
        return {"step": COUNTER, "mu_product": SlotSpec(TensorSpec("F32"), 1.0), **super().slots(weight)}

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`mu` and `mu_next` are the momenta of this step and the next; `correction` is 1 − β₂ᵗ.

        `gradient_size` is −η·(1 − μ), `mean_size` −η·μ of the next step, `decay` 1 − η·λ.
        """
        now, following = self._momentum(step), self._momentum(step + 1)
        scalars = {
            "correction": 1 - self.betas[1] ** step,
            "gradient_size": -learning_rate * (1.0 - now),
            "mean_size": -learning_rate * following,
            "mu": now,
            "mu_next": following,
        }
        if self.decoupled and self.weight_decay:
            scalars["decay"] = 1 - learning_rate * self.weight_decay
        return scalars

    def _momentum(self, step: int) -> float:
        return self.betas[0] * (1.0 - 0.5 * math.pow(FALL, step * self.momentum_decay))


SHORT: Final = 5.0
"""Up to this length of the average, its variance is intractable, and the step is one of momentum alone."""


class RadamRule(GroupRule):
    """RAdam (Liu et al. 2020, Algorithm 2).

    `decoupled` takes the decay off the weight, as AdamW; otherwise it is added to the gradient.
    """

    moments = ("exp_avg", "exp_avg_sq")

    kind: Literal["radam"] = "radam"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Share = 1e-8
    decoupled: bool = False
    maximize: bool = False

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`learning_rate` is η, `correction` 1 − β₁ᵗ, `root_correction` √(1 − β₂ᵗ), `decay` 1 − η·λ.

        `rectification` is r of the paper, and 0 while the variance is intractable.
        """
        first, second = (1 - beta**step for beta in self.betas)
        scalars = {
            "correction": first,
            "learning_rate": learning_rate,
            "rectification": self._rectification(step, second),
            "root_correction": second**0.5,
        }
        if self.decoupled and self.weight_decay:
            scalars["decay"] = 1 - learning_rate * self.weight_decay
        return scalars

    def _rectification(self, step: int, correction: float) -> float:
        decay = self.betas[1]
        longest = 2 / (1 - decay) - 1
        length = longest - 2 * step * (decay**step) / correction
        if length <= SHORT:
            return 0.0
        share = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        return float(share**0.5)


class AdadeltaRule(GroupRule):
    """Adadelta (Zeiler 2012, Algorithm 1).

    `rho` is the decay of both means of squares.
    """

    moments = ("square_avg", "acc_delta")

    kind: Literal["adadelta"] = "adadelta"
    rho: Share = 0.9
    eps: Share = 1e-6
    maximize: bool = False


class AdagradRule(GroupRule):
    """Adagrad (Duchi, Hazan & Singer 2011, Algorithm 1 with diagonal matrices).

    The sum of squares starts at `initial_accumulator_value`, and the learning rate falls by `lr_decay`.
    """

    kind: Literal["adagrad"] = "adagrad"
    lr_decay: Rate = 0.0
    eps: Share = 1e-10
    initial_accumulator_value: Rate = 0.0
    maximize: bool = False

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """The step, and the sum of squared gradients."""
        return super().slots(weight) | {"sum": SlotSpec(weight, self.initial_accumulator_value)}

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`step_size` is −η / (1 + (t − 1)·`lr_decay`)."""
        return {"step_size": -(learning_rate / (1 + (step - 1) * self.lr_decay))}


class RmspropRule(GroupRule):
    """RMSprop (Tieleman & Hinton 2012, lecture 6e), centred (Graves 2013, equations 38–45) or not.

    `alpha` is the decay of the mean of squared gradients.
    """

    moments = ("square_avg",)

    kind: Literal["rmsprop"] = "rmsprop"
    alpha: Share = 0.99
    eps: Share = 1e-8
    momentum: Beta = 0.0
    centered: bool = False
    maximize: bool = False

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """The step, the mean of squares, the momentum, and the mean of gradients if centred."""
        slots = super().slots(weight)
        if self.momentum:
            slots["momentum_buffer"] = SlotSpec(weight)
        if self.centered:
            slots["grad_avg"] = SlotSpec(weight)
        return slots


class AdafactorRule(GroupRule):
    """Adafactor (Shazeer & Stern 2018, Algorithms 4 and 5), as `torch.optim.Adafactor` computes it.

    `eps` are ε₁, where it is stated, and ε₂; `clip` is d, and `beta2_decay` the exponent of the step number.

    Without ε₁, it is the unit of roundoff of the weight's dtype.
    """

    kind: Literal["adafactor"] = "adafactor"
    beta2_decay: Exponent = -0.8
    eps1: Share | None = None
    eps2: Share = 1e-3
    clip: Rate = 1.0
    maximize: bool = False

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """The step, and the second moment: of rows and columns, or of each element where there are no matrices."""
        slots = super().slots(weight)
        if len(weight.shape) < 2:
            return slots | {"variance": SlotSpec(weight)}
        *outer, rows, columns = weight.shape
        slots["row_var"] = SlotSpec(TensorSpec(weight.dtype, (*outer, rows, 1)))
        slots["col_var"] = SlotSpec(TensorSpec(weight.dtype, (*outer, 1, columns)))
        return slots

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`moment_share` is 1 − β₂ₜ, `rho` min(η, 1/√t), `decay` 1 − η·λ."""
        scalars = {"moment_share": float(step) ** self.beta2_decay, "rho": min(learning_rate, 1 / (float(step) ** 0.5))}
        if self.weight_decay:
            scalars["decay"] = 1 - learning_rate * self.weight_decay
        return scalars


COUNT: Final = SlotSpec(TensorSpec("F64"))
"""A number of Python, as a state holds it."""
ROOT_MEAN_SQUARE: Final = SlotSpec(TensorSpec("F32"))


class TransformersAdafactorRule(GroupRule):
    """Adafactor (Shazeer & Stern 2018), as `transformers.Adafactor` computes it.

    `eps` are those of squared gradients and of the scale of a weight.

    With `relative_step` the learning rate follows from the step number, and `warmup_init` begins it at 10⁻⁶; with
    `scale_parameter` it is multiplied by the root mean square of the weight. `beta1` is stated with a first moment.
    """

    kind: Literal["adafactor-transformers"] = "adafactor-transformers"
    eps: tuple[Share, Share] = (1e-30, 1e-3)
    clip_threshold: Rate = 1.0
    decay_rate: Exponent = -0.8
    beta1: Beta | None = None
    scale_parameter: bool = True
    relative_step: bool = True
    warmup_init: bool = False

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """The step and the root mean square of the weight, the moments: that of rows and columns, or of elements."""
        slots = {"step": COUNT, "RMS": ROOT_MEAN_SQUARE}
        if self.beta1 is not None:
            slots["exp_avg"] = SlotSpec(weight)
        if len(weight.shape) < 2:
            return slots | {"exp_avg_sq": SlotSpec(weight)}
        slots["exp_avg_sq_row"] = SlotSpec(TensorSpec(weight.dtype, weight.shape[:-1]))
        slots["exp_avg_sq_col"] = SlotSpec(TensorSpec(weight.dtype, weight.shape[:-2] + weight.shape[-1:]))
        return slots

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`moment_decay` is β₂ₜ, `moment_share` 1 − β₂ₜ, `rate` the learning rate before it is scaled."""
        decay = 1.0 - math.pow(step, self.decay_rate)
        return {"moment_decay": decay, "moment_share": 1.0 - decay, "rate": self._rate(learning_rate, step)}

    def _rate(self, learning_rate: float, step: int) -> float:
        if not self.relative_step:
            return learning_rate
        return min(1e-6 * step if self.warmup_init else 1e-2, 1.0 / math.sqrt(step))


class SgdRule(GroupRule):
    """Stochastic gradient descent with momentum (Sutskever et al. 2013), as `torch.optim.SGD` computes it.

    `dampening` weakens gradients in the momentum, except in the first step.

    `betas` and `eps` are stated since the first version, and read by nothing.
    """

    kind: Literal["sgd"] = "sgd"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Share = 1e-8
    momentum: Beta = 0.0
    nesterov: bool = False
    maximize: bool = False
    dampening: Share = Field(default=0.0, exclude_if=not_)

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """The momentum, where there is any; −0 before the first step, so that its sum with a gradient is that one."""
        return {"momentum_buffer": SlotSpec(weight, -0.0)} if self.momentum else {}

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`step_size` is −η; `gradient_share` is 1 in the first step, then 1 − dampening."""
        share = {"gradient_share": 1.0 if step == 1 else 1 - self.dampening} if self.momentum and self.dampening else {}
        return {"step_size": -learning_rate, **share}


class LionRule(GroupRule):
    """Lion (Chen et al. 2023, Algorithm 2).

    The sign of an average of momentum and gradient, by β₁; the momentum decays by β₂.
    """

    moments, counts = ("exp_avg",), False

    kind: Literal["lion"] = "lion"
    betas: tuple[Share, Share] = (0.9, 0.99)

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`step_size` is −η, `decay` 1 − η·λ."""
        return {"decay": 1.0 - learning_rate * self.weight_decay, "step_size": -learning_rate}


Coefficient = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]


class MuonRule(GroupRule):
    """Muon (Jordan et al. 2024; its learning rates also Liu et al. 2025), as `torch.optim.Muon` computes it.

    A matrix moves by its momentum made orthogonal: `steps` of Newton and Schulz with `coefficients` in BF16.

    `adjust` says how the step grows with the matrix: √max(1, rows / columns), or 0.2·√max(rows, columns).
    """

    moments, counts = ("momentum_buffer",), False

    kind: Literal["muon"] = "muon"
    momentum: Share = 0.95
    nesterov: bool = True
    coefficients: tuple[Coefficient, Coefficient, Coefficient] = (3.4445, -4.7750, 2.0315)
    eps: Share = 1e-7
    steps: Annotated[int, Field(ge=0, le=99)] = 5
    adjust: Literal["original", "match_rms_adamw"] = "original"

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`step_size` is −η, before it grows with the matrix; `decay` is 1 − η·λ."""
        return {"decay": 1 - learning_rate * self.weight_decay, "step_size": -learning_rate}


# What an optimizer reads besides tensors: the rule of a group, and the scalars of a step.


def rule_of_recipe(recipe: OptimizerRecipe) -> GroupRule:
    """The rule of a recipe; a schedule gives the learning rate, and clipping comes before the optimizer."""
    return read_rule(recipe.model_dump(mode="json", exclude={"learning_rate", "clip_norm"}))


def schedule_scalars(rule: GroupRule, learning_rate: float, step: int) -> dict[str, float]:
    """The scalars of step `step` (1-based), each in binary64, sorted by name.

    Raises `UsageError` for a step before the first.
    """
    if step < 1:
        raise UsageError(f"there is no step {step}: steps are counted from 1")
    return dict(sorted(rule.scalars(learning_rate, step).items()))


RULES: Final[Mapping[str, type[GroupRule]]] = {
    kind: rule for rule in GroupRule.__subclasses__() for kind in get_args(rule.model_fields["kind"].annotation)
}
"""The rule of each kind that a spec may state."""
