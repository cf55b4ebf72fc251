"""Rung 3: one layer is run on the provider's opened input and judged by the rounding error of its operators.

The input is exact, so errors of earlier layers need no allowance. A layer that was skipped, quantised or replaced
exceeds the limits by orders of magnitude. There are three. The proven one: every element lies within the radius that
error analysis gives for the whole layer; in 16 bits there is often none. The calibrated one: every row lies within a
share of its norm. And the rows lie nearer to the promised layer than to one with weights in fewer bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from tallystick.answers.cheaper_layer import ERRORS, HALFWAY, compare_with_cheaper, finding_of
from tallystick.answers.error_bounds import BoundedValue, bounded_outputs
from tallystick.answers.policy import ReceiptPolicy
from tallystick.answers.report import CheckLog
from tallystick.answers.states import opened_layers
from tallystick.answers.verify import ReceiptContext
from tallystick.errors import ProofError, UnavailableError
from tallystick.graphs.graph import Graph, Ref
from tallystick.graphs.inspection import Inspection
from tallystick.operators.balls.bound import excess
from tallystick.tensors.dtypes import round_to_bfloat16, round_to_float16
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.tolerance import Finding
from tallystick.transcripts.receipt import StatesCommitment
from tallystick.workloads.hidden_states import Rows, drawn_layer

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


def judge_layer(
    log: CheckLog,
    context: ReceiptContext,
    tokens: tuple[int, ...],
    policy: ReceiptPolicy,
    source: LayerSource,
    layer: int | None = None,
) -> None:
    """Judge `layer`, the one asked for, or one that the nonce draws among those whose input and output are opened.

    `tokens` are all tokens that were fed. Raises `MalformedError` if the bytes of the opening are not rows.
    """
    statement, challenge = context.receipt.states, context.challenge
    if statement is None or challenge is None:
        log.unavailable("layer", "the hidden states before and after a layer are not opened: challenge the provider")
        return
    if not statement.prompt:
        log.unavailable("layer", "the receipt commits to the answer's states alone, and a layer needs the prompt's too")
        return
    try:
        opened = opened_layers(challenge, statement)
    except ProofError as error:
        log.differs("layer", "opening", str(error))
        return
    choices = [each for each in opened if each == 0 or each - 1 in opened]
    named = challenge.layer if layer is None else layer
    chosen = drawn_layer(challenge.nonce, statement, choices) if named is None else named
    if chosen is None or chosen not in choices:
        name = "no layer is" if chosen is None else f"layer {chosen} is not"
        log.unavailable("layer", f"{name} opened in full together with the one before")
        return
    _judge(log, statement, opened, chosen, source(tokens, chosen), policy)


def check_program(graph: Graph, policy: ReceiptPolicy) -> None:
    """Raise `UnavailableError` if running the graph on balls takes more memory or work than the policy allows."""
    seen = Inspection(graph)
    for setting, needed in (("memory_max", BALL_BYTES * seen.peak_bytes), ("work_max", BALL_WORK * seen.flops)):
        if needed > (allowed := getattr(policy, setting)):
            raise UnavailableError(f"judging it takes up to {needed}, more than {setting} of {allowed}")


def _judge(
    log: CheckLog,
    statement: StatesCommitment,
    opened: Mapping[int, Rows],
    layer: int,
    program: LayerProgram,
    policy: ReceiptPolicy,
) -> None:
    check_program(program.graph, policy)
    bindings = dict(program.bindings)
    [output] = program.graph.outputs
    specs = program.graph.specs()
    if program.given is not None:
        given = _bound(opened[layer - 1], statement, specs[program.given])
        if given is None:
            log.unavailable("layer", f"the states are kept in another form than layer {layer} reads: {statement.dtype}")
            return
        bindings[program.given] = given
    if statement.dtype != specs[output.value].dtype:
        log.unavailable("layer", f"the states are kept in another form than layer {layer} gives: {statement.dtype}")
        return
    exact = bounded_outputs(program.graph, bindings)[output.name]
    claimed = opened[layer][None].astype(np.float64)
    if claimed.shape != exact.centre.shape:
        log.differs("layer", f"layer {layer}", f"{statement.dtype}{list(claimed.shape)} is not what the layer gives")
        return
    unbounded = float(np.mean(~np.isfinite(exact.radius)))
    if unbounded < 1.0:
        log.add(_within_bound(claimed, exact, layer))
    log.add(_within_share(claimed, exact, layer, policy.layer or RELATIVE[statement.dtype]))
    if unbounded:
        share = f"{100 * unbounded:.1f} % of its elements" if unbounded < 1.0 else f"it in {statement.dtype}"
        log.not_checked.append(f"layer {layer}: no proven bound holds for {share}")
    _told_from_cheaper(log, program.graph, bindings, claimed[0], exact, layer)


def _told_from_cheaper(
    log: CheckLog,
    graph: Graph,
    bindings: Mapping[Ref, Tensor],
    claimed: npt.NDArray[np.float64],
    exact: BoundedValue,
    layer: int,
) -> None:
    """Whether the rows are those of the promised weights rather than of fewer bits; what is not told apart is said."""
    [output] = graph.outputs

    def exactly(values: Mapping[Ref, Tensor]) -> npt.NDArray[np.float64]:
        return np.asarray(bounded_outputs(graph, values)[output.name].centre[0], np.float64)

    blurred = []
    for name, found in compare_with_cheaper(claimed, exact.centre[0], graph, bindings, exactly):
        if found.tells or found.place > HALFWAY + ERRORS * found.error:
            log.add(finding_of(f"layer {layer}", name, found))
        else:
            blurred.append(name)
    if blurred:
        log.not_checked.append(f"layer {layer}: weights in {', '.join(blurred)} are not told from the promised ones")


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
    with np.errstate(invalid="ignore", divide="ignore"):
        size = np.linalg.norm(exact.centre[0], axis=1)
        away = np.linalg.norm(claimed[0] - exact.centre[0], axis=1)
        share = np.where(away == 0.0, 0.0, away / size)
    share = np.where(np.isnan(share), np.inf, share)
    row = int(np.argmax(share))
    return Finding(float(share[row]), allowed, "layer", f"layer {layer}, row {row}", "of the row's norm")
