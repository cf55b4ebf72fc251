"""Properties of rows that hold after softmax and normalisation whatever their operands are.

Let u be the roundoff of the precision of the computation. A sum of n computed terms has a relative error of at most n·u
(Higham 2002, §4.2), and quotients by this sum add up to 1 within the same error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.graphs.graph import Graph, Node, Ref
from tallystick.tensors.dtypes import ROUNDOFF
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.sums import euclidean
from tallystick.tolerances.tolerance import Finding

Floats = npt.NDArray[np.float64]
SMALLEST: Final = {"F64": 2.0**-1074, "F32": 2.0**-149, "F16": 2.0**-24, "BF16": 2.0**-133}
UNDERFLOWS: Final = 800.0
"""e⁻⁸⁰⁰ is 0 in every format, float64 included."""
SOFTMAX: Final = ("aten._softmax.default", "aten.softmax.int")
LOG_SOFTMAX: Final = ("aten._log_softmax.default", "aten.log_softmax.int")
NORMS: Final = (
    "aten.layer_norm.default",
    "aten.native_layer_norm.default",
    "aten.rms_norm.default",
    "aten._fused_rms_norm.default",
)
Values = Mapping[Ref, Tensor]


def check_softmax(graph: Graph, values: Values) -> Iterator[Finding]:
    """Each row has |Σ p − 1| ≤ (n + 4)·u plus the rounding of storage, and every p is at least 0."""
    for node, out, axis in _rows(graph, values, (*SOFTMAX, *LOG_SOFTMAX)):
        given = out.values().astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            weights = np.exp(given) if node.operator in LOG_SOFTMAX else given
        sides = out.shape[axis] if out.shape else 1
        excess = np.abs(weights.sum(axis if out.shape else None) - 1.0)
        distance = np.inf if np.min(weights, initial=0.0) < 0 else float(np.max(excess, initial=0.0))
        yield Finding(float(distance), _row_slack(out.dtype, sides), where=f"node {node.number}")


def check_masks(graph: Graph, values: Values) -> Iterator[Finding]:
    """A score 800 or more below the largest of its row has weight exactly 0."""
    for node, out, axis in _rows(graph, values, SOFTMAX):
        operand = node.operands.get("self")
        if not isinstance(operand, str) or operand not in values or not out.shape:
            continue
        scores = values[operand].values().astype(np.float64)
        largest = scores.max(axis, keepdims=True, initial=-np.inf)
        masked = scores < np.where(np.isfinite(largest), largest - UNDERFLOWS, -np.inf)
        masked |= np.isneginf(scores) & np.isfinite(largest)
        if masked.any():
            leaked = int(np.count_nonzero(out.values()[masked]))
            detail = f"{leaked} of {int(masked.sum())} masked positions have weight" if leaked else ""
            yield Finding(float(leaked), 0.0, where=f"node {node.number}", detail=detail)


def check_norms(graph: Graph, values: Values) -> Iterator[Finding]:
    """‖row‖₂ ≤ √n · max |weight| + ‖bias‖₂, where weight and bias are bound or absent."""
    for node in graph.nodes:
        ref = node.outputs[0] if node.outputs else None
        if ref is None or node.operator not in NORMS or ref not in values:
            continue
        affine = [node.operands.get(name) for name in ("weight", "bias")]
        if all(operand is None or operand in values for operand in affine):
            yield _longest_row(node, values[ref], values)


def _longest_row(node: Node, out: Tensor, values: Values) -> Finding:
    shape = node.attributes.get("normalized_shape")
    sides = len(shape) if isinstance(shape, tuple) else 0
    rows = out.values().astype(np.float64).reshape(*out.shape[: len(out.shape) - sides], -1)
    length = rows.shape[-1]
    weight, bias = (_operand(node, name, values) for name in ("weight", "bias"))
    largest = 1.0 if weight is None else float(np.max(np.abs(weight), initial=0.0))
    shift = 0.0 if bias is None else euclidean(bias)
    slack = 1.0 + (length + 16) * ROUNDOFF["F32"] + 2 * ROUNDOFF[out.dtype]
    longest = float(np.max(np.linalg.norm(rows, axis=-1), initial=0.0))
    return Finding(longest, (math.sqrt(length) * largest + shift) * slack, where=f"node {node.number}")


def _rows(graph: Graph, values: Values, operators: tuple[str, ...]) -> Iterator[tuple[Node, Tensor, int]]:
    for node in graph.nodes:
        ref = node.outputs[0] if node.outputs else None
        if node.operator in operators and ref is not None and ref in values:
            dim, out = node.attributes["dim"], values[ref]
            assert isinstance(dim, int)  # held by the operator's parameters
            yield node, out, dim % max(1, len(out.shape))


def _row_slack(dtype: str, length: int) -> float:
    computed = ROUNDOFF["F64" if dtype == "F64" else "F32"]
    stored = (math.log(max(length, 2)) + 2) * ROUNDOFF[dtype] + length * SMALLEST[dtype]
    return (2 * length + 16) * computed + stored


def _operand(node: Node, name: str, values: Values) -> Floats | None:
    ref = node.operands.get(name)
    return values[ref].values().astype(np.float64) if isinstance(ref, str) else None
