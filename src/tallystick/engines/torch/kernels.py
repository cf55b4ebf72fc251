"""PyTorch's kernel for a node: its own, its fused one, or the operator's definition."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import array_api_compat.torch
import numpy as np
import torch

from tallystick.core.errors import UnavailableError
from tallystick.core.tensors import numpy_dtype
from tallystick.engines.torch.randomness import DRAWING
from tallystick.engines.torch.tensors import DTYPES, dtype_name
from tallystick.programs.graph import Graph, Node, Ref
from tallystick.programs.operators.arrays import Array, ArrayLibrary, Index, standard_name
from tallystick.programs.operators.definition import Operator, operator
from tallystick.programs.operators.values import Value, Values

# PyTorch as an array library that evaluates the definitions of operators.


@dataclass(frozen=True)
class _Torch:
    """PyTorch by the functions of the namespace `xp`; U16, U32 and U64 have few operators there."""

    xp: Any
    name = "torch"

    def dtype(self, name: str) -> Any:
        return getattr(self.xp, standard_name(name))

    def quiet(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def is_known(self, x: Array) -> bool:
        return True

    def asarray(self, elements: Any, dtype: str) -> Array:
        array = self.xp.asarray(np.array(elements, numpy_dtype(dtype)))
        return array.view(self.dtype(dtype))

    def storage(self, x: Array) -> np.ndarray[Any, Any]:
        array = x.detach().cpu()
        is_bfloat16 = array.dtype == self.xp.bfloat16
        return np.asarray((array.contiguous().view(self.xp.uint16) if is_bfloat16 else array).numpy())

    def convert(self, x: Array, dtype: str) -> Array:
        return x.to(self.dtype(dtype))

    def erf(self, x: Array) -> Array:
        return self.xp.erf(x)

    def rsqrt(self, x: Array) -> Array:
        return self.xp.rsqrt(x)

    def sigmoid(self, x: Array) -> Array:
        return self.xp.sigmoid(x)

    def matmul(self, x: Array, y: Array) -> Array:
        return self.xp.matmul(x, y)

    def plus_times(self, x: Array, y: Array, factor: float) -> Array:
        return self.xp.add(x, y, alpha=factor)

    def put(self, x: Array, index: Index, updates: Array, add: bool) -> Array:
        places = [None if isinstance(place, slice) else place for place in index]
        return self.xp.ops.aten.index_put(x, places, updates, add)

    def windows(self, x: Array, axis: int, size: int, stride: int, dilation: int) -> Array:
        return x.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]


TORCH: Final[ArrayLibrary] = _Torch(array_api_compat.torch)


class _QuickNames:
    """The namespace of the standard, with PyTorch's own functions where all operands have one dtype.

    Those of the standard first look for operands that PyTorch would promote otherwise, which takes longer than small
    operations themselves.
    """

    def __getattr__(self, name: str) -> Any:
        function = getattr(torch, _QUICK[name]) if name in _QUICK else getattr(TORCH.xp, name)
        setattr(self, name, function)
        return function


_EQUAL_NAMES: Final = (
    *("abs", "sqrt", "exp", "expm1", "log", "log1p", "tanh", "sin", "cos", "isfinite", "isinf", "where"),
    *("any", "all", "add", "sum", "stack", "reshape", "broadcast_to"),
)
_QUICK: Final = {name: name for name in _EQUAL_NAMES} | {
    "negative": "neg",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "permute_dims": "permute",
}
QUICK: Final[ArrayLibrary] = _Torch(_QuickNames())


# The operator `tally.fused_adam` by PyTorch's own fused kernel, which has roundings of its own.


@torch.library.custom_op(
    "tally::fused_adam",
    mutates_args=(),
    schema="(Tensor weight, Tensor gradient, Tensor exp_avg, Tensor exp_avg_sq, Tensor step, Tensor learning_rate, *, "
    "float beta1, float beta2, float eps, float weight_decay, bool decoupled, bool maximize) "
    "-> (Tensor, Tensor, Tensor)",
)
def fused_adam(
    weight: torch.Tensor,
    gradient: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    step: torch.Tensor,
    learning_rate: torch.Tensor,
    *,
    decoupled: bool,
    **settings: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weight, exp_avg and exp_avg_sq after the step; `step` counts it already."""
    after, mean, square = weight.clone(), exp_avg.clone(), exp_avg_sq.clone()
    kernel: Any = torch._fused_adamw_ if decoupled else torch._fused_adam_
    rate = learning_rate.item()
    kernel([after], [gradient], [mean], [square], [], [step], amsgrad=False, lr=rate, **settings)
    return after, mean, square


