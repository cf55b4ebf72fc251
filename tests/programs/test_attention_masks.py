"""Which places attend to which: masks that libraries make of padding, packing and order, and masks that show more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Role
from tallystick.programs.paired_values import attention_kind

ROWS, LENGTH = 2, 4
HEADS = TensorSpec("F32", (ROWS, 1, LENGTH, 2))
ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"


def graph_of(mask: bool, is_causal: bool, role: Role = Role.INPUT, name: str = "inputs.shown") -> Graph:
    """Attention of one head; its mask is an input as it stands, expanded by one node."""
    table = TensorSpec("BOOL", (ROWS, 1, LENGTH, LENGTH))
    places = [Input(name, role, table)] if mask else []
    q = [Input(f"weights.{part}", Role.WEIGHT, HEADS) for part in "kqv"]
    expand = Node(0, "aten.expand.default", {"self": name}, {"size": table.shape, "implicit": False}, (table,))
    attention = Node(
        1,
        ATTENTION,
        {"query": "weights.q", "key": "weights.k", "value": "weights.v", "attn_mask": "n0" if mask else None},
        {"dropout_p": 0.0, "is_causal": is_causal, "scale": None},
        (HEADS, TensorSpec("F32", (ROWS, 1, LENGTH))),
    )
    nodes = (expand, attention) if mask else (attention,)
    return Graph("aten", GraphForm.LOGICAL, (*places, *q), (), nodes, (Output("outputs.y", "n1"),))


def shown(places: Any) -> Tensor:
    return Tensor.of(np.broadcast_to(np.asarray(places, np.bool_), (ROWS, 1, LENGTH, LENGTH)).copy())


def batch(places: Any, **tables: Any) -> dict[str, Tensor]:
    return {"inputs.shown": shown(places)} | {f"inputs.{k}": Tensor.of(np.asarray(v)) for k, v in tables.items()}


CAUSAL = np.tril(np.ones((LENGTH, LENGTH), np.bool_))
PADDED = [[1, 1, 1, 0], [1, 1, 1, 1]]
PACKED = [[0, 1, 0, 1], [0, 1, 2, 3]]
SAME_TEXT = np.stack([np.kron(np.eye(2), np.ones((2, 2))), np.ones((4, 4))]).astype(np.bool_)


def test_without_a_mask_the_flag_says_what_attention_sees() -> None:
    assert attention_kind(graph_of(False, True), {}) == "causal"
    assert attention_kind(graph_of(False, False), {}) == "bidirectional"


@pytest.mark.parametrize(
    ("places", "tables", "kind"),
    [
        (CAUSAL, {}, "causal"),
        (np.ones_like(CAUSAL), {}, "bidirectional"),
        (CAUSAL & (np.array(PADDED)[:, None, None, :] == 1), {"attention_mask": PADDED}, "causal"),
        (np.array(PADDED)[:, None, None, :] == 1, {"attention_mask": PADDED}, "bidirectional"),
        (CAUSAL & SAME_TEXT[:, None], {"position_ids": PACKED}, "causal"),
    ],
)
def test_a_mask_that_follows_from_the_batch_has_its_kind(places: Any, tables: dict[str, Any], kind: str) -> None:
    assert attention_kind(graph_of(True, False), batch(places, **tables)) == kind


@pytest.mark.parametrize(
    ("places", "tables"),
    [
        (~np.eye(LENGTH, dtype=np.bool_), {}),  # nobody sees himself
        (CAUSAL, {"attention_mask": [[0, 1, 1, 1], [1, 1, 1, 1]]}),  # padding is seen
        (CAUSAL, {"position_ids": PACKED}),  # another text is seen
        (CAUSAL | (np.arange(LENGTH) == 3), {}),  # the last token is seen by all
        (np.eye(LENGTH, dtype=np.bool_), {}),  # everybody sees himself alone
    ],
)
def test_a_mask_that_shows_or_hides_more_has_none(places: Any, tables: dict[str, Any]) -> None:
    assert attention_kind(graph_of(True, False), batch(places, **tables)) is None


def test_a_mask_out_of_the_state_or_of_several_kinds_has_none() -> None:
    stored = graph_of(True, False, Role.BUFFER, "buffers.shown")
    assert attention_kind(stored, {"buffers.shown": shown(CAUSAL)}) is None
    assert attention_kind(graph_of(True, False), {}) is None


def test_tables_with_other_numbers_of_rows_leave_the_mask_open() -> None:
    given = batch(CAUSAL, attention_mask=[[1, 1, 1, 1]] * 2, other_mask=[[1, 1, 1, 1]] * 3)
    assert attention_kind(graph_of(True, False), given) is None
