"""The settings of an optimizer in the spec of a run without a recipe: one kind of rule for each optimizer.

A rule also says what its optimizer keeps for each weight, and which scalars a step reads. The scalars follow from the
learning rate and the step number in binary64, so that a graph holds neither; they enter it as `schedule.<name>`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Final

from pydantic import Field

from tallystick.documents.document import Document
from tallystick.errors import MalformedError
from tallystick.tensors.spec import TensorSpec
from tallystick.transcripts.recipe import Rate

HOMES: Final[Mapping[str, str]] = {
    "adadelta": "tallystick.transcripts.optimizers.adadelta",
    "adafactor": "tallystick.transcripts.optimizers.adafactor",
    "adafactor-transformers": "tallystick.transcripts.optimizers.adafactor_transformers",
    "adagrad": "tallystick.transcripts.optimizers.adagrad",
    "adam": "tallystick.transcripts.optimizers.adam",
    "adamax": "tallystick.transcripts.optimizers.adamax",
    "adamw": "tallystick.transcripts.optimizers.adam",
    "lion": "tallystick.transcripts.optimizers.lion",
    "muon": "tallystick.transcripts.optimizers.muon",
    "nadam": "tallystick.transcripts.optimizers.nadam",
    "radam": "tallystick.transcripts.optimizers.radam",
    "rmsprop": "tallystick.transcripts.optimizers.rmsprop",
    "sgd": "tallystick.transcripts.optimizers.sgd",
}
"""The module that defines the `RULE` of a kind; a verifier loads those that a spec names."""
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
    """The settings of one parameter group that no schedule changes; variants that are off are left out."""

    kind: str
    weight_decay: Rate = 0.0

    @abstractmethod
    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """What the optimizer keeps for a weight, by the names of its slots."""

    @abstractmethod
    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """The scalars that step `step` (1-based) reads, each in binary64."""

    @property
    def second_moment_decay(self) -> float | None:
        """β₂ where a slot `exp_avg_sq` is the mean of squared gradients that Adam divides by; otherwise `None`."""
        return None


def is_off(value: object) -> bool:
    """Whether a setting is off; a spec leaves it out then."""
    return not value


def read_rule(value: Any) -> GroupRule:
    """The rule that JSON states by its `kind`; raises `MalformedError` naming the field."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in HOMES:
        raise MalformedError(f"kind: must be one of {', '.join(sorted(HOMES))}, not {kind!r:.40}")
    rule: GroupRule = import_module(HOMES[kind]).RULE.from_json(value, kind)
    return rule


def stated_rule(value: Any) -> GroupRule:
    """A rule as a field of a document; raises `ValueError` naming the field."""
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
