"""Rung 3: one layer is run on the provider's opened input and judged by the rounding of its operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.states import opened_layers, row_distances
from tallystick.audits.answers.subject import Verification
from tallystick.core.errors import ProofError, UnavailableError
from tallystick.core.tensors import FEWER_BITS, Tensor, TensorSpec, in_fewer_bits, round_to_bfloat16, round_to_float16
from tallystick.formats.hidden_states import Rows, drawn_layer
from tallystick.formats.receipt import StatesCommitment
from tallystick.programs.execution import Arguments, execute
from tallystick.programs.graph import Graph, Node, Ref
from tallystick.programs.inspection import Inspection
from tallystick.programs.operators.arrays import NUMPY
from tallystick.programs.operators.balls.ball import Ball
from tallystick.programs.operators.balls.bound import Balls, algebra_of, excess, read
from tallystick.programs.operators.definition import Exactness, operator
from tallystick.programs.operators.precision import UNSTATED, Precision
from tallystick.programs.operators.rounding import DETERMINISTIC, Model
from tallystick.verdicts.tolerance import Finding

# A slice of a graph run on balls: each output ball contains every result of an honest evaluation of the slice.
#
# For a single operator, `programs.operators.balls.bound` bounds the distance of a result from the exact one. Here radii
# are propagated from operator to operator, so only the inputs of the slice must be known. Rules and proofs:
# docs/bounds.md.


@dataclass(frozen=True)
class BoundedValue:
    """The exact result in float64, and the largest error of an honest evaluation per element; equal shapes."""

    centre: npt.NDArray[np.float64]
    radius: npt.NDArray[np.float64]


def bounded_outputs(
    graph: Graph, bindings: Mapping[Ref, Tensor], precision: Precision = UNSTATED
) -> dict[str, BoundedValue]:
    """The outputs of `graph` by name, from exact inputs.

    Raises `MalformedError` if a binding is missing or has another spec, or if operands do not fit together.
    """
    wanted = {output.value: output.name for output in graph.outputs}
    outputs: dict[str, BoundedValue] = {}

    def keep(node: Node, _: Arguments, results: tuple[Any, ...]) -> None:
        for ref, ball in zip(node.outputs, results, strict=True):
            if ref in wanted and ball is not None:
                outputs[wanted[ref]] = _bounded(ball)

    execute(graph, bindings, BallEngine(precision), keep)
    return outputs


@dataclass(frozen=True)
class BallEngine:
    """An engine whose arrays are balls: a centre and a radius per element."""

    precision: Precision = UNSTATED
    model: Model = DETERMINISTIC
    name: Final[str] = field(default="balls", init=False)

    def load(self, tensor: Tensor) -> Ball:
        """The elements as balls of radius 0."""
        return Balls(NUMPY, self.precision, self.model).load(tensor)

    def unload(self, array: Ball, dtype: str) -> Tensor:
        """The centres; F64 for every float dtype."""
        return Balls(NUMPY, self.precision, self.model).values.unload(array.centre)

    def prepare(self, node: Node) -> Callable[[Arguments], tuple[Any, ...]]:
        """The definition of the node's operator, read as balls; raises `MalformedError` for an unknown one."""
        known = operator(node.operator)

        def run(arguments: Arguments) -> tuple[Any, ...]:
            dtypes = [ball.dtype for ball in _balls(arguments.values())]
            balls = algebra_of(known, dtypes, self.precision, self.model)
            with NUMPY.quiet():
                return read(known, balls, {**node.attributes, **arguments})

        return run


def _balls(arguments: Iterable[Any]) -> Iterator[Ball]:
    for argument in arguments:
        for item in argument if isinstance(argument, tuple) else (argument,):
            if isinstance(item, Ball):
                yield item


def _bounded(ball: Ball) -> BoundedValue:
    centre = np.asarray(NUMPY.storage(ball.array), np.float64)
    return BoundedValue(centre, np.array(np.broadcast_to(np.asarray(ball.width, np.float64), centre.shape)))


# Whether an opened layer is that of the promised weights, or one whose weights are held in fewer bits.
#
# In 16 bits, a layer with weights of 8 bits lies closer to the promised one than rounding may, so no limit on a
# distance tells the two apart. But the direction is known. The verifier computes both layers exactly, from the opened
# input, and projects the claimed rows onto the line from the promised layer (0) to the cheaper one (1). Rounding knows
# nothing of this line and lies near 0: at most 0.06 was seen with either attention, and cheaper layers at 0.98 and more
# (SmolLM2-135M-Instruct in BF16, 84 tokens, two layers). Rows count by their direction, so that no large row decides.

LayerRows = npt.NDArray[np.float64]
CHEAPER: Final = ("int8 by row", "int8 in groups of 64", "int4 by row")
"""The formats of weights that are tried."""
HALFWAY: Final = 0.5
"""Beyond it, the claimed rows are those of the cheaper layer rather than those of the promised one."""
ERRORS: Final = 6.0
"""So many standard errors have to fit between the promised layer and half the way, or the two are not told apart."""

