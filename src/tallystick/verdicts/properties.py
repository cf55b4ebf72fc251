"""Properties of bound values that can be checked without running anything; a policy names them.

Each property states what it proves. It applies only to nodes whose values are bound, so it is useful when data is
incomplete. A property that applies to no bound value counts as not checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.core.errors import UsageError, suggestion
from tallystick.core.tensors import ROUNDOFF, Tensor, TensorSpec
from tallystick.programs.graph import Graph, Node, Ref, Role
from tallystick.verdicts.tolerance import Finding, euclidean, is_float
from tallystick.verdicts.verdict import AGREES, DIFFERS, Findings

Floats: TypeAlias = npt.NDArray[np.float64]
Array: TypeAlias = npt.NDArray[np.generic]
Values: TypeAlias = Mapping[Ref, Tensor]
Check: TypeAlias = Callable[[Graph, Values], Iterator[Finding]]


@dataclass(frozen=True)
class Property:
    """One property: its name in a policy, what it proves if it holds, and the check."""

    name: str
    proves: str
    check: Check


def judge_properties(notes: Findings, graph: Graph, values: Values, names: Iterable[str]) -> tuple[str, ...]:
    """Note every finding of the named properties; returns what could not be checked, one line for each.

    The name `all` means every property that applies to a bound value. Raises `UsageError` for an unknown property.
    """
    names = tuple(names)
    silent = [name for name in PROPERTIES if not _noted(notes, graph, values, name)] if EVERY in names else []
    silent = [EVERY] if len(silent) == len(PROPERTIES) else []
    silent += [name for name in names if name != EVERY and not _noted(notes, graph, values, name)]
    return tuple(f"property {name}: no value that it applies to is bound" for name in silent)


def _noted(notes: Findings, graph: Graph, values: Values, name: str) -> int:
    """Note all findings of a property; returns their number."""
    if name not in PROPERTIES:
        raise UsageError(f"no such property {name}{suggestion(name, PROPERTIES)}")
    findings = list(PROPERTIES[name].check(graph, values))
    for finding in findings:
        notes.note(finding, name)
    return len(findings)


def _first_results(graph: Graph, values: Values, *operators: str) -> Iterator[tuple[Node, Tensor]]:
    """The nodes whose first result is bound, with that result; of these operators, or of all if none is named."""
    for node in graph.nodes:
        ref = node.outputs[0] if node.outputs else None
        if ref is not None and ref in values and (not operators or node.operator in operators):
            yield node, values[ref]


def _holds(is_met: bool, where: str, detail: str = "") -> Finding:
    return replace(AGREES if is_met else DIFFERS, where=where, detail=detail)


# ---- what every program says of its values

STATE: Final = (Role.WEIGHT, Role.BUFFER, Role.OPTIMIZER)


def check_shapes(graph: Graph, values: Values) -> Iterator[Finding]:
    """Every bound value has the dtype and the shape that the graph derives for it."""
    for ref, spec in graph.specs().items():
        if ref in values:
            bound = TensorSpec.of(values[ref])
            yield _holds(bound == spec, ref, f"{spec}, bound to {bound}")


def check_finite(graph: Graph, values: Values) -> Iterator[Finding]:
    """Weights, optimizer memory, buffers and the results of the graph hold numbers."""
    state = [value.name for value in graph.inputs if value.role in STATE]
    for ref in dict.fromkeys([*state, *(output.value for output in graph.outputs)]):
        if ref in values and is_float(values[ref]):
            wrong = int(np.count_nonzero(~np.isfinite(values[ref].values())))
            yield Finding(float(wrong), 0.0, where=ref, detail=f"{wrong} elements are not finite" if wrong else "")


# ---- functions with a known range

LIBRARY_SLACK: Final = 2.0**-21
"""Eight units of float32 roundoff; no library function exceeds its range by more."""
RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "aten.sigmoid": (0.0, 1.0),
    "aten._softmax": (0.0, 1.0),
    "aten.softmax": (0.0, 1.0),
    "aten._log_softmax": (-math.inf, 0.0),
    "aten.log_softmax": (-math.inf, 0.0),
    "aten.tanh": (-1.0, 1.0),
    "aten.erf": (-1.0, 1.0),
    "aten.sin": (-1.0, 1.0),
    "aten.cos": (-1.0, 1.0),
    "aten.relu": (0.0, math.inf),
    "aten.exp": (0.0, math.inf),
    "aten.sqrt": (0.0, math.inf),
    "aten.rsqrt": (0.0, math.inf),
    "aten.abs": (0.0, math.inf),
    "aten.square": (0.0, math.inf),
    "aten.linalg_vector_norm": (0.0, math.inf),
    "aten.gelu": (-0.171, math.inf),
    "aten.silu": (-0.279, math.inf),
}


def check_ranges(graph: Graph, values: Values) -> Iterator[Finding]:
    """The results of functions with a known range are in that range; NaN is in no range."""
    for node, out in _first_results(graph, values):
        limits = RANGES.get(".".join(node.operator.split(".")[:2]))
        if limits is None:
            continue
        numbers = out.values().astype(np.float64)
        with np.errstate(invalid="ignore"):
            excess = np.maximum(limits[0] - numbers, numbers - limits[1])
        excess = np.where(np.isnan(numbers), np.inf, np.maximum(np.nan_to_num(excess, nan=0.0), 0.0))
        yield Finding(float(np.max(excess, initial=0.0)), LIBRARY_SLACK, where=f"node {node.number}")


# ---- rows of a softmax and of a normalisation, whatever their operands are
#
# Let u be the roundoff of the precision of the computation. A sum of n computed terms has a relative error of at most
# n·u (Higham 2002, §4.2), and quotients by this sum add up to 1 within the same error.

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


def check_softmax(graph: Graph, values: Values) -> Iterator[Finding]:
    """The rows have |Σ p − 1| ≤ (n + 4)·u plus the rounding of storage, and every p is at least 0."""
    for node, out in _first_results(graph, values, *SOFTMAX, *LOG_SOFTMAX):
        weights, axis = out.values().astype(np.float64), _axis(node, len(out.shape))
        if node.operator in LOG_SOFTMAX:
            with np.errstate(over="ignore", invalid="ignore"):
                weights = np.exp(weights)
        excess = np.abs(weights.sum(axis if out.shape else None) - 1.0)
        distance = np.inf if np.min(weights, initial=0.0) < 0 else float(np.max(excess, initial=0.0))
        length = out.shape[axis] if out.shape else 1
        computed = (2 * length + 16) * ROUNDOFF["F64" if out.dtype == "F64" else "F32"]
        stored = (math.log(max(length, 2)) + 2) * ROUNDOFF[out.dtype] + length * SMALLEST[out.dtype]
        yield Finding(float(distance), computed + stored, where=f"node {node.number}")


def check_masks(graph: Graph, values: Values) -> Iterator[Finding]:
    """A score 800 or more below the largest of its row has weight exactly 0."""
    for node, out in _first_results(graph, values, *SOFTMAX):
        operand = node.operands.get("self")
        if not isinstance(operand, str) or operand not in values or not out.shape:
            continue
        scores = values[operand].values().astype(np.float64)
        largest = scores.max(_axis(node, len(out.shape)), keepdims=True, initial=-np.inf)
        masked = scores < np.where(np.isfinite(largest), largest - UNDERFLOWS, -np.inf)
        masked |= np.isneginf(scores) & np.isfinite(largest)
        if masked.any():
            leaked = int(np.count_nonzero(out.values()[masked]))
            detail = f"{leaked} of {int(masked.sum())} masked positions have weight" if leaked else ""
            yield Finding(float(leaked), 0.0, where=f"node {node.number}", detail=detail)


def check_norms(graph: Graph, values: Values) -> Iterator[Finding]:
    """‖row‖₂ ≤ √n · max |weight| + ‖bias‖₂, where weight and bias are bound or absent."""
    for node, out in _first_results(graph, values, *NORMS):
        affine = [node.operands.get(name) for name in ("weight", "bias")]
        if not all(operand is None or operand in values for operand in affine):
            continue
        weight, bias = (values[ref].values().astype(np.float64) if isinstance(ref, str) else None for ref in affine)
        shape = node.attributes.get("normalized_shape")
        axes = len(shape) if isinstance(shape, tuple) else 0
        rows = out.values().astype(np.float64).reshape(*out.shape[: len(out.shape) - axes], -1)
        length = rows.shape[-1]
        largest = 1.0 if weight is None else float(np.max(np.abs(weight), initial=0.0))
        shift = 0.0 if bias is None else euclidean(bias)
        slack = 1.0 + (length + 16) * ROUNDOFF["F32"] + 2 * ROUNDOFF[out.dtype]
        longest = float(np.max(np.linalg.norm(rows, axis=-1), initial=0.0))
        yield Finding(longest, (math.sqrt(length) * largest + shift) * slack, where=f"node {node.number}")


# ---- the flow of data: counters grow, and moves, splits and sums conserve their elements

MOVES: Final = tuple(
    f"aten.{name}"
    for name in (
        *("view.default", "reshape.default", "_unsafe_view.default", "permute.default", "transpose.int", "t.default"),
        *("squeeze.dim", "squeeze.dims", "squeeze.default", "unsqueeze.default", "flatten.using_ints", "alias.default"),
        *("clone.default", "contiguous.default", "detach.default", "flip.default", "roll.default"),
    )
)
SPLITS: Final = ("aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default")
SUMS: Final = ("aten.sum.default", "aten.sum.dim_IntList")
COUNTERS: Final = (".step", "position.step")


def check_positions(graph: Graph, values: Values) -> Iterator[Finding]:
    """Ranges grow, sorted values are sorted, and each counter of the state is larger by one after the step."""
    for node, out in _first_results(graph, values):
        array, where = out.values(), f"node {node.number}"
        if node.operator.startswith("aten.arange.") and array.size > 1:
            moves = np.diff(array.astype(np.float64))
            yield _holds(bool((moves > 0).all() or (moves < 0).all()), where, "a range of positions")
        if node.operator.startswith("aten.sort.") and array.ndim:
            moves = np.diff(array.astype(np.float64), axis=_axis(node, array.ndim))
            in_order = moves <= 0 if node.attributes.get("descending") else moves >= 0
            yield _holds(bool(in_order.all()), where, "sorted values")
    for output in graph.outputs:
        if output.name.endswith(COUNTERS) and output.name in values and output.value in values:
            step = values[output.value].values().astype(np.float64) - values[output.name].values()
            yield _holds(bool((step == 1).all()), output.name)


def check_conservation(graph: Graph, values: Values) -> Iterator[Finding]:
    """Moved elements keep their bits, parts make up the whole, and partial sums add up to the sum of all elements."""
    for node in graph.nodes:
        refs = [ref for ref in node.outputs if ref is not None]
        if not refs or not node.refs or not all(ref in values for ref in (*refs, *node.refs)):
            continue
        sources, results = [values[ref] for ref in node.refs], [values[ref] for ref in refs]
        where = f"node {node.number}"
        if node.operator in SUMS and results[0].dtype in ROUNDOFF and sources[0].dtype in ROUNDOFF:
            yield _total(sources[0], results[0], where)
        elif node.operator in CONSERVES:
            is_kept = CONSERVES[node.operator](node, [t.array() for t in sources], [t.array() for t in results])
            yield _holds(is_kept, where, node.operator)


def _total(source: Tensor, result: Tensor, where: str) -> Finding:
    whole, parts = source.values().astype(np.float64), result.values().astype(np.float64)
    length = max(1, whole.size // max(1, parts.size))
    unit = ROUNDOFF["F64" if source.dtype == "F64" else "F32"]
    size = float(np.abs(whole).sum())
    allowed = 2 * (length * unit + ROUNDOFF[result.dtype]) * size + whole.size * ROUNDOFF["F64"] * size
    return Finding(abs(float(whole.sum() - parts.sum())), allowed, where=where, detail="the sum of the sums")


def _same_elements(_: Node, sources: list[Array], results: list[Array]) -> bool:
    return np.array_equal(np.sort(_bits(sources[0])), np.sort(_bits(results[0])))


def _make_up(node: Node, parts: list[Array], whole: list[Array]) -> bool:
    joined = np.concatenate(parts, _axis(node, whole[0].ndim))
    return joined.shape == whole[0].shape and np.array_equal(_bits(joined), _bits(whole[0]))


CONSERVES: Final[Mapping[str, Callable[[Node, list[Any], list[Any]], bool]]] = {
    **dict.fromkeys(MOVES, _same_elements),
    **dict.fromkeys(SPLITS, lambda node, sources, results: _make_up(node, results, sources)),
    "aten.cat.default": _make_up,
}


def _bits(array: Array) -> npt.NDArray[np.uint64]:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(f"u{flat.dtype.itemsize}").astype(np.uint64)


def _axis(node: Node, axes: int) -> int:
    dim = node.attributes.get("dim")
    return dim % axes if isinstance(dim, int) and axes else 0


EVERY: Final = "all"
PROPERTIES: Final[Mapping[str, Property]] = {
    known.name: known
    for known in (
        Property("shapes", "every bound value has the dtype and shape that the program gives it", check_shapes),
        Property("finite", "no weight, optimizer memory, buffer or result is NaN or infinite", check_finite),
        Property("ranges", "results of bounded functions lie in their range", check_ranges),
        Property("softmax", "rows of a softmax are weights: from 0 to 1, and they sum to one", check_softmax),
        Property("masks", "what a mask excludes has weight exactly 0", check_masks),
        Property("norms", "a normalised row is no longer than its weights allow", check_norms),
        Property("positions", "positions and counters grow, and sorted values are sorted", check_positions),
        Property(
            "conservation", "what is split, joined, moved or summed is neither lost nor added", check_conservation
        ),
    )
}
