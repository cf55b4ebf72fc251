"""Properties of bound values that can be checked without running anything; a policy names them.

Each property states what it proves. It applies only to nodes whose values are bound, so it is useful when data is
incomplete. A property that applies to no bound value counts as not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tallystick.errors import UsageError
from tallystick.graphs.graph import Graph, Node, Ref, Role
from tallystick.judging.findings import AGREES, DIFFERS, Findings
from tallystick.judging.flow_properties import check_conservation, check_positions
from tallystick.judging.row_properties import check_masks, check_norms, check_softmax
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.tolerance import Finding

Values = Mapping[Ref, Tensor]
Check = Callable[[Graph, Values], Iterator[Finding]]
STATE: Final = (Role.WEIGHT, Role.BUFFER, Role.OPTIMIZER)
LIBRARY_SLACK: Final = 2.0**-21
"""Eight units of float32 roundoff; no library function exceeds its range by more."""


@dataclass(frozen=True)
class Property:
    """One property: its name in a policy, what it proves if it holds, and the check."""

    name: str
    proves: str
    check: Check


def judge_properties(notes: Findings, graph: Graph, values: Values, names: Iterable[str]) -> tuple[str, ...]:
    """Note every finding of the named properties; returns what could not be checked, one line each.

    The name `all` means every property that applies to a bound value. Raises `UsageError` for an unknown property.
    """
    names = tuple(names)
    silent = [name for name in PROPERTIES if not _noted(notes, graph, values, name)] if EVERY in names else []
    silent = [EVERY] if len(silent) == len(PROPERTIES) else []
    silent += [name for name in names if name != EVERY and not _noted(notes, graph, values, name)]
    return tuple(f"property {name}: no value that it applies to is bound" for name in silent)


def _noted(notes: Findings, graph: Graph, values: Values, name: str) -> int:
    """Note all findings of a property; returns their number."""
    found = list(find_property(name).check(graph, values))
    for finding in found:
        notes.note(finding, name)
    return len(found)


def find_property(name: str) -> Property:
    """The property of that name; raises `UsageError` listing those that exist."""
    if name not in PROPERTIES:
        from tallystick.documents.suggestions import suggestion

        raise UsageError(f"no such property {name}{suggestion(name, PROPERTIES)}")
    return PROPERTIES[name]


def check_shapes(graph: Graph, values: Values) -> Iterator[Finding]:
    """Every bound value has the dtype and the shape that the graph derives for it."""
    for ref, spec in graph.specs().items():
        if ref in values:
            found = TensorSpec.of(values[ref])
            yield replace(AGREES if found == spec else DIFFERS, where=ref, detail=f"{spec}, bound to {found}")


def check_finite(graph: Graph, values: Values) -> Iterator[Finding]:
    """Weights, optimizer memory, buffers and the results of the graph hold numbers."""
    state = [value.name for value in graph.inputs if value.role in STATE]
    for ref in dict.fromkeys([*state, *(output.value for output in graph.outputs)]):
        if ref in values and values[ref].dtype in FLOATS:
            wrong = int(np.count_nonzero(~np.isfinite(values[ref].values())))
            yield Finding(float(wrong), 0.0, where=ref, detail=f"{wrong} elements are not finite" if wrong else "")


def check_ranges(graph: Graph, values: Values) -> Iterator[Finding]:
    """The results of functions with a known range are in that range; NaN is in no range."""
    for node in graph.nodes:
        limits, ref = RANGES.get(".".join(node.operator.split(".")[:2])), node.outputs[0] if node.outputs else None
        if limits is not None and ref is not None and ref in values:
            yield _outside(node, values[ref].values().astype(np.float64), limits)


def _outside(node: Node, found: np.ndarray, limits: tuple[float, float]) -> Finding:
    low, high = limits
    with np.errstate(invalid="ignore"):
        excess = np.maximum(low - found, found - high)
    excess = np.where(np.isnan(excess) & np.isnan(found), np.inf, np.maximum(np.nan_to_num(excess, nan=0.0), 0.0))
    return Finding(float(np.max(excess, initial=0.0)), LIBRARY_SLACK, where=f"node {node.number}")


def check_conserved(values: Values, whole: Ref, parts: Sequence[Ref]) -> Finding:
    """The elements of `parts` together are those of `whole`, in any order; raises `UsageError` if one is unbound."""
    missing = [ref for ref in (whole, *parts) if ref not in values]
    if missing:
        raise UsageError(f"{missing[0]} is not bound")
    pieces = np.concatenate([_elements(values[part]) for part in parts])
    same = np.array_equal(np.sort(pieces), np.sort(_elements(values[whole])))
    return replace(AGREES if same else DIFFERS, name="conservation", where=f"{whole} = {' + '.join(parts)}")


def _elements(tensor: Tensor) -> np.ndarray:
    """The elements as bit patterns."""
    array = tensor.array().reshape(-1)
    return array.view(f"u{array.dtype.itemsize}").astype(np.uint64)


EVERY: Final = "all"
FLOATS: Final = frozenset({"F16", "BF16", "F32", "F64"})
INFINITE: Final = float("inf")
RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "aten.sigmoid": (0.0, 1.0),
    "aten._softmax": (0.0, 1.0),
    "aten.softmax": (0.0, 1.0),
    "aten._log_softmax": (-INFINITE, 0.0),
    "aten.log_softmax": (-INFINITE, 0.0),
    "aten.tanh": (-1.0, 1.0),
    "aten.erf": (-1.0, 1.0),
    "aten.sin": (-1.0, 1.0),
    "aten.cos": (-1.0, 1.0),
    "aten.relu": (0.0, INFINITE),
    "aten.exp": (0.0, INFINITE),
    "aten.sqrt": (0.0, INFINITE),
    "aten.rsqrt": (0.0, INFINITE),
    "aten.abs": (0.0, INFINITE),
    "aten.square": (0.0, INFINITE),
    "aten.linalg_vector_norm": (0.0, INFINITE),
    "aten.gelu": (-0.171, INFINITE),
    "aten.silu": (-0.279, INFINITE),
}

PROPERTIES: Final[Mapping[str, Property]] = {
    found.name: found
    for found in (
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
