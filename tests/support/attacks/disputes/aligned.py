"""Every operator errs inside its tolerance, and all errors point one way: no leaf shows it, only their sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tallystick.audits.opening import gather_whole, open_operators, source_of_call
from tallystick.core.tensors import Tensor
from tallystick.disputes.evidence.traces import torch_engine
from tallystick.disputes.evidence.view import OpeningView, read_operators
from tallystick.engines.torch.tensors import from_tensor, to_tensor
from tallystick.formats.store.directories import InferenceDirectory
from tallystick.programs.execution import Arguments, Engine
from tallystick.programs.graph import Node
from tallystick.programs.operators.balls.bound import ResultBound, bound
from tallystick.programs.operators.definition import operator
from tallystick.recording.inference import record_graph_inference
from tallystick.verdicts.opening.budget import ROUNDS, Accumulated, accumulate
from tests.support.attacks.disputes.engines import Change, ChangingEngine
from tests.support.attacks.disputes.scene import CALL, Scene

SHARE: Final = 0.9
"""Of its bound, by which every element is moved up."""


def aligned_engine() -> ChangingEngine:
    """PyTorch, but every result that is rounded is moved up by most of its bound."""
    return ChangingEngine(_change_of)


def open_one_round(scene: Scene, out: Path, engine: Engine | None = None, call: int = CALL) -> None:
    """Answer a call with `engine`, and open all operators with all values: a claim in one-round mode."""
    chosen, held = engine or torch_engine(), scene.recorded
    calls = [held.inputs(record) for record in held.records]
    answered = out.with_name(f"{out.name}.calls")
    record_graph_inference(held.graph, held.constants, held.weights(), calls, chosen, answered)
    open_operators(source_of_call(gather_whole(InferenceDirectory(answered)), call), out, chosen)


def measured(folder: Path) -> Accumulated:
    """How the errors of an opened call add up."""
    view = OpeningView(read_operators(folder), (folder,))
    return accumulate(view.graph, view.value)


def _change_of(node: Node) -> Change | None:
    return _moved_up if operator(node.operator).exactness in ROUNDS else None


def _moved_up(node: Node, arguments: Arguments, results: tuple[Any, ...]) -> tuple[Any, ...]:
    operands = {name: _operand(value) for name, value in arguments.items()}
    found = bound(operator(node.operator), {**operands, **node.attributes})
    return tuple(_at(result, limit) for result, limit in zip(results, found, strict=True))


def _operand(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(None if each is None else to_tensor(each) for each in value)
    return None if value is None else to_tensor(value)


def _at(result: Any, limit: ResultBound | None) -> Any:
    if limit is None or result is None or not result.is_floating_point():
        return result
    moved = from_tensor(Tensor.of(limit.value + SHARE * limit.radius))
    return moved.to(result.dtype).reshape(result.shape)
