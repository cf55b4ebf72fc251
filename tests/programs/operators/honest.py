"""Honest runs of operators on adversarial operands, to be held against their bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.execution import Engine
from tallystick.programs.graph import Node
from tallystick.programs.operators.balls.bound import ResultBound, bound
from tallystick.programs.operators.definition import operator
from tallystick.programs.operators.precision import FORMATS
from tests.programs.operators.examples import Bf16, Call, mapped

NAMES: Final = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}
Array = npt.NDArray[Any]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]
FLOATS: Final = ("F32", "BF16", "F16")
SEARCHED: Final = (*FLOATS, "F64")
LARGEST: Final = {name: FORMATS[name].largest for name in SEARCHED}


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape)


def _cancelling(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Neighbours that nearly cancel, of both signs."""
    x = rng.standard_normal() * (1 + 1e-3 * rng.standard_normal(shape))
    return x * np.where(np.arange(x.size).reshape(shape) % 2 == 0, 1, -1)


def _special(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-41, -1e-41, 1.2e-38, 3.3e38, 1.0])
    return np.where(rng.random(shape) < 0.8, rng.standard_normal(shape), rng.choice(odd, shape))


PROFILES: Final[Mapping[str, Draw]] = {
    "normal": _normal,
    "mean": lambda rng, shape: 100 + rng.standard_normal(shape),
    "wide": lambda rng, shape: rng.standard_normal(shape) * np.exp(rng.uniform(-12, 12, shape)),
    "huge": lambda rng, shape: rng.standard_normal(shape) * 10.0 ** rng.uniform(15, 38),
    "tiny": lambda rng, shape: rng.standard_normal(shape) * 10.0 ** rng.uniform(-45, -20, shape),
    "cancelling": _cancelling,
    "constant": lambda rng, shape: np.full(shape, rng.choice([0.0, 1.0, -1.0, 0.1, 1e4])),
    "whole": lambda rng, shape: rng.integers(-4, 5, shape).astype(np.float64),
    "special": _special,
}


def redrawn(call: Call, profiles: tuple[str, ...], dtype: str, seed: int) -> Call:
    """`call` with other numbers of the same shapes, all floats as `dtype`; operands that are ≥ 0 stay so."""
    rng, count = np.random.default_rng(seed), 0
    found: dict[str, Any] = {}
    for name, argument in call.arguments.items():
        found[name] = _redrawn(argument, rng, profiles[count % len(profiles)], dtype)
        count += found[name] is not argument
    return Call(call.operator, found)


def as_dtype(call: Call, dtype: str) -> Call:
    """`call` with all floats as `dtype`."""
    return Call(call.operator, {name: _cast(value, dtype) for name, value in call.arguments.items()})


def _redrawn(argument: Any, rng: np.random.Generator, profile: str, dtype: str) -> Any:
    if isinstance(argument, tuple):
        return tuple(_redrawn(item, rng, profile, dtype) for item in argument)
    held = argument.array if isinstance(argument, Bf16) else argument
    if not isinstance(held, np.ndarray | np.generic) or held.dtype.kind != "f":
        return argument
    drawn = PROFILES[profile](rng, held.shape)
    return _held(np.abs(drawn) if held.size and (held >= 0).all() else drawn, dtype)


def _cast(argument: Any, dtype: str) -> Any:
    if isinstance(argument, tuple):
        return tuple(_cast(item, dtype) for item in argument)
    held = argument.array if isinstance(argument, Bf16) else argument
    return _held(held, dtype) if isinstance(held, np.ndarray | np.generic) and held.dtype.kind == "f" else argument


def _held(drawn: Array, dtype: str) -> Any:
    drawn = np.asarray(drawn)
    with np.errstate(all="ignore"):
        limited = np.where(np.isfinite(drawn), np.clip(drawn, -LARGEST[dtype], LARGEST[dtype]), drawn)
        return (
            Bf16(limited.astype(np.float32))
            if dtype == "BF16"
            else np.asarray(limited, {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[dtype])
        )


@dataclass(frozen=True)
class Leaving:
    """An element outside its bound."""

    call: Call
    result: int
    share: float
    claimed: Any
    bound: ResultBound

    def __str__(self) -> str:
        return f"{self.call} result {self.result}: {self.share:.3g} of the bound"


def results_of(call: Call, engine: Engine, bounds: tuple[ResultBound | None, ...]) -> list[Tensor | None]:
    """What an engine computes; `bounds` tells what the results are."""
    described = operator(call.operator)
    specs = tuple(None if each is None else TensorSpec(each.dtype, each.value.shape) for each in bounds)
    operands = {
        p.name: p.name if call.arguments[p.name] is not None else None for p in described.parameters if p.is_operand
    }
    attributes = {p.name: call.arguments[p.name] for p in described.parameters if not p.is_operand}
    for name in operands:
        if isinstance(call.arguments[name], tuple):
            operands[name] = tuple(
                None if item is None else f"{name}{i}" for i, item in enumerate(call.arguments[name])
            )  # type: ignore[assignment]
    node = Node(0, call.operator, operands, attributes, specs)
    loaded = mapped({name: call.arguments[name] for name in operands}, engine.load)
    results = engine.prepare(node)(loaded)
    return [
        None if spec is None or result is None else _unloaded(engine, result, spec.dtype)
        for spec, result in zip(specs, results, strict=True)
    ]


def _unloaded(engine: Engine, result: Any, dtype: str) -> Tensor | None:
    """PyTorch's kernels on CPUs keep some F32 statistics in F16 and BF16: these are widened, which is exact.

    A softmax's gradient for a type that its operands do not have is in theirs, whatever is asked for: not compared.
    """
    held = NAMES.get(str(getattr(result, "dtype", "")).removeprefix("torch."))
    if engine.name == "iree":
        held = result.spec.dtype
    if dtype == "F32" and held in {"F16", "BF16"}:
        return Tensor.of(engine.unload(result, held).values().astype(np.float32))
    return engine.unload(result, dtype) if held in {dtype, None} else None


def bounds_of(call: Call, **settings: Any) -> tuple[ResultBound | None, ...]:
    """The bound of each result."""
    return bound(operator(call.operator), mapped(call.arguments, lambda tensor: tensor), **settings)


def shares(call: Call, engine: Engine, **settings: Any) -> list[tuple[ResultBound, Tensor, npt.NDArray[np.float64]]]:
    """Of each result that is computed: its bound, the result, and which share of the bound each element uses."""
    bounds = bounds_of(call, **settings)
    computed = results_of(call, engine, bounds)
    return [
        (each, result, each.excess(result))
        for each, result in zip(bounds, computed, strict=True)
        if each is not None and result is not None
    ]


def leaving(call: Call, engine: Engine, **settings: Any) -> Leaving | None:
    """The first result that has left its bound."""
    for index, (each, result, share) in enumerate(shares(call, engine, **settings)):
        if share.size and share.max() > 1:
            return Leaving(call, index, float(share.max()), result, each)
    return None
