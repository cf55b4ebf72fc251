"""What makers state about accelerators: the most dense operations per second by dtype, and the memory's bandwidth.

The figures are those of the fastest variant, so that they are an upper bound for the others. Tensors in F32 may be
multiplied as TF32, which is therefore the bound for F32. Sources: the data sheets "NVIDIA A100 Tensor Core GPU" (2021),
"NVIDIA H100 Tensor Core GPU" (2023) and "NVIDIA H200 Tensor Core GPU" (2024), without sparsity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

TERA: Final = 10**12
HOPPER: Final = {"BF16": 990 * TERA, "F16": 990 * TERA, "F32": 495 * TERA, "F64": 67 * TERA}


class Capacity(NamedTuple):
    """The most operations per second by dtype, and bytes per second of the memory."""

    peak: Mapping[str, int]
    bandwidth: int


CAPACITIES: Final = {
    "A100": Capacity({"BF16": 312 * TERA, "F16": 312 * TERA, "F32": 156 * TERA, "F64": 19_500 * 10**9}, 2_039 * 10**9),
    "H100": Capacity(HOPPER, 3_940 * 10**9),
    "H200": Capacity(HOPPER, 4_800 * 10**9),
}


def capacity_of(model: str) -> Capacity | None:
    """What is stated about an accelerator whose name holds that of a known model; None if it is not known."""
    words = model.replace("-", " ").upper().split()
    return next((capacity for name, capacity in CAPACITIES.items() if name in words), None)
