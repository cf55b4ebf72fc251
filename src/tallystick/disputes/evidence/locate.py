"""Which child holds the fault, and how far its outputs may differ from the challenger's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.disputes.evidence.view import OpeningView
from tallystick.programs.admission import last_readers
from tallystick.programs.execution import Engine, execute
from tallystick.programs.graph import Node, Ref, operands_of
from tallystick.programs.operators.precision import FORMATS

# How far a child's outputs may differ from what a challenger computes from the prover's own values.
#
# Errors do not add up from child to child, because each child starts from the values that the prover opened. Inside a
# child of k operators they grow. The unit is the roundoff u of the value's dtype at the value's scale,
#
#     e = max |claimed − own| / (u · (|own| + rms(own)))
#
# and honest stacks stay below `ALLOWED` · √k, where `ALLOWED` is that of the coarsest dtype in which the child
# computes. The root is that of a random walk. The factor covers what single operators amplify, such as a division by a
# small second moment. The largest e ÷ √k measured is 8.7 on 64 pairs of CPU stacks for a training in F32
# (docs/data/dispute_stacks.json). For calls of a network, of transformers of 2 and 12 layers, and of a small CNN it was
# 27 in F32 (n = 5,408 values that differ), 1.9 in F16 (n = 3,925) and 1.7 in BF16 (n = 1,996), on 36 pairs of 6 CPU
# stacks (docs/data/drift.json).
#
# For any number of operators, one element may differ by at most the share `MOST` of |own| + rms(own), and all elements
# together by `WHOLE` of their root mean square. Without these two limits, a factor that holds for long sums would soon
# allow everything in 16 bits. The largest shares measured were 0.033 and 0.0076, in BF16. Integers and booleans must be
# equal, unless an operator of the child chose them by comparing floats.

ALLOWED: Final[Mapping[str, float]] = {"F64": 1024.0, "F32": 1024.0, "F16": 32.0, "BF16": 16.0}
"""The factor of √k units below which honest stacks stay; measured, with a margin (see above)."""
MOST: Final = 0.25
"""The largest share of |own| + rms(own) by which one element may differ."""
WHOLE: Final = 0.125
"""The largest share of rms(own) for the root mean square of all differences, of at least `MANY` elements."""
MANY: Final = 32
CHOICES_ALLOWED: Final = 0.01
"""The share of integers or booleans that may differ if operators chose them by comparing floats."""


@dataclass(frozen=True)
class Leeway:
    """How far the results of some operators may drift.

    `operators` is how many they are, `coarsest` the coarsest dtype in which they compute, and `chosen` the integers and
    booleans that they choose by comparing floats.
    """

    operators: int
    coarsest: str = "F64"
    chosen: frozenset[Ref] = field(default_factory=frozenset)

    @classmethod
    def of(cls, nodes: Sequence[Node], specs: Mapping[Ref, TensorSpec]) -> Leeway:
        """The leeway of consecutive nodes; `specs` are those of all values that they read and give."""
        refs = {ref for node in nodes for ref in (*node.refs, *filter(None, node.outputs))}
        return cls(len(nodes), _coarsest({specs[ref].dtype for ref in refs}), _chosen(nodes, specs))

    def units(self, dtype: str) -> float:
        """How many roundoffs of `dtype` are allowed at an element's scale."""
        coarsest = _coarsest({dtype, self.coarsest})
        share = ALLOWED[coarsest] * math.sqrt(max(self.operators, 1)) * FORMATS[coarsest].unit
        return min(share, MOST) / FORMATS[dtype].unit


def deviation(claimed: Tensor, own: Tensor, leeway: Leeway, ref: Ref = "") -> float:
    """The distance of the claimed value `ref` from the own one, in tolerances: more than 1 leaves the tolerance.

    The distance is infinite for tensors of different specs, for a finite number against a non-finite one, and for
    integers and booleans that differ although no comparison of floats chose them.
    """
    if is_same(claimed, own):
        return 0.0
    if TensorSpec.of(claimed) != TensorSpec.of(own):
        return math.inf
    if claimed.dtype not in FORMATS:
        differing = float(np.mean(claimed.array() != own.array()))
        return differing / CHOICES_ALLOWED if ref in leeway.chosen else math.inf
    return max(distance_in_units(claimed, own) / leeway.units(own.dtype), relative_rms(claimed, own, MANY) / WHOLE)


