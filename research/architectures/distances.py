"""How far the results of one engine are from those of another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tallystick.core.tensors import State, Tensor

VANISHING: Final = 1e-6
OBSERVED: Final = ("loss", "outputs.")


@dataclass(frozen=True)
class Distance:
    """How far an engine is from the framework's own results: the largest |Δ| of a tensor ÷ its largest element.

    `observed` is over loss and outputs, `worst` over every tensor but those of vanishing gradients; `where` names the
    tensor of `worst`.
    """

    observed: float
    worst: float
    where: str


def distance(outputs: State, native: State, left_out: tuple[str, ...] = ()) -> Distance:
    """How far `outputs` are from `native`; what belongs to the parameters `left_out` is not compared."""
    kept = {name: tensor for name, tensor in native.items() if not any(_belongs(name, each) for each in left_out)}
    found = {name: relative(tensor, outputs[name]) for name, tensor in kept.items()}
    where = max(found, key=lambda name: found[name])
    observed = [value for name, value in found.items() if name.startswith(OBSERVED)]
    return Distance(max(observed), found[where], where)


def vanishing(exact: State) -> tuple[str, ...]:
    """The parameters whose gradient is 0 in exact arithmetic: what kernels give for it is rounding and nothing else.

    Biases of keys are such, because softmax does not see a shift, and biases before batch normalization.
    """
    sizes = {name: float(np.max(np.abs(value.values()), initial=0.0)) for name, value in exact.items()}
    gradients = {name: size for name, size in sizes.items() if name.startswith("gradients.")}
    limit = VANISHING * max(gradients.values(), default=0.0)
    return tuple(sorted(name.removeprefix("gradients.") for name, size in gradients.items() if size < limit))


def relative(expected: Tensor, found: Tensor) -> float:
    """The largest |Δ| over the largest finite magnitude; 0 where equal, infinite where only one of them is finite."""
    x, y = (_floats(tensor) for tensor in (expected, found))
    if x.shape != y.shape:
        return np.inf
    with np.errstate(invalid="ignore"):
        away = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
    largest = np.max(np.abs(x[np.isfinite(x)]), initial=0.0)
    return float(np.max(np.nan_to_num(away, nan=np.inf, posinf=np.inf), initial=0.0) / (largest or 1.0))


def _belongs(name: str, parameter: str) -> bool:
    return name in (f"gradients.{parameter}", f"weights.{parameter}") or name.startswith(f"optimizer.{parameter}.")


def _floats(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    return tensor.values().astype(np.float64)
