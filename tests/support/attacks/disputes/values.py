"""An operator gives other numbers than it computes: found by bisection, and ruled by its bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tallystick.disputes.game.protocols import Doubt
from tallystick.engines.torch.tensors import to_tensor
from tallystick.programs.execution import Arguments, Engine
from tallystick.programs.graph import Graph, Node
from tallystick.programs.operators.balls.bound import ResultBound, bound
from tallystick.programs.operators.definition import operator
from tallystick.tally.attacks.provers import (
    forge_swapped_layer,
    forge_wrong_rate,
    swapped_layer_trace,
    wrong_rate_trace,
)
from tallystick.verdicts.verdict import Fault
from tests.support.attacks.disputes.deception import Deception, Staged
from tests.support.attacks.disputes.engines import ChangingEngine, PractisingEngine
from tests.support.attacks.disputes.scene import CALL, STEP, WEIGHT, Scene

BEYOND: Final = 2.0
"""How many times its bound an element is moved by a prover that hopes to stay unseen."""
EPSILON: Final = 1e-8
Results = tuple[Any, ...]


def stage_wrong_rate(scene: Scene, folder: Path) -> Staged:
    """One step at 1.1 times the declared learning rate."""
    forge_wrong_rate(scene.run, folder / "run", STEP)
    return Staged(folder / "run", wrong_rate_trace(folder / "run", folder / "work", STEP))


def stage_swapped_layer(scene: Scene, folder: Path) -> Staged:
    """Answers with one layer rounded to 4 bits."""
    forge_swapped_layer(scene.calls, folder / "calls", WEIGHT)
    return Staged(folder / "calls", swapped_layer_trace(folder / "calls", folder / "work", WEIGHT))


def stage_honest_step(scene: Scene, folder: Path) -> Staged:
    """An honest step, contested all the same."""
    return opened_with(scene, folder, None)


def stage_honest_call(scene: Scene, folder: Path) -> Staged:
    """An honest call, contested all the same."""
    return Staged(scene.calls, scene.call_trace(folder / "work"), contested_call())


def stage_one_value(scene: Scene, folder: Path) -> Staged:
    """One element of a matrix product is moved by twice its bound."""
    return opened_with(scene, folder, changing(scene.product.number, moved_by(BEYOND)))


def stage_one_value_of_a_call(scene: Scene, folder: Path) -> Staged:
    """The same in a call of a model."""
    number = next(node.number for node in scene.recorded.graph.nodes if "linear" in node.operator)
    engine = changing(number, moved_by(BEYOND))
    return Staged(scene.calls, scene.call_trace(folder / "work", engine), contested_call())


def stage_wrong_attribute(scene: Scene, folder: Path) -> Staged:
    """The optimizer computes with another ε than the graph states; the graph that is opened is the right one."""
    return opened_with(scene, folder, PractisingEngine(practised(scene.graph)))


def practised(graph: Graph) -> dict[int, Node]:
    """The nodes with which an optimizer with another ε computes, by number."""
    return {
        node.number: replace(node, attributes={**node.attributes, "other": 10 * EPSILON})
        for node in graph.nodes
        if node.operator == "aten.add.Scalar" and node.attributes["other"] == EPSILON
    }


def opened_with(scene: Scene, folder: Path, engine: Engine | None) -> Staged:
    """The honest claim, of whose disputed step the operators are those that `engine` gives."""
    return Staged(scene.run, scene.training_trace(folder / "work", engine), contested_step(scene))


def contested_step(scene: Scene) -> Doubt:
    """The disputed step of the run."""
    return Doubt(scene.place, scene.place + 1, "")


def contested_call() -> Doubt:
    """The disputed call."""
    return Doubt(CALL - 1, CALL, "")


def changing(number: int, change: Callable[[Node, Arguments, Results], Results]) -> ChangingEngine:
    """PyTorch, but for the results of one node."""
    return ChangingEngine(lambda node: change if node.number == number else None)


def moved_by(radii: float) -> Callable[[Node, Arguments, Results], Results]:
    """The element with the widest bound is moved by so many times that bound."""

    def change(node: Node, arguments: Arguments, results: Results) -> Results:
        found = bound_of(node, arguments)
        place = int(found.radius.argmax())
        moved = results[0].clone()
        moved.view(-1)[place] = float(found.value.flat[place] + radii * found.radius.flat[place])
        return (moved,)

    return change


def bound_of(node: Node, arguments: Arguments) -> ResultBound:
    """The exact first result of a node with its radius."""
    operands = {name: None if value is None else to_tensor(value) for name, value in arguments.items()}
    found = bound(operator(node.operator), {**operands, **node.attributes})[0]
    assert found is not None  # only results that are given are moved
    return found


ATTACKS = (
    Deception(
        "wrong-rate",
        "one step is taken at 1.1 times the declared rate; the right schedule is opened",
        stage_wrong_rate,
        "leaf",
        Fault.PROVER,
        Fault.PROVER,
        "aten._to_copy.default",
    ),
    Deception(
        "swapped-layer",
        "one layer is rounded to 4 bits; the promised weights are opened",
        stage_swapped_layer,
        "leaf",
        Fault.PROVER,
        Fault.PROVER,
        "aten.linear.default",
    ),
    Deception(
        "one-value",
        "one element of a matrix product is off by twice its bound",
        stage_one_value,
        "leaf",
        Fault.PROVER,
        Fault.PROVER,
        "aten.mm.default",
    ),
    Deception(
        "one-value-of-a-call",
        "one element of a layer is off by twice its bound",
        stage_one_value_of_a_call,
        "leaf",
        Fault.PROVER,
        Fault.PROVER,
        "aten.linear.default",
    ),
    Deception(
        "wrong-attribute",
        "the optimizer divides by √v + 1e-7, and the graph says 1e-8",
        stage_wrong_attribute,
        "leaf",
        Fault.PROVER,
        Fault.PROVER,
        "aten.add.Scalar",
    ),
    Deception(
        "honest-step",
        "nothing; a step is contested",
        stage_honest_step,
        "leaf",
        Fault.CHALLENGER,
        Fault.CHALLENGER,
        is_honest=True,
    ),
    Deception(
        "honest-call",
        "nothing; a call is contested",
        stage_honest_call,
        "leaf",
        Fault.CHALLENGER,
        Fault.CHALLENGER,
        is_honest=True,
    ),
)
