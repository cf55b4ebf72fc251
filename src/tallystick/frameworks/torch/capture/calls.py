"""Reads a traced ATen call: the operator's name in graphs, and its arguments by parameter.

Arguments that only place bytes (device, layout, memory format, pinning) are dropped, and so are operators that do
nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import fx

from tallystick.errors import UnavailableError

PLACEMENT: Final = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking"})
IDENTITIES: Final = frozenset(
    {
        "aten.alias.default",
        "aten.detach.default",
        "aten.lift.default",
        "aten.lift_fresh.default",
        "aten.lift_fresh_copy.default",
    }
)
DROPOUT: Final = "aten.dropout.default"
CLONE: Final = "aten.clone.default"
SCALAR_OVERLOADS: Final = {"Tensor": "Scalar", "default": "Scalar", "self": "ScalarOther", "Tensor_mode": "Scalar_mode"}
"""Overloads that take a Python number in place of the tensor of the traced overload."""
RENAMED: Final = {"tally.grouped_mm.default": "aten._grouped_mm.default"}
USUAL_FORMATS: Final = (None, 0, 1, torch.contiguous_format, torch.preserve_format)
"""Memory formats that are dropped. Schemas state defaults as in `c10::MemoryFormat`: contiguous 0, preserve 1."""
TO_THE_END: Final = 2**63 - 1
RECURRENT: Final = ("aten.gru", "aten.lstm", "aten.mkldnn_rnn", "aten.rnn_")
"""The kernels of recurrent layers and cells; they count as drawing, because of dropout between layers."""
MENDS: Final[Mapping[str, str]] = {
    "aten._scaled_dot_product": "load the model with attn_implementation='eager'",
    "aten.index.Tensor": "select rows with torch.where or a weight of 0 and 1, so that shapes stay the same",
    **dict.fromkeys(RECURRENT, "write the cells with nn.Linear, or use nn.RNNCell"),
}
"""What the author of a program can do about an operator that cannot be captured, by the beginning of its name."""


def bound_arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an ATen call by parameter, defaults included.

    A usual memory format is dropped; any other raises `UnavailableError`, and so does a generator.
    """
    schema = node.target._schema  # type: ignore[union-attr]
    given = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    given |= dict(zip((argument.name for argument in schema.arguments), node.args, strict=False))
    given |= node.kwargs
    if given.get("generator") is not None:
        raise UnavailableError(f"{node.target} draws from a generator of its own")
    if given.get("memory_format") not in USUAL_FORMATS:
        raise UnavailableError(f"{node.target} asks for {given['memory_format']}, which graphs do not have")
    kept = {name: value for name, value in given.items() if name not in PLACEMENT | {"generator"}}
    return kept | {"end": _last(kept)} if kept.get("end") == TO_THE_END else kept


def only_moves_bytes(node: fx.Node) -> bool:
    """Whether the result has the values and strides of the operand, so that no later kernel can differ."""
    if str(node.target) == DROPOUT:
        given = bound_arguments(node)
        return not given["train"] or given["p"] == 0
    if str(node.target) != CLONE:
        return str(node.target) in IDENTITIES
    source = node.args[0].meta["val"]  # type: ignore[union-attr]
    return bool(source.stride() == node.meta["val"].stride())


def operator_name(target: torch._ops.OpOverload, given: Mapping[str, Any]) -> str:
    """The operator's name in graphs; if a Python number was given for a tensor, the overload for numbers."""
    name = RENAMED.get(str(target), str(target))
    if name.startswith("tally."):
        return name.removesuffix(".default")
    tensors = (a.name for a in target._schema.arguments if str(a.type) == "Tensor")
    if not any(isinstance(given.get(parameter), bool | int | float) for parameter in tensors):
        return name
    stem, _, overload = name.rpartition(".")
    return f"{stem}.{SCALAR_OVERLOADS.get(overload, overload)}"


def why_not(target: torch._ops.OpOverload) -> str:
    """The reason why graphs do not have an operator."""
    is_recurrent = str(target).startswith(RECURRENT)
    if torch.Tag.nondeterministic_seeded in target.tags and not is_recurrent:
        return "it draws random numbers, which have to be explicit: turn that off, or give a recorder `seed=1`"
    return "it is not on the allow-list of operators (docs/operators.md)"


def refusal(name: str, reason: object) -> str:
    """One line: the operator, why it cannot be captured, and what mends it where that is known."""
    mends = next((f"; {line}" for start, line in MENDS.items() if name.startswith(start)), "")
    return f"{name} cannot be captured: {reason}{mends}"


def _last(given: Mapping[str, Any]) -> int | None:
    """How graphs write a slice to the end: no end, or the size of the axis if it is required (`slice_backward`)."""
    return given["input_sizes"][given["dim"]] if "input_sizes" in given else None
