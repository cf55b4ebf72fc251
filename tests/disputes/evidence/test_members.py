"""A member's own kernel as the calibration: an honest result holds, and what only the bound allows does not."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tallystick.audits.opening import source_of_call  # noqa: E402
from tallystick.core.tensors import Tensor  # noqa: E402
from tallystick.disputes.evidence.judging import own_results, within_own  # noqa: E402
from tallystick.disputes.evidence.traces import torch_engine  # noqa: E402
from tallystick.programs.execution import execute  # noqa: E402
from tallystick.programs.graph import Node, Ref  # noqa: E402
from tallystick.programs.operators.balls.bound import bound  # noqa: E402
from tallystick.programs.operators.definition import operator  # noqa: E402
from tallystick.programs.operators.precision import PLAIN  # noqa: E402
from tests.support.attacks.disputes.scene import Scene  # noqa: E402

Values = dict[Ref, Tensor]


@pytest.fixture(scope="module")
def layer(scene: Scene) -> tuple[Node, Values]:
    """The widest layer of a call, with what it read and gave."""
    subject, engine = source_of_call(scene.recorded, 1), torch_engine()
    values: Values = dict(subject.bindings)
    specs = subject.graph.specs()

    def watch(node: Node, _: object, results: tuple[object, ...]) -> None:
        pairs = zip(node.outputs, results, strict=True)
        values.update({ref: engine.unload(array, specs[ref].dtype) for ref, array in pairs if ref is not None})

    execute(subject.graph, subject.bindings, engine, watch)
    node = [node for node in subject.graph.nodes if node.operator == "aten.linear.default"][-1]
    return node, {ref: values[ref] for ref in (*node.refs, *filter(None, node.outputs))}


def test_what_the_same_kernel_gives_holds(layer: tuple[Node, Values]) -> None:
    node, values = layer
    (ref,) = (ref for ref in node.outputs if ref)
    assert bytes(own_results(node, values, torch_engine())[ref].data) == bytes(values[ref].data)
    assert within_own(node, values, torch_engine(), PLAIN) == (
        True,
        f"node {node.number} ({node.operator}) is what the member's own kernel gives",
    )


@pytest.mark.parametrize(("share", "holds"), [(0.0, True), (0.9, False), (2.0, False)])
def test_a_claim_near_the_bound_is_further_off_than_any_kernel(
    share: float, holds: bool, layer: tuple[Node, Values]
) -> None:
    node, values = layer
    (ref,) = (ref for ref in node.outputs if ref)
    operands = {name: values[str(operand)] for name, operand in node.operands.items() if operand is not None}
    found = bound(operator(node.operator), {**operands, **node.attributes})[0]
    assert found is not None
    claimed = Tensor.of((found.value + share * found.radius).astype(np.float32))
    assert within_own(node, {**values, ref: claimed}, torch_engine(), PLAIN)[0] is holds