def is_same(claimed: Tensor, own: Tensor) -> bool:
    """Whether two tensors have the same spec and the same bytes."""
    has_spec = (claimed.dtype, claimed.shape) == (own.dtype, own.shape)
    return has_spec and np.array_equal(np.frombuffer(claimed.data, np.uint8), np.frombuffer(own.data, np.uint8))


def distance_in_units(claimed: Tensor, own: Tensor) -> float:
    """The largest distance of two elements, in roundoffs at their scale; both tensors have the same float spec."""
    theirs, ours = (tensor.values().astype(np.float64).ravel() for tensor in (claimed, own))
    same = (theirs == ours) | (np.isnan(theirs) & np.isnan(ours))
    if not np.isfinite(theirs[~same]).all() or not np.isfinite(ours[~same]).all():
        return math.inf
    unit, smallest = FORMATS[claimed.dtype].unit, FORMATS[claimed.dtype].half_step
    with np.errstate(over="ignore", invalid="ignore"):
        scale = np.abs(ours[~same]) + _root_mean_square(ours[np.isfinite(ours)])
        distances = np.abs(theirs[~same] - ours[~same]) / np.maximum(unit * scale, smallest)
    return float(np.max(np.where(np.isnan(distances), np.inf, distances), initial=0.0))


def relative_rms(claimed: Tensor, own: Tensor, fewest: int = 1) -> float:
    """rms(claimed − own) ÷ rms(own); 0 below `fewest` elements, and if all own elements are zero or not finite."""
    theirs, ours = (tensor.values().astype(np.float64).ravel() for tensor in (claimed, own))
    finite = np.isfinite(ours) & np.isfinite(theirs)
    scale = _root_mean_square(ours[finite]) if ours.size >= fewest else 0.0
    with np.errstate(over="ignore"):
        return _root_mean_square((theirs[finite] - ours[finite]) / scale) if scale else 0.0


def _coarsest(dtypes: set[str]) -> str:
    return max((each for each in dtypes if each in FORMATS), key=lambda each: FORMATS[each].unit, default="F64")


def _chosen(nodes: Sequence[Node], specs: Mapping[Ref, TensorSpec]) -> frozenset[Ref]:
    """The integers and booleans that consecutive nodes choose by comparing floats, or compute from such choices."""
    chosen: set[Ref] = set()
    for node in nodes:
        if any(ref in chosen or specs[ref].is_float for ref in node.refs):
            chosen.update(ref for ref in node.outputs if ref is not None and not specs[ref].is_float)
    return frozenset(chosen)


def _root_mean_square(values: npt.NDArray[np.float64]) -> float:
    """The root mean square, computed from values ÷ the largest one, so that no square overflows."""
    largest = float(np.max(np.abs(values), initial=0.0))
    if math.isinf(largest):
        return math.inf
    return largest * math.sqrt(float(np.mean((values / largest) ** 2))) if largest else 0.0


# Which child holds the fault: each child is executed from the prover's own values, and its outputs are compared.
#
# The challenger never starts a child from its own values, so that the differences between honest kernels do not add up.
# It stops at the first child that deviates by more than `DECISIVE` tolerances. A child that deviates by less may be a
# decoy: an operator can be further off than any honest kernel and still be within its proven bound, and no judge
# convicts it. In that case all children are executed, and the one with the largest deviation is named. If all but the
# last agree bit by bit, the last one is named without executing it. All rounds together cost at most 1 + 1/N + 1/N² + …
# executions of the graph, and half of that on average if the fault is decisive.
#
# In one-round mode there are no children: `deviations` walks through all operators, each from its claimed operands.

