"""Bounds of every operator of a forward pass, computed beside it ÷ the forward pass itself.

The forward pass is the captured graph on PyTorch. The bounds are computed from the same operands in two ways: as a
judge does, exact results and radii in float64 on NumPy (the trusted base), and for the whole graph at once in float32
on PyTorch (`tallystick.torch.GraphBounds`), whose weights are prepared beforehand. The plan's goal is 1.5. By norms,
‖x‖‖w‖ takes the place of |x||w| in linear layers, convolutions and products of matrices (`products="norms"`). How much
larger that makes their radii is given beside it: the ratio of both at every element, its median and the largest.

A floor is measured beside it: radii of products alone, in float32 on PyTorch, |x| |w| for each product x w.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.figure import Figure, Goal
from benchmarks.measure import interval, median_ratio, take_rounds
from research.operators.attacks import workloads
from research.operators.rounding_models import Variance
from research.operators.workloads import MODELS
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.graph_bounds import MAGNITUDES, NORMS, SUMS, GraphBounds, TensorBound
from tallystick.programs.graph import Graph, Ref, float_results, operands_of
from tallystick.programs.operators.balls.bound import bound
from tallystick.programs.operators.definition import operator
from tallystick.programs.operators.rounding import Deterministic, Model
from tests.support.attacks.inference.workload import run_values

GOAL = Goal(1.5)
FLOOR = "radii of products alone, float32 on torch"
BY_NORMS = "torch in F32 by norms"
ON_TORCH = {"torch in F32": MAGNITUDES, BY_NORMS: NORMS}
MODELS_OF_ERROR: Mapping[str, Model] = {"deterministic": Deterministic(), "variance": Variance()}


def figures(quick: bool) -> Iterator[Figure]:
    torch.set_num_threads(1)
    for name in ("digits-cnn",) if quick else ("digits-cnn", "minilm"):
        with TemporaryDirectory() as folder:
            yield from _model(name, Path(folder), 3 if quick else 12)


def _model(name: str, folder: Path, count: int) -> Iterator[Figure]:
    work = next(workloads(MODELS[name](folder, 1)))
    values = run_values(work)
    engine: Any = work.engine
    program = engine.compile(work.graph)
    loaded = {ref: engine.load(tensor) for ref, tensor in work.bindings.items()}
    arms = {
        "forward": partial(program, loaded),
        "forward again": partial(program, loaded),
        FLOOR: partial(_magnitudes, list(_products(work.graph, values))),
    }
    kinds = [(on, model) for on in ("numpy", *ON_TORCH) for model in MODELS_OF_ERROR]
    looser: dict[tuple[str, str], dict[str, float]] = {}
    tensors = {ref: engine.load(tensor) for ref, tensor in values.items()}
    for name_of, model in MODELS_OF_ERROR.items():
        arms[f"{name_of} on numpy"] = partial(_bounds, work.graph, values, model)
        by = {on: GraphBounds(work.graph, work.bindings, model=model, products=ON_TORCH[on]) for on in ON_TORCH}
        arms |= {f"{name_of} on {on}": partial(whole.beside, tensors) for on, whole in by.items()}
        tight, loose = (whole.beside(tensors) for whole in by.values())
        looser[BY_NORMS, name_of] = _looser(work.graph, tight, loose)
    rng = random.Random(8)
    rounds = take_rounds(arms, count, rng)
    control = interval(rounds, median_ratio("forward again", "forward", "cpu"), rng)
    floor = interval(rounds, median_ratio(FLOOR, "forward", "cpu"), rng)
    yield Figure(f"bounds_cost: {name}, {FLOOR}", f"{FLOOR} of {name} ÷ its forward pass", floor, count, "CPU (median)")
    for on, model in kinds:
        value = interval(rounds, median_ratio(f"{model} on {on}", "forward", "cpu"), rng)
        what = f"{model} bounds of all operators of {name} on {on} ÷ its forward pass"
        details = {"forward ÷ forward": control, "operators": len(work.graph.nodes), **looser.get((on, model), {})}
        yield Figure(
            f"bounds_cost: {name}, {model}, {on}", what, value, count, "CPU (median)", goal=GOAL, details=details
        )


def _looser(graph: Graph, tight: Mapping[Ref, TensorBound], loose: Mapping[Ref, TensorBound]) -> dict[str, float]:
    """Radii by norms ÷ radii by magnitudes: of all elements of all sums of products."""
    refs = [ref for node in graph.nodes if node.operator in SUMS for ref in node.outputs if ref in tight]
    ratios = torch.cat([(loose[ref].radius / tight[ref].radius).flatten() for ref in refs])
    return {"radius by norms ÷ by magnitudes, median": float(ratios.median()), "largest": float(ratios.max())}


def _products(graph: Graph, values: Mapping[Ref, Tensor]) -> Iterator[Callable[[], torch.Tensor]]:
    """Each product of the graph on the magnitudes of its operands; those of weights are known beforehand."""
    weights = {source.name for source in graph.sources}
    for node in graph.nodes:
        kernel = PRODUCTS.get(node.operator)
        if kernel is not None:
            refs = [ref for ref in node.operands.values() if isinstance(ref, str)][:2]
            pair = [torch.from_numpy(values[ref].array().copy()) for ref in refs]
            known = [tensor.abs() if ref in weights else None for ref, tensor in zip(refs, pair, strict=True)]
            yield partial(_product, kernel, pair, known, dict(node.attributes))


def _product(kernel: Any, pair: list[torch.Tensor], known: list[torch.Tensor | None], attributes: Any) -> torch.Tensor:
    left, right = (tensor.abs() if held is None else held for tensor, held in zip(pair, known, strict=True))
    found: torch.Tensor = kernel(left, right, attributes)
    return found


def _magnitudes(products: list[Callable[[], torch.Tensor]]) -> None:
    with torch.inference_mode():
        for product in products:
            product().mul_(2.0**-24)


PRODUCTS: Mapping[str, Callable[..., torch.Tensor]] = {
    "aten.linear.default": lambda x, w, _: torch.nn.functional.linear(x, w),
    "aten.matmul.default": lambda x, w, _: torch.matmul(x, w),
    "aten.conv2d.default": lambda x, w, attributes: torch.nn.functional.conv2d(
        x, w, stride=attributes["stride"], padding=attributes["padding"]
    ),
}


def _bounds(graph: Graph, values: Mapping[Ref, Tensor], model: Model) -> None:
    for node in graph.nodes:
        if float_results(node):
            bound(operator(node.operator), {**operands_of(node, values), **node.attributes}, model=model)
