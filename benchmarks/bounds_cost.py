"""Bounds of every operator of a forward pass, computed beside it ÷ the forward pass itself.

The forward pass is the captured graph on PyTorch. The bounds are what a judge computes: exact results and radii in
float64 from the same operands, once on NumPy (the trusted base) and once on PyTorch's arrays. The plan's goal is 1.5.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.figure import Figure, Goal
from benchmarks.measure import interval, median_ratio, take_rounds
from tallystick.attacks.inference.workload import run_values
from tallystick.graphs import Graph, Ref
from tallystick.graphs.values import float_results, operands_of
from tallystick.operators.arrays import Library, library
from tallystick.operators.bound import bound
from tallystick.operators.registry import operator
from tallystick.operators.rounding import Deterministic, Model, Variance
from tallystick.studies.operators.attacks import workloads
from tallystick.studies.operators.workloads import MODELS
from tallystick.tensors import Tensor

GOAL = Goal(1.5)
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
    arms = {"forward": partial(program, loaded), "forward again": partial(program, loaded)}
    kinds = [(on, model) for on in ("numpy", "torch") for model in MODELS_OF_ERROR]
    for on, model in kinds:
        arms[f"{model} on {on}"] = partial(_bounds, work.graph, values, MODELS_OF_ERROR[model], library(on))
    rng = random.Random(8)
    rounds = take_rounds(arms, count, rng)
    control = interval(rounds, median_ratio("forward again", "forward", "cpu"), rng)
    for on, model in kinds:
        value = interval(rounds, median_ratio(f"{model} on {on}", "forward", "cpu"), rng)
        what = f"{model} bounds of all operators of {name} on {on} ÷ its forward pass"
        details = {"forward ÷ forward": control, "operators": len(work.graph.nodes)}
        yield Figure(
            f"bounds_cost: {name}, {model}, {on}", what, value, count, "CPU (median)", goal=GOAL, details=details
        )


def _bounds(graph: Graph, values: Mapping[Ref, Tensor], model: Model, arrays: Library) -> None:
    for node in graph.nodes:
        if float_results(node):
            bound(
                operator(node.operator), {**operands_of(node, values), **node.attributes}, model=model, library=arrays
            )
