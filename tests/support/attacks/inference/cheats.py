"""Cheaper or different computations claimed as the committed one. Each gives the values that are then claimed.

The claim always carries the committed weights and inputs, since their digests are known; what differs is the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, Final

import numpy as np

from tallystick.core.errors import UsageError
from tallystick.core.tensors import Tensor, bfloat16_to_float32, round_to_bfloat16
from tallystick.programs.execution import Arguments
from tallystick.programs.graph import Graph, Node, Operand, Role
from tallystick.programs.operators.rounding import DETERMINISTIC
from tests.support.attacks.inference.regions import place, radii_of
from tests.support.attacks.inference.workload import StudyWorkload, ValuesByRef, run_values


@dataclass(frozen=True)
class Cheat:
    """One way to do other work; `forge` raises `UsageError` where a graph offers nothing to cheat with."""

    name: str
    change: str
    forge: Callable[[StudyWorkload], ValuesByRef]


def _other_weights(workload: StudyWorkload, change: Callable[[str, Tensor], Tensor]) -> ValuesByRef:
    weights = {value.name: value for value in workload.graph.inputs if value.role is Role.WEIGHT}
    changed = {name: change(name, workload.bindings[name]) for name in weights}
    return {**run_values(workload.with_bindings(changed)), **{name: workload.bindings[name] for name in weights}}


def _swapped(workload: StudyWorkload) -> ValuesByRef:
    """Another model of the same shape: every matrix with its rows in another order."""

    def permuted(name: str, tensor: Tensor) -> Tensor:
        order = np.random.default_rng(len(name)).permutation(tensor.shape[0]) if tensor.shape else ...
        return Tensor.of(tensor.array()[order], tensor.dtype)

    return _other_weights(workload, permuted)


def quantised(tensor: Tensor, bits: int) -> Tensor:
    """An F32 matrix rounded to 2ᵇⁱᵗˢ − 1 levels per row, as weight-only quantisation does; anything else as it is."""
    if len(tensor.shape) < 2 or tensor.dtype != "F32":
        return tensor
    rows = tensor.array().reshape(tensor.shape[0], -1)
    scale = np.abs(rows).max(axis=1, keepdims=True) / (2 ** (bits - 1) - 1)
    scale[scale == 0] = 1.0
    return Tensor.of((np.round(rows / scale) * scale).astype("<f4").reshape(tensor.shape))


def _quantised(bits: int) -> Callable[[StudyWorkload], ValuesByRef]:
    return lambda workload: _other_weights(workload, lambda _, tensor: quantised(tensor, bits))


def _in_bfloat16(workload: StudyWorkload) -> ValuesByRef:
    """Every result rounded to bfloat16 before it is passed on."""

    def rounded(node: Node, _: Arguments, results: Any) -> Any:
        return tuple(_round_result(workload, spec, result) for spec, result in zip(node.results, results, strict=True))

    return run_values(workload, rounded)


def _round_result(workload: StudyWorkload, spec: Any, result: Any) -> Any:
    if spec is None or spec.dtype != "F32":
        return result
    values = workload.engine.unload(result, "F32").array()
    return workload.engine.load(Tensor.of(bfloat16_to_float32(round_to_bfloat16(values))))


def _layer_skipped(workload: StudyWorkload) -> ValuesByRef:
    """The last residual branch is left out: `x + f(x)` becomes `x`."""
    node, operand = _last_residual(workload.graph)

    def skip(at: Node, arguments: Arguments, results: Any) -> Any:
        return (arguments[operand],) if at.number == node.number else results

    return run_values(workload, skip)


def _last_residual(graph: Graph) -> tuple[Node, str]:
    """The last addition of a value to something computed from it, and the operand that is the value itself."""
    specs = graph.specs()
    for node in reversed(graph.nodes):
        if node.operator == "aten.add.Tensor" and {specs[ref] for ref in node.refs} == set(node.results):
            for kept, branch in permutations(("self", "other")):
                if _depends(graph, node.operands[branch], node.operands[kept]):
                    return node, kept
    raise UsageError("the graph has no residual branch to leave out")


def _depends(graph: Graph, ref: Operand, origin: Operand) -> bool:
    """Whether `ref` is computed from `origin`."""
    reached: set[Operand] = {origin}
    for node in graph.nodes:
        if reached & set(node.refs):
            reached |= {output for output in node.outputs if output is not None}
    return ref in reached


def _operator_replaced(workload: StudyWorkload) -> ValuesByRef:
    """One operator computed by a relative: GELU's tanh form for its erf form, or another epsilon."""
    replaced = next(_relatives(workload.graph), None)
    if replaced is None:
        raise UsageError("the graph has no operator with a relative")
    run = workload.engine.prepare(replaced)

    def exchange(node: Node, arguments: Arguments, results: Any) -> Any:
        return run(arguments) if node.number == replaced.number else results

    return run_values(workload, exchange)


