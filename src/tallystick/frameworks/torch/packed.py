"""Matrix products with a fixed right side, laid out beforehand as the kernels of oneDNN read it.

It is the same product in another order of sums, in F32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.fx import Node

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
