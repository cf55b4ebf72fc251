"""A graph as a list of prepared calls; a whole training step is replayed this way.

Values are kept in numbered slots and freed after their last reader. Elementwise operators write into an operand that
nothing reads any more, as `torch.optim` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from tallystick.errors import MalformedError
from tallystick.frameworks.torch.kernels import CRASHES, overload_of, prepared, refusal, results_of
from tallystick.frameworks.torch.reuse import in_place_nodes
from tallystick.graphs.costs import last_readers
from tallystick.graphs.graph import Graph, Node, Operand, Ref, Role

Run: TypeAlias = Callable[[list[Any]], None]
"""One prepared call: reads operands from slots, writes results into slots, and empties slots read for the last time."""


@dataclass(frozen=True)
class PreparedGraph:
    """A graph ready to be run many times on tensors of one device."""

    graph: Graph
    slots: Mapping[Ref, int]
    steps: Sequence[tuple[Run, Node]]

    @classmethod
    def of(cls, graph: Graph, device: str, consumed: Collection[Ref]) -> PreparedGraph:
        """Prepare every node for `device`; a run may overwrite the inputs `consumed`."""
        slots = {name: index for index, name in enumerate(graph.specs())}
        last, written = last_readers(graph), in_place_nodes(graph, consumed)
        steps = []
        for node in graph.nodes:
            call = prepared(node, device, node.number in written)
            freed = tuple(slots[ref] for ref in last.get(node.number, ()))
            steps.append((_run(node, call, slots, freed), node))
        return cls(graph, slots, steps)

    @torch.inference_mode()
    def __call__(self, values: Mapping[Ref, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The outputs by name; `values` gives every input and constant.

        Weights require gradients, as those of a module do: PyTorch's matrix products use this to choose between one
        product and many, which round differently on some processors.

        Raises `UnavailableError` if a kernel refuses its operands, `MalformedError` if a value is missing.
        """
        held: list[Any] = [None] * (len(self.slots) + 1)  # the last slot stands for an absent operand
        for name in [value.name for value in self.graph.inputs] + [value.name for value in self.graph.constants]:
            if name not in values:
                raise MalformedError(f"{name} is not bound")
            held[self.slots[name]] = values[name]
        for weight in (given for given in self.graph.inputs if given.role is Role.WEIGHT and given.spec.is_float):
            held[self.slots[weight.name]] = held[self.slots[weight.name]].detach().requires_grad_()
        at = None
        try:
            for run, at in self.steps:  # noqa: B007
                run(held)
        except CRASHES as error:
            raise refusal(at, error) from error
        return {output.name: held[self.slots[output.value]] for output in self.graph.outputs}


def _run(node: Node, call: Callable[..., Any], slots: Mapping[Ref, int], freed: tuple[int, ...]) -> Run:
    operands = [_slots(operand, slots) for operand in node.operands.values()]
    results = [None if ref is None else slots[ref] for ref in node.outputs]
    if not _returns_one_tensor(node) or any(isinstance(slot, tuple) for slot in operands):
        return _general_run(node, call, operands, results, freed)
    return _single_run(call, operands, results[0], freed)  # type: ignore[arg-type]


def _returns_one_tensor(node: Node) -> bool:
    if not node.operator.startswith("aten."):
        return False
    return [str(value.type) for value in overload_of(node.operator)._schema.returns] == ["Tensor"]


def _single_run(call: Callable[..., Any], operands: Sequence[int], result: int, freed: tuple[int, ...]) -> Run:
    if len(operands) == 1:
        (only,) = operands

        def run_one(held: list[Any]) -> None:
            held[result] = call(held[only])
            for slot in freed:
                held[slot] = None

        return run_one
    if len(operands) == 2:
        left, right = operands

        def run_two(held: list[Any]) -> None:
            held[result] = call(held[left], held[right])
            for slot in freed:
                held[slot] = None

        return run_two

    def run(held: list[Any]) -> None:
        held[result] = call(*[held[slot] for slot in operands])
        for slot in freed:
            held[slot] = None

    return run


def _general_run(
    node: Node,
    call: Callable[..., Any],
    operands: Sequence[int | tuple[int, ...]],
    results: Sequence[int | None],
    freed: tuple[int, ...],
) -> Run:
    def run(held: list[Any]) -> None:
        fetched = [[held[i] for i in slot] if isinstance(slot, tuple) else held[slot] for slot in operands]
        for slot, value in zip(results, results_of(node, call(*fetched)), strict=True):
            if slot is not None:
                held[slot] = value
        for slot in freed:
            held[slot] = None

    return run


def _slots(operand: Operand, slots: Mapping[Ref, int]) -> int | tuple[int, ...]:
    if operand is None or isinstance(operand, str):
        return len(slots) if operand is None else slots[operand]
    return tuple(len(slots) if ref is None else slots[ref] for ref in operand)