def _relatives(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        if node.attributes.get("approximate") == "none":
            yield replace(node, attributes={**node.attributes, "approximate": "tanh"})
    for node in graph.nodes:
        epsilon = node.attributes.get("eps")
        if isinstance(epsilon, float):
            yield replace(node, attributes={**node.attributes, "eps": 10 * epsilon})
    for node in graph.nodes:
        summand = node.attributes.get("other")
        if node.operator == "aten.add.Scalar" and isinstance(summand, float) and 0 < summand < EPSILON_MAX:
            yield replace(node, attributes={**node.attributes, "other": 10 * summand})


def _output_edited(workload: StudyWorkload) -> ValuesByRef:
    """The scores of the best and the second-best answer exchanged, nothing else."""
    values = run_values(workload)
    held = values[workload.decision_ref]
    scores = held.array().copy().reshape(-1, held.shape[-1])
    first, second = np.argsort(scores[-1])[-1:-3:-1]
    scores[-1, [first, second]] = scores[-1, [second, first]]
    return {**values, workload.decision_ref: Tensor.of(scores.reshape(held.shape))}


def _one_element_moved(workload: StudyWorkload) -> ValuesByRef:
    """One element of the middle result moved by twice its deterministic bound; what follows is computed from it."""
    radii = radii_of(workload.graph, run_values(workload), DETERMINISTIC)
    chosen = sorted(radii, key=lambda ref: int(ref[1:].partition(".")[0]))[len(radii) // 2]
    number = int(chosen[1:].partition(".")[0])

    def move(node: Node, _: Arguments, results: Any) -> Any:
        if node.number != number:
            return results
        return tuple(
            _with_element_moved(workload, result, 2 * radii[ref]) if ref == chosen else result
            for ref, result in zip(node.outputs, results, strict=True)
        )

    return run_values(workload, move)


def _with_element_moved(workload: StudyWorkload, result: Any, by: Any) -> Any:
    values = workload.engine.unload(result, "F32").array().astype(np.float64)
    element = np.unravel_index(int(np.argmax(by)), by.shape)
    values[element] += by[element]
    return workload.engine.load(Tensor.of(values.astype("<f4")))


def _aligned(share: float) -> Callable[[StudyWorkload], ValuesByRef]:
    """Every element of every result moved up by one share of its deterministic bound: all errors in one direction."""

    def forge(workload: StudyWorkload) -> ValuesByRef:
        radii = radii_of(workload.graph, run_values(workload), DETERMINISTIC)
        return place(workload, {ref: np.full(radius.shape, share) for ref, radius in radii.items()}, DETERMINISTIC)

    return forge


def honest(workload: StudyWorkload) -> ValuesByRef:
    """The control: what was committed is what was done."""
    return run_values(workload)


EPSILON_MAX: Final = 1e-3
"""A smaller number that is added to a tensor keeps it from 0, as in a norm."""
LEANS: Final = (0.2, 0.5, 0.95)
CHEATS: Final = (
    Cheat("model-swapped", "another model of the same shape", _swapped),
    Cheat("int8-weights", "weights rounded to 8 bits, a scale per row", _quantised(8)),
    Cheat("int4-weights", "weights rounded to 4 bits, a scale per row", _quantised(4)),
    Cheat("bf16-for-fp32", "every result rounded to bfloat16", _in_bfloat16),
    Cheat("layer-skipped", "the last residual branch left out", _layer_skipped),
    Cheat("operator-replaced", "GELU's tanh form for its erf form, or ten times the epsilon", _operator_replaced),
    Cheat("output-edited", "the two best scores exchanged", _output_edited),
    Cheat("element-moved", "one element of one result moved by twice its deterministic bound", _one_element_moved),
    *(
        Cheat(f"aligned-{s:.0%}", f"every element moved up by {s:.0%} of its deterministic bound", _aligned(s))
        for s in LEANS
    ),
)
