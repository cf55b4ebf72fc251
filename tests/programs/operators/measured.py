"""How much of its bound each operator uses: honest runs on ordinary operands of useful sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from research.operators.rounding_models import Probabilistic, Variance
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import Tensor
from tallystick.programs.execution import Engine
from tallystick.programs.operators.balls.bound import ResultBound
from tallystick.programs.operators.rounding import DETERMINISTIC, Model
from tests.programs.operators.examples import Call
from tests.programs.operators.honest import bounds_of, redrawn, results_of

MODELS: Final[tuple[Model, ...]] = (DETERMINISTIC, Probabilistic(6.0), Variance(6.0))
DRAWS: Final = 12


@dataclass(frozen=True)
class Tightness:
    """`ratios`: bound ÷ error at the element of a result that uses most of its bound, by model.

    Geometric means over results, so that scales within a result and between results do not matter; `closest` is the
    least of all under the deterministic bound; `elements` had an error.
    """

    ratios: dict[str, float]
    closest: float
    elements: int

    @property
    def tightest(self) -> float:
        """Of the model that is tightest."""
        return min(self.ratios.values())


def tightness(calls: list[Call], engine: Engine, draws: int = DRAWS) -> Tightness | None:
    """`None` where the engine makes no rounding error, or does not run the operator.

    An operator of `SIZED` is measured at that size alone: among few terms all models give the same bound.
    """
    found: list[dict[str, float]] = []
    closest, elements = 0.0, 0
    for call in _drawn(calls, draws):
        try:
            bounds = {model.name: bounds_of(call, model=model) for model in MODELS}
            results = results_of(call, engine, bounds["deterministic"])
        except (UnavailableError, MalformedError):
            continue
        for index, result in enumerate(results):
            of_result = {name: each[index] for name, each in bounds.items()}
            certain = of_result["deterministic"]
            if result is None or certain is None:
                continue
            share = certain.excess(result)
            closest, elements = max(closest, float(share.max(initial=0.0))), elements + int((share > 0).sum())
            found += _ratios(of_result, result)
    if not found:
        return Tightness({}, 0.0, elements) if closest == math.inf else None
    return Tightness({name: _geometric([each[name] for each in found]) for name in found[0]}, 1 / closest, elements)


def _ratios(bounds: Mapping[str, ResultBound | None], result: Tensor) -> list[dict[str, float]]:
    """Nothing for a result without an error, or that is outside its bound."""
    used = {name: float(each.excess(result).max(initial=0.0)) for name, each in bounds.items() if each is not None}
    return [{name: 1 / share for name, share in used.items()}] if 0 < used["deterministic"] <= 1 else []


def _geometric(numbers: list[float]) -> float:
    return math.exp(sum(map(math.log, numbers)) / len(numbers))


def mean_ratio(found: list[Tightness]) -> float:
    """The geometric mean of the tightest ratios."""
    return _geometric([each.tightest for each in found])


def _drawn(calls: list[Call], draws: int) -> Iterator[Call]:
    for call in calls:
        sized = SIZED.get(call.operator)
        if sized is not None:
            call = Call(call.operator, {**call.arguments, **sized})
        for seed in range(4 if sized is not None else draws):
            yield redrawn(call, ("normal",), "F32", seed)
        if sized is not None:
            return


def _ones(*shape: int) -> Any:
    return np.full(shape, -1, np.float32)


_QKV = {"query": _ones(1, 2, 64, 64), "key": _ones(1, 2, 64, 64), "value": _ones(1, 2, 64, 64), "attn_mask": None}
SIZED: Final[dict[str, dict[str, Any]]] = {
    "aten.mm.default": {"self": _ones(64, 1024), "mat2": _ones(1024, 64)},
    "aten.bmm.default": {"self": _ones(4, 64, 256), "mat2": _ones(4, 256, 64)},
    "aten.mv.default": {"self": _ones(512, 1024), "vec": _ones(1024)},
    "aten.addmm.default": {"self": _ones(64), "mat1": _ones(64, 1024), "mat2": _ones(1024, 64), "beta": 1, "alpha": 1},
    "aten.matmul.default": {"self": _ones(64, 512), "other": _ones(512, 64)},
    "aten.linear.default": {"input": _ones(64, 512), "weight": _ones(64, 512), "bias": _ones(64)},
    "aten.sum.dim_IntList": {"self": _ones(512, 1024), "dim": (1,), "dtype": None},
    "aten.mean.dim": {"self": _ones(512, 1024), "dim": (1,), "dtype": None},
    "aten._softmax.default": {"self": _ones(64, 1024), "dim": 1, "half_to_float": False},
    "aten._log_softmax.default": {"self": _ones(64, 1024), "dim": 1, "half_to_float": False},
    "aten.native_layer_norm.default": {
        "input": _ones(64, 768),
        "normalized_shape": (768,),
        "weight": _ones(768),
        "bias": _ones(768),
        "eps": 1e-5,
    },
    "aten.scaled_dot_product_attention.default": {**_QKV, "is_causal": False},
    "aten._scaled_dot_product_flash_attention_for_cpu.default": {**_QKV, "is_causal": False},
}
"""Arguments of useful sizes for the operators whose bounds grow with them."""
