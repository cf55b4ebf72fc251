"""Forged runs of loops that nothing in their records contradicts: each does in step 7 what its spec does not say.

Every forgery has its honest twin: the run that it was made of, which is accepted.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import tallystick
from research.attacks.graphs import at_one_step
from tallystick.formats.data.step_program import StepProgram
from tallystick.formats.optimizers import GroupRule
from tallystick.programs.graph import Graph, Node
from tests.recording import honest, test_every_loop as loops, test_further_loops as further
from tests.recording.honest import Loop
from tests.recording.test_remedies import said_by

torch = pytest.importorskip("torch")
Rules = tuple[GroupRule, ...]


@dataclass(frozen=True)
class Forgery:
    """An honest loop, and what a liar writes into the graph of one step and states of its settings."""

    loop: Callable[[], Loop]
    node: Callable[[Node, Graph], Node] = lambda node, _: node
    outputs: Callable[[Graph], Graph] = lambda graph: graph
    rules: Callable[[Rules], Rules] | None = None
    edits: bool = True

    def edit(self, program: StepProgram) -> StepProgram:
        """The program of the forged step."""
        graph = program.graph
        nodes = tuple(self.node(node, graph) for node in graph.nodes)
        return replace(program, graph=self.outputs(replace(graph, nodes=nodes)))


def other(operator: str, name: str, change: Callable[[Any], Any], of: str = "") -> Any:
    """The edit of an attribute of all nodes of an operator, or of those that read an operand with this beginning."""

    def edit(node: Node, _: Graph) -> Node:
        is_it = node.operator == operator and any(ref.startswith(of) for ref in node.refs)
        return replace(node, attributes={**node.attributes, name: change(node.attributes[name])}) if is_it else node

    return edit


def averaged() -> Loop:
    """A loop that keeps averages of its weights."""
    torch.manual_seed(0)
    model = honest.network()
    copies = copy.deepcopy(model)

    def average(step: int, trained: Any, optimizer: Any) -> None:
        with torch.no_grad():
            for held, value in zip(copies.parameters(), trained.parameters(), strict=True):
                held.lerp_(value, 1 - 0.9)

    return Loop(model=lambda: model, after_step=average, settings={"ema": tallystick.Ema(copies, 0.9)})


def with_share(share: int) -> Any:
    """Gradients of the micro-batches divided by another number."""
    return other("aten.div.Scalar", "other", lambda was: share if was == 2 else was)


def with_targets_as_mask(node: Node, _: Graph) -> Node:
    """What reads the mask of the batch reads its targets, which have the same shape."""
    operands = {name: "inputs.x1" if ref == "inputs.x2" else ref for name, ref in node.operands.items()}
    return replace(node, operands=operands)


def moves_the_frozen(graph: Graph) -> Graph:
    """A frozen weight becomes the value of another one of its shape."""
    moved = next(output.value for output in graph.outputs if output.name == "weights.0.bias")
    outputs = [replace(each, value=moved) if each.name == "weights.1.bias" else each for each in graph.outputs]
    return replace(graph, outputs=tuple(outputs))


def stated(**settings: Any) -> Callable[[Rules], Rules]:
    """Other settings of the first group."""
    return lambda rules: (rules[0].model_copy(update=settings), *rules[1:])


FORGERIES: dict[str, Forgery] = {
    "averages that forget at once": Forgery(averaged, other("aten.lerp.Scalar", "weight", lambda _: 1.0, of="ema.")),
    "statistics of another momentum": Forgery(
        lambda: Loop(model=loops.normed),
        other("aten._native_batch_norm_legit_functional.default", "momentum", lambda _: 0.9),
    ),
    "a clip in another norm": Forgery(
        lambda: Loop(after_backward=loops.clips(max_norm=0.05, norm_type=2.5)),
        other("aten.linalg_vector_norm.default", "ord", lambda was: 1.0 if was == 2.5 else was),
    ),
    "micro-batches summed": Forgery(lambda: Loop(micro=lambda _: 2), with_share(1)),
    "the other group's betas": Forgery(
        lambda: Loop(optimizer=loops.grouped),
        lambda node, graph: other("aten.lerp.Scalar", "weight", lambda _: 0.5, of="optimizer.2.")(node, graph),
        rules=stated(betas=(0.5, 0.999)),
    ),
    "a frozen layer that moves": Forgery(lambda: Loop(model=further.frozen_in_the_middle), outputs=moves_the_frozen),
    "a mask exchanged for the targets": Forgery(
        lambda: Loop(loss=further.of_those_present, batches=further.with_masks), with_targets_as_mask
    ),
    "said to go uphill": Forgery(
        lambda: Loop(optimizer=further.made("SGD", lr=1e-2, momentum=0.9)), rules=stated(maximize=True), edits=False
    ),
    "decay turned off without a word": Forgery(
        lambda: Loop(optimizer=further.made("SGD", lr=1e-2, momentum=0.9, weight_decay=0.1)),
        other("aten.add.Tensor", "alpha", lambda was: 0.0 if was == 0.1 else was),
    ),
    "Nesterov without its second step": Forgery(
        lambda: Loop(optimizer=further.made("SGD", lr=1e-2, momentum=0.9, nesterov=True)),
        other("aten.add.Tensor", "alpha", lambda was: 0.0 if was == 0.9 else was),
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_step_is_not_accepted_and_its_honest_twin_is(one_thread: None, tmp_path: Path, name: str) -> None:
    forgery = FORGERIES[name]
    assert said_by(forgery.loop(), tmp_path / "honest") == []
    full = tallystick.Policy(full=True)
    assert tallystick.audit(tmp_path / "honest", full).accepted
    edit = forgery.edit if forgery.edits else None
    at_one_step(edit, forgery.rules)(tmp_path / "honest", tmp_path / "forged")
    files = [(tmp_path / run / "transcript.jsonl").read_bytes() for run in ("honest", "forged")]
    assert files[0] != files[1]
    result = tallystick.audit(tmp_path / "forged", full)
    assert result.outcome != "accepted", result.text()
    assert "step 7" in result.text() or "no step of the training" in result.text(), result.text()
