"""Whether the masks of a batch leave anything out: libraries compute attention otherwise where they do not.

Where every token counts, and where no row holds several texts, a model of transformers makes no mask and asks fused
attention to be causal, which rounds otherwise than the same mask would. So the step of such a batch is another program
than that of a padded or packed one.
"""

from __future__ import annotations

import numpy as np

from tallystick.tensors.tensor import State, Tensor

INTEGERS = frozenset({"BOOL", "U8", "I8", "I16", "I32", "I64"})


def full_masks(batch: State) -> frozenset[str]:
    """The names of the masks that are full: tables of integers or booleans, and all of them ones.

    Positions are full where they count up in each row, for then it holds one text.
    """
    tables = {name: each for name, each in batch.items() if each.dtype in INTEGERS and len(each.shape) == 2}
    return frozenset(name for name, each in tables.items() if _is_full(name, each))


def _is_full(name: str, table: Tensor) -> bool:
    if name.endswith("position_ids"):
        return bool(np.all(np.diff(table.array().astype(np.int64), axis=1) == 1))
    return bool(np.all(table.array() == 1))
