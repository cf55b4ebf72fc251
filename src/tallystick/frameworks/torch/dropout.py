"""Which layers of a model drop at random, and which settings of its config make them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from tallystick.frameworks.torch.generator_operators import native_mask

SETTINGS: Final = (
    "dropout",
    "dropout_p",
    "attention_dropout",
    "activation_dropout",
    "resid_pdrop",
    "attn_pdrop",
)
"""Attributes of layers that drop without a module of their own, as attention does."""
DROPS: Final = "dropout draws random numbers"


def describe_dropout(model: nn.Module) -> str:
    """In words, that a model in training drops and in which layers; empty where it does not."""
    found = [name or type(module).__name__ for name, module in model.named_modules() if _drops(module)]
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{DROPS} (layer {found[0]}{others})" if found else ""


def dropout_is_known(model: nn.Module) -> bool:
    """Whether layers drop, and what they draw here is known: on a CPU."""
    on_cpu = all(value.device.type == "cpu" for value in model.parameters())
    return on_cpu and bool(describe_dropout(model)) and native_mask() is not None


def config_that_drops(model: nn.Module) -> Iterator[str]:
    """The settings of a model of transformers that make it drop."""
    config: Any = getattr(model, "config", None)
    for name, value in (config.to_dict() if hasattr(config, "to_dict") else {}).items():
        if "drop" in name and isinstance(value, float) and value > 0:
            yield name


def _drops(module: nn.Module) -> bool:
    if not module.training:
        return False
    if isinstance(module, _DropoutNd):
        return module.p > 0
    shares = (getattr(module, name, 0) for name in SETTINGS)
    return any(isinstance(share, float) and share > 0 for share in shares)