FEWEST: Final = 16
"""Fewer rows do not show how much the place varies from row to row."""


@dataclass(frozen=True)
class Projected:
    """Where rows lie between two layers, 0 for the promised and 1 for the cheaper one, with the standard error."""

    place: float
    error: float

    @property
    def tells(self) -> bool:
        """Whether rounding moves the place so little that the two layers are told apart."""
        return self.error * ERRORS < HALFWAY


def project(claimed: LayerRows, promised: LayerRows, cheaper: LayerRows) -> Projected:
    """The place of claimed rows [tokens, width]; the error counts rows as independent."""
    size = np.linalg.norm(promised, axis=1, keepdims=True)
    scale = np.where(size > 0.0, size, 1.0)
    gap, way = (claimed - promised) / scale, (cheaper - promised) / scale
    along, length = (gap * way).sum(axis=1), (way * way).sum(axis=1)
    total = float(length.sum())
    if len(promised) < FEWEST or not total > 0.0:
        return Projected(0.0, math.inf)
    place = float(along.sum()) / total
    return Projected(place, float(np.sqrt(np.square(along - place * length).sum())) / total)


def compare_with_cheaper(
    claimed: LayerRows,
    promised: LayerRows,
    graph: Graph,
    bindings: Mapping[Ref, Tensor],
    exactly: Callable[[Mapping[Ref, Tensor]], LayerRows],
) -> Iterator[tuple[str, Projected]]:
    """For each format that changes the layer, its name and where the claimed rows lie; `exactly` runs the layer."""
    weights = matrices_of(graph, bindings)
    for name in CHEAPER if weights else ():
        cheaper = {ref: in_fewer_bits(bindings[ref], FEWER_BITS[name]) for ref in weights}
        rows = exactly({**bindings, **cheaper})
        if np.isfinite(rows).all() and np.isfinite(promised).all():
            yield name, project(claimed, promised, rows)


def matrices_of(graph: Graph, bindings: Mapping[Ref, Tensor]) -> list[Ref]:
    """The bound matrices of floats that operators multiply by, directly or transposed."""
    sums = (node for node in graph.nodes if operator(node.operator).exactness is Exactness.ACCUMULATES)
    read = {ref for node in sums for ref in node.refs}
    moved = [node for node in graph.nodes if operator(node.operator).exactness is Exactness.MOVES]
    for node in reversed(moved):
        if any(ref in read for ref in node.outputs):
            read.update(node.refs)
    specs = graph.specs()
    return sorted(ref for ref in read & bindings.keys() if specs[ref].is_float and len(specs[ref].shape) == 2)


def finding_of(where: str, name: str, projected: Projected) -> Finding:
    """The place as a finding: beyond half the way it disagrees."""
    detail = f"of the way from the promised layer to one with weights in {name}"
    return Finding(max(projected.place, 0.0), HALFWAY, "layer", f"{where}, towards {name}", detail)


# Rung 3: one layer is run on the provider's opened input and judged by the rounding error of its operators.
#
# The input is exact, so errors of earlier layers need no allowance. A layer that was skipped, quantised or replaced
# exceeds the limits by orders of magnitude. There are three. The proven one: every element lies within the radius that
# error analysis gives for the whole layer; in 16 bits there is often none. The calibrated one: every row lies within a
# share of its norm. And the rows lie nearer to the promised layer than to one with weights in fewer bits.

INPUT: Final = "inputs.input_ids"
RELATIVE: Final[Mapping[str, float]] = {"F32": 2e-5, "F16": 2e-3, "BF16": 2e-2}
"""The default limit on the distance of a row from the exact one, relative to its norm: 50 times the distance measured
for one layer of a Llama in F32 (3.8e-7), 4 times in F16 (5.4e-4) and BF16 (5.2e-3), with either attention."""

BALL_BYTES: Final = 8
"""Bytes of a ball per byte of a value, at most: a centre and a radius in float64 for a value of two bytes."""
BALL_WORK: Final = 2
"""Operations on balls per floating-point operation: matrix products for centres and for radii."""


class LayerProgram(Protocol):
    """One layer of the promised model as a graph for a sequence of some length, captured by the verifier.

    `given` is the reference of the layer's input, or None if the layer reads the tokens themselves. `bindings` holds
    weights, buffers, constants and every other input.
    """

    @property
    def graph(self) -> Graph:
        """The slice; its only output is that of the layer."""

    @property
    def given(self) -> Ref | None:
        """The input for the hidden states [1, length, width] of the layer before."""

    @property
    def bindings(self) -> Mapping[Ref, Tensor]:
        """All other values that the slice reads."""


LayerSource = Callable[[tuple[int, ...], int], LayerProgram]
"""Returns the program of a layer for given tokens; raises `UnavailableError` if it cannot be captured."""


