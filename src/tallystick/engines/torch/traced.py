"""A function of tensors as a list of PyTorch's kernels, with packed products and weighted sums."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

# Matrix products with a fixed right side, laid out beforehand as the kernels of oneDNN read it.
#
# It is the same product in another order of sums, in F32.

PRODUCT: Final = "aten.mm.default"
LEAST: Final = 2**14
"""The elements of a right side from which on it is laid out anew."""


def packed_product(node: Node, known: Mapping[Node, Any]) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """A matrix product as a function of its left side; `None` for other kernels and other machines."""
    if str(node.target) != PRODUCT or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    left, right = node.args
    held, rows = known.get(right), left.meta["val"].shape[0]  # type: ignore[union-attr, arg-type]
    if held is None or held.device.type != "cpu" or held.dtype != torch.float32 or held.numel() < LEAST:
        return None
    kernels = torch.ops.mkldnn
    with torch.inference_mode(False), torch.no_grad():
        packed = kernels._reorder_linear_weight(held.t().contiguous().clone(), rows)
    product = kernels._linear_pointwise.default._op
    return lambda x: product(x, packed, None, "none", [], "")


# Traced sums and products by fixed numbers, collected into one weighted sum: Σ fᵢ·tᵢ + c.

ADDITION: Final = "aten.add.Tensor"
PRODUCTS: Final = frozenset({"aten.mul.Tensor", "aten.mul.Scalar"})


@dataclass(frozen=True)
class Weighted:
    """The tensors of a sum with their `factors`, and the tensor or number that is added."""

    factors: Mapping[Node, float]
    constant: torch.Tensor | float = 0.0

    def plus(self, other: Weighted, factor: float) -> Weighted:
        """The sum of this one and `factor` times the other."""
        grown = other.times(factor)
        names = {**self.factors, **grown.factors}
        factors = {each: self.factors.get(each, 0.0) + grown.factors.get(each, 0.0) for each in names}
        return Weighted(factors, self.constant + grown.constant)

    def times(self, factor: float) -> Weighted:
        """The product of this sum and a number."""
        factors = {each: number * factor for each, number in self.factors.items()}
        return Weighted(factors, self.constant * factor)

    def kernel(self) -> Callable[..., torch.Tensor]:
        """The sum as a function of its tensors."""
        factors, constant = list(self.factors.values()), self.constant
        if isinstance(constant, float):
            first, *others = factors
            return lambda *tensors: _added(tensors[0] * first + constant, tensors[1:], others)
        return lambda *tensors: _added(constant, tensors, factors)


def weighted(node: Node, known: Mapping[Node, Any], found: Mapping[Node, Weighted]) -> Weighted | None:
    """`node` as a weighted sum, if it is one."""
    if str(node.target) == ADDITION:
        left, right = (_read(each, known, found) for each in node.args)
        factor = node.kwargs.get("alpha", 1.0)
        if left is not None and right is not None and isinstance(factor, int | float):
            return left.plus(right, float(factor))
    if str(node.target) in PRODUCTS:
        for each, other in (node.args, node.args[::-1]):
            number, operand = _number(each, known), _read(other, known, found)
            if number is not None and operand is not None:
                return operand.times(number)
    return None


def _read(given: Any, known: Mapping[Node, Any], found: Mapping[Node, Weighted]) -> Weighted | None:
    if not isinstance(given, Node):
        return Weighted({}, float(given)) if isinstance(given, int | float) else None
    if given in known:
        return Weighted({}, known[given])
    return found.get(given, Weighted({given: 1.0}))


def _number(given: Any, known: Mapping[Node, Any]) -> float | None:
    held = known.get(given) if isinstance(given, Node) else given
    if isinstance(held, torch.Tensor):
        return float(held) if held.numel() == 1 and held.is_floating_point() else None
    return float(held) if isinstance(held, int | float) else None


def _added(total: torch.Tensor, tensors: tuple[torch.Tensor, ...], factors: list[float]) -> torch.Tensor:
    for tensor, factor in zip(tensors, factors, strict=True):
        total = torch.add(total, tensor, alpha=factor)
    return total


# A function of tensors as a list of PyTorch's kernels, without the Python that called them.
#
# What depends on fixed tensors alone, such as weights, is computed once; what is computed twice is computed once too. A
# tensor is given back to the allocator after its last use, so that the next one finds it in the cache.

SAME: Final = frozenset({"aten.expand.default", "aten.view.default", "aten.reshape.default", "aten.detach.default"})
"""Kernels that give their operand back where its shape does not change."""
Kernel: TypeAlias = Callable[..., Any]
Step: TypeAlias = tuple[Kernel, tuple[Any, ...], dict[str, Any], list[tuple[int, int]], int]


def trace(function: Callable[..., Any], examples: Sequence[torch.Tensor]) -> GraphModule | None:
    """The kernels that `function` calls on tensors like `examples`; `None` where it looks at elements to decide."""
    try:
        module = make_fx(function)(*examples)
    except RuntimeError:  # PyTorch's answer to a decision that depends on elements
        return None
    module.graph.eliminate_dead_code()
    return module


class TracedCall:
    """A traced function whose inputs at the places `fixed` are known.

    With `regroups`, sums and products by fixed numbers may be regrouped, as is allowed where nothing is negative: then
    each rounding is relative to the result.
    """

    def __init__(self, module: GraphModule, fixed: Mapping[int, torch.Tensor], regroups: bool = False) -> None:
        self._held: list[Any] = []
        self._inputs: list[tuple[int, int]] = []
        self._steps: list[Step] = []
        self._slots: dict[Node, int] = {}
        self._known: dict[Node, Any] = {}
        self._seen: dict[Any, Node] = {}
        self._weighted: dict[Node, Weighted] = {}
        self._regroups = regroups
        places = iter(range(len(module.graph.nodes)))
        for node in module.graph.nodes:
            if node.op == "placeholder":
                place = next(places)
                if place in fixed:
                    self._known[node] = fixed[place]
                else:
                    self._inputs.append((place, self._slot(node)))
            elif node.op == "get_attr":
                self._known[node] = getattr(module, node.target)
            elif node.op == "output":
                self._results = [
                    self._known[each] if each in self._known else self._made(each) for each in node.args[0]
                ]
            else:
                self._call(node)
        self._ended = _last_uses([[slot for _, slot in slots] for *_, slots, _ in self._steps], self._results)
        del self._known, self._seen, self._weighted, self._slots

    @torch.inference_mode()
    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results; `inputs` has all places, and those that are fixed are not read."""
        held = list(self._held)
        for place, slot in self._inputs:
            held[slot] = inputs[place]
        for (kernel, arguments, named, slots, result), ended in zip(self._steps, self._ended, strict=True):
            given = list(arguments)
            for place, slot in slots:
                given[place] = held[slot]
            held[result] = kernel(*given, **named)
            del given
            for slot in ended:
                held[slot] = None
        return [held[each] if isinstance(each, int) else each for each in self._results]

    def _slot(self, node: Node) -> int:
        self._slots[node] = len(self._held)
        self._held.append(None)
        return self._slots[node]

    def _call(self, node: Node) -> None:
        if all(each in self._known for each in node.all_input_nodes):
            arguments, named = map_arg((node.args, node.kwargs), self._known.get)
            self._known[node] = node.target(*arguments, **named)  # type: ignore[operator]
            return
        if self._regroups:
            found = self._weighted.get(_operand(node) or node) or weighted(node, self._known, self._weighted)
            if found is not None:  # a weighted sum is computed when somebody asks for it
                self._weighted[node] = found
                return
        for each in node.all_input_nodes:
            if each not in self._known:
                self._made(each)
        names = map_arg((node.args, node.kwargs), lambda each: f"%{self._slots.get(each, each.name)}")
        same = _operand(node) or self._seen.setdefault((str(node.target), repr(names)), node)
        if same is not node:
            self._slots[node] = self._slots[same]
            return
        self._step(node)

    def _step(self, node: Node) -> None:
        target: Any = node.target
        kernel: Kernel = getattr(target, "_op", target)
        arguments: tuple[Any, ...] = node.args
        named: dict[str, Any] = dict(node.kwargs)
        nested = list[Node]()
        map_arg([each for each in (*arguments, named) if not isinstance(each, Node)], nested.append)
        if nested:
            kernel, arguments, named = _flat(node), tuple(node.all_input_nodes), {}
        packed = packed_product(node, self._known)
        if packed is not None:
            kernel, arguments, named = packed, arguments[:1], {}
        pairs = list(enumerate(arguments))
        unknown = [(place, each) for place, each in pairs if isinstance(each, Node) and each not in self._known]
        template = tuple(self._known.get(each) if isinstance(each, Node) else each for each in arguments)
        places = [(place, self._slots[each]) for place, each in unknown]
        self._steps.append((kernel, template, named, places, self._slot(node)))

    def _made(self, node: Node) -> int:
        """The slot of a tensor; a weighted sum is computed when somebody asks for it."""
        if node not in self._slots:
            addends = self._weighted[node]
            places = list(enumerate(self._slots[each] for each in addends.factors))
            self._steps.append((addends.kernel(), (None,) * len(places), {}, places, self._slot(node)))
        return self._slots[node]


def _last_uses(used: Sequence[Sequence[int]], kept: Collection[Any]) -> list[tuple[int, ...]]:
    """For each step the slots that no later one reads."""
    seen = {each for each in kept if isinstance(each, int)}
    ended = []
    for slots in reversed(used):
        ended.append(tuple(set(slots) - seen))
        seen |= set(slots)
    return ended[::-1]


def _operand(node: Node) -> Node | None:
    """The operand that a node gives back as it is."""
    if str(node.target) not in SAME or not isinstance(node.args[0], Node):
        return None
    before, behind = (each.meta.get("val") for each in (node.args[0], node))
    return node.args[0] if before is not None and behind is not None and before.shape == behind.shape else None


def _flat(node: Node) -> Callable[..., Any]:
    """A kernel with lists of tensors, as a function of its tensors."""
    names = node.all_input_nodes

    def call(*tensors: torch.Tensor) -> Any:
        values = dict(zip(names, tensors, strict=True))
        return node.target(*map_arg(node.args, values.get), **map_arg(node.kwargs, values.get))  # type: ignore[operator]

    return call
