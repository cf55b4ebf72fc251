"""Properties of the flow of data: counters grow, and moves, splits and sums conserve their elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.graphs.graph import Graph, Node, Ref
from tallystick.judging.findings import AGREES, DIFFERS
from tallystick.tensors.dtypes import ROUNDOFF
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.tolerance import Finding

Values = Mapping[Ref, Tensor]
Array = npt.NDArray[np.generic]
MOVES: Final = frozenset(
    f"aten.{name}"
    for name in (
        *("view.default", "reshape.default", "_unsafe_view.default", "permute.default", "transpose.int", "t.default"),
        *("squeeze.dim", "squeeze.dims", "squeeze.default", "unsqueeze.default", "flatten.using_ints", "alias.default"),
        *("clone.default", "contiguous.default", "detach.default", "flip.default", "roll.default"),
    )
)
SPLITS: Final = frozenset({"aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default"})
SUMS: Final = frozenset({"aten.sum.default", "aten.sum.dim_IntList"})
COUNTERS: Final = (".step", "position.step")


def check_positions(graph: Graph, values: Values) -> Iterator[Finding]:
    """Ranges grow, sorted values are sorted, and each counter of the state is larger by one after the step."""
    for node in graph.nodes:
        ref = node.outputs[0] if node.outputs else None
        if ref is not None and ref in values:
            yield from _order(node, values[ref])
    for output in graph.outputs:
        if output.name.endswith(COUNTERS) and output.name in values and output.value in values:
            step = values[output.value].values().astype(np.float64) - values[output.name].values()
            yield replace(AGREES if bool((step == 1).all()) else DIFFERS, where=output.name)


def _order(node: Node, out: Tensor) -> Iterator[Finding]:
    array = out.values()
    if node.operator.startswith("aten.arange.") and array.size > 1:
        moves = np.diff(array.astype(np.float64))
        grows = bool((moves > 0).all() or (moves < 0).all())
        yield replace(AGREES if grows else DIFFERS, where=f"node {node.number}", detail="a range of positions")
    if node.operator.startswith("aten.sort.") and array.ndim:
        moves = np.diff(array.astype(np.float64), axis=_axis(node, array.ndim))
        fits = moves <= 0 if node.attributes.get("descending") else moves >= 0
        yield replace(AGREES if bool(fits.all()) else DIFFERS, where=f"node {node.number}", detail="sorted values")


def check_conservation(graph: Graph, values: Values) -> Iterator[Finding]:
    """Moved elements keep their bits, parts make up the whole, and partial sums add up to the sum of all elements."""
    for node in graph.nodes:
        pieces = [values.get(ref) for ref in node.outputs if ref is not None]
        sources = [values.get(ref) for ref in node.refs]
        if pieces and sources and None not in pieces and None not in sources:
            given = [tensor for tensor in pieces if tensor is not None]
            taken = [tensor for tensor in sources if tensor is not None]
            yield from _conserved(node, taken, given)


def _conserved(node: Node, sources: list[Tensor], results: list[Tensor]) -> Iterator[Finding]:
    where = f"node {node.number}"
    if node.operator in SUMS and results[0].dtype in ROUNDOFF and sources[0].dtype in ROUNDOFF:
        yield _total(sources[0], results[0], where)
        return
    for operators, conserves in _RULES:
        if node.operator in operators:
            same = conserves(node, [t.array() for t in sources], [t.array() for t in results])
            yield replace(AGREES if same else DIFFERS, where=where, detail=node.operator)


def _total(source: Tensor, result: Tensor, where: str) -> Finding:
    whole, parts = source.values().astype(np.float64), result.values().astype(np.float64)
    length = max(1, whole.size // max(1, parts.size))
    unit = ROUNDOFF["F64" if source.dtype == "F64" else "F32"]
    size = float(np.abs(whole).sum())
    allowed = 2 * (length * unit + ROUNDOFF[result.dtype]) * size + whole.size * ROUNDOFF["F64"] * size
    return Finding(abs(float(whole.sum() - parts.sum())), allowed, where=where, detail="the sum of the sums")


def _same_elements(_node: Node, sources: list[Array], results: list[Array]) -> bool:
    return np.array_equal(np.sort(_bits(sources[0])), np.sort(_bits(results[0])))


def _joined_results(node: Node, sources: list[Array], results: list[Array]) -> bool:
    whole = np.concatenate(results, _axis(node, sources[0].ndim))
    return whole.shape == sources[0].shape and np.array_equal(_bits(whole), _bits(sources[0]))


def _joined_sources(node: Node, sources: list[Array], results: list[Array]) -> bool:
    whole = np.concatenate(sources, _axis(node, results[0].ndim))
    return whole.shape == results[0].shape and np.array_equal(_bits(whole), _bits(results[0]))


def _bits(array: Array) -> npt.NDArray[np.uint64]:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(f"u{flat.dtype.itemsize}").astype(np.uint64)


def _axis(node: Node, axes: int) -> int:
    dim = node.attributes.get("dim")
    return dim % axes if isinstance(dim, int) and axes else 0


_RULES: Final[tuple[tuple[frozenset[str], Callable[[Node, list[Array], list[Array]], bool]], ...]] = (
    (MOVES, _same_elements),
    (SPLITS, _joined_results),
    (frozenset({"aten.cat.default"}), _joined_sources),
)
