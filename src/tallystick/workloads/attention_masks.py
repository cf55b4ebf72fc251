"""Which places attend to which, in the attention of a step graph.

A library leaves the mask of attention out where every token counts. So the step of a padded or packed batch is another
program than that of a full one, and the mask in it is the prover's. It is computed here from the step's own batch, and
compared with what the batch itself says: a token sees no padding, no other text of its row, and, in a causal model,
nothing behind it.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.errors import MalformedError
from tallystick.graphs.execution import execute
from tallystick.graphs.graph import Graph, Ref
from tallystick.graphs.reference import Reference
from tallystick.graphs.slicing import verification_slice
from tallystick.tensors.tensor import State, Tensor
from tallystick.workloads.masks import INTEGERS
from tallystick.workloads.names import BATCH

OPERAND: Final = "attn_mask"
HIDDEN: Final = -1e4
"""An additive mask at or below this hides a place: half-precision masks hold -65504, others -3e38 or -inf."""

Places: TypeAlias = "npt.NDArray[np.bool_]"


def attention_kind(graph: Graph, batch: State) -> str | None:
    """`"causal"` or `"bidirectional"` where all attention in a step sees what the batch allows; `""` without attention.

    `None` where some attention sees anything else, or its mask is made of more than the batch. `batch` holds the
    tensors of a step by the names of the graph's inputs.
    """
    masks, flags = dict[Ref, None](), set[bool]()
    for node in graph.nodes:
        if "is_causal" in node.attributes and "dropout_p" in node.attributes:
            mask = node.operands.get(OPERAND)
            if isinstance(mask, str):
                masks[mask] = None
            else:
                flags.add(bool(node.attributes["is_causal"]))
    kinds = {"causal" if flag else "bidirectional" for flag in flags} | {
        _kind_of_mask(graph, ref, batch) for ref in masks
    }
    if None in kinds or len(kinds) > 1:
        return None
    return next(iter(kinds), "")


def _kind_of_mask(graph: Graph, mask: Ref, batch: State) -> str | None:
    cone = verification_slice(graph, (), (mask,))
    from_batch = all(entry.name.startswith(BATCH) and entry.spec.dtype in INTEGERS for entry in cone.inputs)
    if not from_batch or cone.constants:
        return None
    try:
        values = execute(cone, batch, Reference())[mask].array()
    except MalformedError:
        return None
    seen = values if values.dtype == np.bool_ else values == 0
    if values.dtype != np.bool_ and not np.all(seen | (values <= HIDDEN)):
        return None
    if seen.ndim != 4 or seen.shape[-1] != seen.shape[-2]:
        return None
    tables = [each for each in batch.values() if _is_table(each, seen.shape[-1])]
    if len({table.shape[0] for table in tables} | {seen.shape[0]} - {1}) > 1:
        return None
    allowed, counted = _allowed(batch, seen.shape[-1])
    for kind, places in (("causal", np.tril(allowed)), ("bidirectional", allowed)):
        same = (seen == places[:, None]) | ~counted[:, None, :, None]  # what padding itself sees counts nowhere
        if bool(np.all(same)):
            return kind
    return None


def _is_table(tensor: Tensor, length: int) -> bool:
    """Whether a tensor of the batch says something of each place in each row."""
    return len(tensor.shape) == 2 and tensor.shape[1] == length and tensor.dtype in INTEGERS


def _allowed(batch: State, length: int) -> tuple[Places, Places]:
    """Which places see which by the batch alone, BOOL[rows, L, L], and which of them are no padding, BOOL[rows, L]."""
    counted = np.ones((1, length), np.bool_)
    texts = np.zeros((1, length), np.int64)
    for name, table in batch.items():
        is_table = _is_table(table, length)
        if is_table and name.endswith("mask"):
            counted = counted & (table.array() != 0)
        elif is_table and name.endswith("position_ids"):
            positions = table.array().astype(np.int64)
            texts = np.cumsum(np.diff(positions, axis=1, prepend=positions[:, :1] - 1) != 1, axis=1)
    return (texts[:, :, None] == texts[:, None, :]) & counted[:, None, :], counted