def judge_layer(case: Verification, source: LayerSource, layer: int | None = None) -> None:
    """Judge `layer`, the one asked for, or one that the nonce draws among those whose input and output are opened.

    Raises `MalformedError` if the bytes of the opening are not rows, and what `source` raises.
    """
    findings, statement, challenge = case.findings, case.receipt.states, case.context.challenge
    if statement is None or challenge is None:
        findings.leave_open(
            "layer", "the hidden states before and after a layer are not opened: challenge the provider"
        )
        return
    if not statement.prompt:
        findings.leave_open(
            "layer", "the receipt commits to the answer's states alone, and a layer needs the prompt's too"
        )
        return
    try:
        opened = opened_layers(challenge, statement)
    except ProofError as error:
        findings.differs("layer", "opening", str(error))
        return
    choices = [each for each in opened if each == 0 or each - 1 in opened]
    named = challenge.layer if layer is None else layer
    chosen = drawn_layer(challenge.nonce, statement, choices) if named is None else named
    if chosen is None or chosen not in choices:
        name = "no layer is" if chosen is None else f"layer {chosen} is not"
        findings.leave_open("layer", f"{name} opened in full together with the one before")
        return
    _judge(case, statement, opened, chosen, source(case.fed, chosen))


def check_program(graph: Graph, policy: ReceiptPolicy) -> None:
    """Raise `UnavailableError` if running the graph on balls takes more memory or work than the policy allows."""
    seen = Inspection(graph)
    for setting, needed in (("memory_max", BALL_BYTES * seen.peak_bytes), ("work_max", BALL_WORK * seen.flops)):
        if needed > (allowed := getattr(policy, setting)):
            raise UnavailableError(f"judging it takes up to {needed}, more than {setting} of {allowed}")


def _judge(
    case: Verification, statement: StatesCommitment, opened: Mapping[int, Rows], layer: int, program: LayerProgram
) -> None:
    findings, policy, graph = case.findings, case.policy, program.graph
    check_program(graph, policy)
    bindings, specs = dict(program.bindings), graph.specs()
    [output] = graph.outputs
    if program.given is not None:
        given = _bound(opened[layer - 1], statement, specs[program.given])
        if given is None:
            findings.leave_open(
                "layer", f"the states are kept in another form than layer {layer} reads: {statement.dtype}"
            )
            return
        bindings[program.given] = given
    if statement.dtype != specs[output.value].dtype:
        findings.leave_open("layer", f"the states are kept in another form than layer {layer} gives: {statement.dtype}")
        return
    exact = bounded_outputs(graph, bindings)[output.name]
    claimed = opened[layer][None].astype(np.float64)
    if claimed.shape != exact.centre.shape:
        findings.differs(
            "layer", f"layer {layer}", f"{statement.dtype}{list(claimed.shape)} is not what the layer gives"
        )
        return
    unbounded = float(np.mean(~np.isfinite(exact.radius)))
    if unbounded < 1.0:
        findings.note(_within_bound(claimed, exact, layer))
    findings.note(_within_share(claimed, exact, layer, policy.layer or RELATIVE[statement.dtype]))
    if unbounded:
        share = f"{100 * unbounded:.1f} % of its elements" if unbounded < 1.0 else f"it in {statement.dtype}"
        findings.not_checked.append(f"layer {layer}: no proven bound holds for {share}")

    def exactly(values: Mapping[Ref, Tensor]) -> LayerRows:
        return np.asarray(bounded_outputs(graph, values)[output.name].centre[0], np.float64)

    blurred = []
    for name, projected in compare_with_cheaper(claimed[0], exact.centre[0], graph, bindings, exactly):
        if projected.tells or projected.place > HALFWAY + ERRORS * projected.error:
            findings.note(finding_of(f"layer {layer}", name, projected))
        else:
            blurred.append(name)
    if blurred:
        findings.not_checked.append(
            f"layer {layer}: weights in {', '.join(blurred)} are not told from the promised ones"
        )


def _bound(rows: Rows, statement: StatesCommitment, spec: TensorSpec) -> Tensor | None:
    """The opened rows as the tensor that the slice reads; None if they have another dtype or shape."""
    if spec.dtype != statement.dtype or spec.shape != (1, *rows.shape):
        return None
    if spec.dtype == "BF16":
        return Tensor("BF16", spec.shape, round_to_bfloat16(rows[None]).tobytes())
    return Tensor.of(round_to_float16(rows[None]) if spec.dtype == "F16" else rows[None])


def _within_bound(claimed: npt.NDArray[np.float64], exact: BoundedValue, layer: int) -> Finding:
    ratio = excess(claimed, exact.centre, exact.radius)
    _, row, element = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    detail = "of the radius that honest rounding through the whole layer cannot leave"
    return Finding(float(ratio.max()), 1.0, "layer", f"layer {layer}, row {row}, element {element}", detail)


def _within_share(claimed: npt.NDArray[np.float64], exact: BoundedValue, layer: int, allowed: float) -> Finding:
    with np.errstate(invalid="ignore"):
        share = row_distances(claimed[0] - exact.centre[0], exact.centre[0])
    share = np.where(np.isnan(share), np.inf, share)
    row = int(np.argmax(share))
    return Finding(float(share[row]), allowed, "layer", f"layer {layer}, row {row}", "of the row's norm")