DECISIVE: Final = 192.0
"""A number of tolerances that no decoy of usual width reaches.

A sum of k products with random signs, moved by its whole bound γₖ·Σ|xᵢwᵢ|, is off by 0.65·k^1.5 ÷ `ALLOWED`. In F32
that is 59 tolerances for k = 2,048 and 173 for k = 4,096 (2 for products of one sign). In 16 bits, where sums are F32,
it stays within the tolerance. Choices among floats reach 100."""


@dataclass
class ChallengerWork:
    """Counts of a challenger's work: operators executed to choose a child, steps or calls replayed to doubt a claim.

    `remarks` are the odd things in a claim that no judge would convict.
    """

    operators: int = 0
    replayed: int = 0
    remarks: list[str] = field(default_factory=list)


def locate(
    view: OpeningView, children: Sequence[tuple[int, int]], engine: Engine, work: ChallengerWork
) -> tuple[int, bool]:
    """The first child whose outputs leave the tolerance decisively, or the one with the largest deviation.

    Also whether no child that was executed leaves the tolerance. Raises `ProofError` if a value that a child reads or
    gives is not opened.
    """
    far: list[float] = []
    for number, (low, high) in enumerate(children):
        if number == len(children) - 1 and not any(far):
            return number, True
        far.append(deviation_of(view, low, high, engine, work))
        if far[-1] > DECISIVE:
            return number, False
    return max(range(len(far)), key=far.__getitem__), not any(each > 1.0 for each in far)


def deviation_of(view: OpeningView, low: int, high: int, engine: Engine, work: ChallengerWork) -> float:
    """The largest deviation, in tolerances, of the values that operators [low, high) give across the cut after them."""
    graph = view.cuts.child(low, high)
    if graph is None:
        return 0.0
    read = view.values(each.name for each in graph.sources)
    work.operators += len(graph.nodes)
    try:
        own = execute(graph, read, engine)
    except (MalformedError, UnavailableError):
        return math.inf  # an operator refuses its operands; the graph itself ran when the claim was doubted
    leeway = Leeway.of(graph.nodes, view.cuts.specs)
    return max(deviation(view.value(ref), tensor, leeway, ref) for ref, tensor in own.items())


def deviations(view: OpeningView, engine: Engine, work: ChallengerWork) -> Iterator[float]:
    """The deviation of each operator, in tolerances, from what the engine computes from its claimed operands, in order.

    Every value is loaded once, and kept in memory until its last reader has run. Raises `ProofError` if a value is not
    opened.
    """
    last, arrays = last_readers(view.graph), dict[Ref, Any]()
    for place, node in enumerate(view.graph.nodes):
        far = 0.0
        if wanted := view.cuts.crossing(place, place):
            for ref in node.refs:
                if ref not in arrays:
                    arrays[ref] = engine.load(view.value(ref))
            claimed = {ref: view.value(ref) for ref in wanted}
            work.operators += 1
            try:
                own = run_node(node, arrays, engine)
            except (MalformedError, UnavailableError):
                far = math.inf
            else:
                leeway = Leeway.of([node], view.cuts.specs)
                for ref, tensor in claimed.items():
                    array, result = own[ref]
                    if is_same(tensor, result):
                        arrays[ref] = array  # saves loading the claimed value
                    else:
                        arrays[ref] = engine.load(tensor)
                        far = max(far, deviation(tensor, result, leeway, ref))
        yield far
        for ref in last.get(node.number, ()):
            arrays.pop(ref, None)


def run_node(node: Node, arrays: Mapping[Ref, Any], engine: Engine) -> dict[Ref, tuple[Any, Tensor]]:
    """The engine's results from operands as its arrays, each as an array and as a tensor, by reference."""
    results = engine.prepare(node)(operands_of(node, arrays))
    triples = zip(node.outputs, node.results, results, strict=True)
    named = {ref: (array, spec.dtype) for ref, spec, array in triples if ref is not None and spec is not None}
    return {ref: (array, engine.unload(array, dtype)) for ref, (array, dtype) in named.items()}
