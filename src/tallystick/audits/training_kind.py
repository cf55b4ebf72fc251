"""What kind of training a run is, as far as calibrated limits depend on it: from its recipe, or from its step graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tallystick.audits.calibration import Family, family_of
from tallystick.audits.checked_run import CheckedRun
from tallystick.errors import UnavailableError
from tallystick.graphs.graph import Graph
from tallystick.workloads.program import StepProgram
from tallystick.workloads.schedule import learning_rate


@dataclass(frozen=True)
class TrainingKind:
    """One training: the family of its model, its optimizer, its precision, and the learning rate of each step."""

    family: Family
    optimizer: Literal["adamw", "sgd"]
    dtype: Literal["fp32", "bf16"]
    rate: Callable[[int], float]


def workload_of(evidence: CheckedRun) -> TrainingKind:
    """The workload of a run that can be replayed; raises `UnavailableError` where no limits can fit it."""
    recipe, program = evidence.spec.recipe, evidence.program
    if recipe is not None:
        kind, dtype = recipe.optimizer.kind, recipe.training.dtype
        return TrainingKind(family_of(recipe), kind, dtype, lambda step: learning_rate(recipe, step))
    assert program is not None  # a run without recipe is replayed from its graph
    return TrainingKind(
        _family(program.graph),
        _optimizer(program),
        _precision(program.graph),
        lambda step: max(program.rates(step)),
    )


def _family(graph: Graph) -> Family:
    operators = {node.operator.split(".")[1] for node in graph.nodes}
    if "embedding" in operators:
        return "language"
    if operators & {"convolution", "conv2d"}:
        return "image"
    raise UnavailableError(
        "limits are calibrated for language models and convolutional classifiers, and this is neither"
    )


def _optimizer(program: StepProgram) -> Literal["adamw", "sgd"]:
    kinds = {rule.kind for rule in program.rules}
    if kinds == {"adamw"}:
        return "adamw"
    if kinds == {"sgd"}:
        return "sgd"
    raise UnavailableError(f"no limits are calibrated for the optimizer {', '.join(sorted(kinds))}")


def _precision(graph: Graph) -> Literal["fp32", "bf16"]:
    dtypes = {spec.dtype for spec in graph.specs().values() if spec.is_float} - {"F64"}
    if dtypes <= {"F32"}:
        return "fp32"
    if dtypes <= {"F32", "BF16"}:
        return "bf16"
    raise UnavailableError(f"no limits are calibrated for {', '.join(sorted(dtypes))}")