@fused_adam.register_fake
def _fake(weight: torch.Tensor, *_: object, **__: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(weight), torch.empty_like(weight), torch.empty_like(weight)


# Decides which operators may write their result over their first operand without changing any result.
#
# Three conditions must hold: nothing reads the operand's memory afterwards, no other value shares that memory, and the
# result has the operand's dtype and shape. Values that might share memory are in one group. Only operators that are
# known to allocate their result start a new group.

IN_PLACE: Final = {
    f"aten.{stem}.{overload}": f"aten.{stem}_.{overload}"
    for stem, overloads in {
        "add": ("Tensor", "Scalar"),
        "addcdiv": ("default",),
        "addcmul": ("default",),
        "clamp": ("default",),
        "div": ("Tensor", "Scalar"),
        "lerp": ("Scalar",),
        "masked_fill": ("Scalar", "Tensor"),
        "mul": ("Tensor", "Scalar"),
        "neg": ("default",),
        "sub": ("Tensor", "Scalar"),
    }.items()
    for overload in overloads
} | {"aten.mul.Scalar": "aten.mul_.Tensor"}  # `mul_.Scalar` rounds the number to the 16 bits of its operand first
"""Elementwise operators and the overloads that write over their first operand; both compute the same bits."""

ALLOCATING: Final = frozenset(
    {
        *IN_PLACE,
        *("aten.pow.Tensor_Scalar", "aten.sum.dim_IntList"),
        *(
            f"aten.{name}.default"
            for name in (
                *("_log_softmax", "_log_softmax_backward_data", "_softmax", "_softmax_backward_data"),
                *("_to_copy", "addmm", "bmm", "cat", "clone", "convolution_backward"),
                *("embedding_dense_backward", "exp", "gelu_backward", "mm", "native_batch_norm_backward"),
                *("native_group_norm_backward", "native_layer_norm_backward", "reciprocal", "rsqrt"),
                *("silu_backward", "slice_backward", "sqrt", "threshold_backward"),
            )
        ),
    }
)
"""Operators whose results have newly allocated memory."""


def in_place_nodes(graph: Graph, consumed: Collection[Ref] = ()) -> frozenset[int]:
    """The numbers of the nodes that may write over their first operand.

    `consumed` are inputs whose tensors may be overwritten; each must have memory that nothing else uses.
    """
    groups, specs = _groups(graph), graph.specs()
    last_read: dict[int, int] = {}
    for node in graph.nodes:
        last_read |= {groups[ref]: node.number for ref in node.refs}
    # outputs are read after all nodes
    last_read |= {groups[output.value]: graph.nodes[-1].number + 1 for output in graph.outputs if graph.nodes}
    owned = set(consumed) | {ref for node in graph.nodes if node.operator in ALLOCATING for ref in node.outputs if ref}
    chosen: set[int] = set()
    for node in graph.nodes:
        first = node.refs[0] if node.operator in IN_PLACE else None
        if first is None or first not in owned or node.results[0] != specs[first]:
            continue
        is_alone = all(groups[ref] != groups[first] or ref == first for ref in node.refs)
        if last_read[groups[first]] == node.number and is_alone:
            chosen.add(node.number)
    return frozenset(chosen)


def _groups(graph: Graph) -> dict[Ref, int]:
    """A group number for each value; values that might share memory have the same number."""
    parent: dict[Ref, Ref] = {name: name for name in graph.specs()}

    def root(ref: Ref) -> Ref:
        while parent[ref] != ref:
            parent[ref] = parent[parent[ref]]
            ref = parent[ref]
        return ref

    for node in (node for node in graph.nodes if node.operator not in ALLOCATING):
        for result in filter(None, node.outputs):
            for ref in node.refs:
                parent[root(result)] = root(ref)
    numbers = {name: index for index, name in enumerate(parent)}
    return {ref: numbers[root(ref)] for ref in parent}


# Turns a node into a call of PyTorch's kernel for its operator.

CRASHES: Final = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""The errors that a kernel raises for unsupported operands."""
ZEROS: Final = {
    "aten.empty.memory_format": "aten.zeros.default",
    "aten.empty_like.default": "aten.zeros_like.default",
    "aten.new_empty.default": "aten.new_zeros.default",
}
"""Uninitialised memory is zero, because the definitions of graphs have no undefined values."""
STRIDED: Final = "aten.new_empty_strided.default"
ADDING: Final = frozenset({"aten.index_put.default", "aten._unsafe_index_put.default"})
ADDED: Final[Mapping[str, Callable[..., Any]]] = {**DRAWING, "tally.fused_adam": fused_adam}
"""Operators that this project adds to PyTorch: faster than their definitions, or with a kernel's own roundings."""
VIEWS: Final = frozenset({"aten.view.default", "aten._unsafe_view.default"})


def prepared(node: Node, device: str, in_place: bool = False) -> Callable[..., Any]:
    """A function from the operands, in the order of the parameters, to the kernel's return value."""
    described = operator(node.operator)
    if node.operator in ADDED:
        kernel, settings = ADDED[node.operator], _settings(described, node)
        return lambda *operands: kernel(*operands, **settings)
    if described.dialect != "aten":
        return _defined(described, node)
    name = IN_PLACE[node.operator] if in_place else ZEROS.get(node.operator, node.operator)
    call = _bound(overload_of(name), described, node, device)
    if node.operator == STRIDED:
        return lambda x: call(x).zero_()
    if node.operator in ADDING and node.attributes["accumulate"]:
        return _in_order(call)
    return _viewing(call, node) if node.operator in VIEWS else call


def _defined(described: Operator, node: Node) -> Callable[..., Any]:
    """An operator of another dialect by its definition, on PyTorch's arrays."""
    names = [parameter.name for parameter in described.parameters if parameter.is_operand]

    def value(operand: Any) -> Any:
        if isinstance(operand, list | tuple):
            return tuple(value(item) for item in operand)
        return None if operand is None else Value(operand, dtype_name(operand.dtype))

    def run(*operands: Any) -> tuple[Any, ...]:
        given = dict(zip(names, map(value, operands), strict=True)) | dict(node.attributes)
        results = described.read(Values(TORCH), given)
        return tuple(None if result is None else result.array for result in results)

    return run


def _in_order(call: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that adds in the order of its indices: by itself it adds in any, where it has several threads."""

    def ordered(*operands: Any) -> Any:
        before = torch.are_deterministic_algorithms_enabled()
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(True)
        try:
            return call(*operands)
        finally:
            torch.use_deterministic_algorithms(before, warn_only=warns)

    return ordered


def overload_of(name: str) -> torch._ops.OpOverload:
    """The ATen overload of an allowed operator name."""
    _, packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)  # type: ignore[no-any-return]


def results_of(node: Node, returned: Any) -> tuple[Any, ...]:
    """One entry for each result of the node."""
    values = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    return tuple(None if spec is None else value for spec, value in zip(node.results, values, strict=True))


def refusal(node: Node | None, error: BaseException) -> UnavailableError:
    """The error that names the node whose kernel raised `error`."""
    assert node is not None
    reason = (str(error).strip().splitlines() or [""])[0]
    return UnavailableError(f"{node.operator} (node {node.number}) does not run here: {reason[:200]}")


def _bound(overload: torch._ops.OpOverload, described: Operator, node: Node, device: str) -> Callable[..., Any]:
    """The kernel with its attributes filled in; arguments that equal their default are left out."""
    operands = [parameter.name for parameter in described.parameters if parameter.is_operand]
    arguments = {argument.name: argument for argument in overload._schema.arguments}
    settings = _settings(described, node)
    # where results are placed: clones are contiguous, new and moved tensors go to the engine's device
    if str(overload) == "aten.clone.default":
        settings["memory_format"] = torch.contiguous_format
    elif "device" in arguments and (not operands or not arguments["device"].has_default_value()):
        settings["device"] = torch.device(device)
    named = {name: settings[name] for name, each in arguments.items() if each.kwarg_only and _is_set(each, settings)}
    positional = [argument for argument in arguments.values() if not argument.kwarg_only]
    while positional and positional[-1].name not in operands and not _is_set(positional[-1], settings):
        positional.pop()
    order = {argument.name: settings.get(argument.name) for argument in positional}
    return _filled(overload._op, operands, order, named)


def _filled(
    kernel: Callable[..., Any], operands: Sequence[str], order: Mapping[str, Any], named: Mapping[str, Any]
) -> Callable[..., Any]:
    """A call with the operands alone: `order` has the positional arguments, `named` those given by name only."""
    if not set(operands) <= order.keys():
        return lambda *given: kernel(**{**order, **named, **dict(zip(operands, given, strict=True))})
    if list(order)[: len(operands)] == operands:
        rest = list(order.values())[len(operands) :]
        return (lambda *given: kernel(*given, *rest, **named)) if rest or named else kernel
    places, template = [list(order).index(name) for name in operands], list(order.values())

    def scattered(*given: Any) -> Any:  # the operands come between attributes
        arguments = list(template)
        for place, value in zip(places, given, strict=True):
            arguments[place] = value
        return kernel(*arguments, **named)

    return scattered


def _is_set(argument: Any, settings: Mapping[str, Any]) -> bool:
    """Whether an argument has a value, and another one than its default."""
    if argument.name not in settings or not argument.has_default_value():
        return argument.name in settings
    value, default = settings[argument.name], argument.default_value
    return type(value) is not type(default) or bool(value != default)


def _settings(described: Operator, node: Node) -> dict[str, Any]:
    """The attributes of a node as PyTorch takes them."""
    dtypes = {parameter.name for parameter in described.parameters if parameter.kind.startswith("dtype")}
    settings: dict[str, Any] = dict(node.attributes)
    for name, value in settings.items():
        if name in dtypes and value is not None:
            settings[name] = DTYPES[value]
        elif isinstance(value, tuple):
            settings[name] = list(value)
    return settings


def _viewing(call: Callable[..., Any], node: Node) -> Callable[..., Any]:
    """A view if strides allow one, else a copy: inputs of a slice of a graph may have other strides."""
    size: Any = node.attributes["size"]

    def view(x: torch.Tensor) -> torch.Tensor:
        try:
            return call(x)  # type: ignore[no-any-return]
        except RuntimeError:
            return x.reshape(size)

    return view
