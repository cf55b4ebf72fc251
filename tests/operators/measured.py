"""How much of its bound each operator uses: honest runs on ordinary operands of useful sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from tests.operators.examples import Call
from tests.operators.honest import as_dtype, bounds_of, redrawn, results_of

from tallystick.errors import MalformedError, UnavailableError
from tallystick.graphs.engine import Engine
from tallystick.operators.rounding import DETERMINISTIC, Model, Probabilistic, Variance

MODELS: Final[tuple[Model, ...]] = (DETERMINISTIC, Probabilistic(6.0), Variance(6.0))
DRAWS: Final = 12


@dataclass(frozen=True)
class Tightness:
    """Bound ÷ error at the element that comes closest to its bound, by model; over `elements` inexact elements."""

    ratios: dict[str, float]
    elements: int

    @property
    def tightest(self) -> float:
        """Of the two bounds that hold with a stated probability; the deterministic one where it is less."""
        return min(self.ratios.values())


def tightness(calls: list[Call], engine: Engine, draws: int = DRAWS) -> Tightness | None:
    """`None` where the engine makes no rounding error, or does not run the operator."""
    largest, elements = dict.fromkeys((model.name for model in MODELS), 0.0), 0
    for call in _drawn(calls, draws):
        try:
            bounds = {model.name: bounds_of(call, model=model) for model in MODELS}
            results = results_of(call, engine, bounds["deterministic"])
        except (UnavailableError, MalformedError):
            continue
        for index, result in enumerate(results):
            if result is None:
                continue
            for name, found in bounds.items():
                bound = found[index]
                assert bound is not None
                share = bound.excess(result)
                largest[name] = max(largest[name], float(share.max(initial=0.0)))
                elements += int((share > 0).sum()) if name == "deterministic" else 0
    if not largest["deterministic"]:
        return None
    return Tightness({name: 1 / share for name, share in largest.items()}, elements)


def mean_ratio(found: list[Tightness]) -> float:
    """The geometric mean of the tightest ratios."""
    return math.exp(sum(math.log(each.tightest) for each in found) / len(found))


def _drawn(calls: list[Call], draws: int) -> Iterator[Call]:
    for call in calls:
        sized = SIZED.get(call.operator)
        yield as_dtype(call, "F32")
        for seed in range(draws):
            yield redrawn(call, ("normal",), "F32", seed)
        if sized is not None:
            for seed in range(2):
                yield redrawn(Call(call.operator, {**call.arguments, **sized}), ("normal",), "F32", seed)
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
    "aten.cumsum.default": {"self": _ones(64, 1024), "dim": 1, "dtype": None},
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
