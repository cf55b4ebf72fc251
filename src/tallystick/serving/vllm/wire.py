"""What is kept of an answer as plain data: what vLLM sends between its processes without pickling it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from tallystick.transcripts.receipt import BatchStatement

DTYPES: Final = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Kept:
    """What a worker kept of an answer: rows [tokens, width] by layer, and the largest batch it was computed in."""

    rows: Mapping[int, torch.Tensor]
    batch: BatchStatement

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Kept:
        """What `TallyWorkerExtension.tally_take` told."""
        return cls(unpack_rows(told["rows"]), BatchStatement(largest=told["largest"]))


def pack_rows(rows: Mapping[int, torch.Tensor]) -> dict[str, dict[str, Any]]:
    """Rows [tokens, width] by layer as bytes, little-endian, under the layer's number as text."""
    return {
        str(layer): {
            "dtype": NAMES[each.dtype],
            "width": each.shape[1],
            "data": each.contiguous().view(torch.uint8).numpy().tobytes(),
        }
        for layer, each in rows.items()
    }


def unpack_rows(packed: Mapping[str, Mapping[str, Any]]) -> dict[int, torch.Tensor]:
    """The rows that `pack_rows` packed."""
    return {
        int(layer): torch.frombuffer(bytearray(each["data"]), dtype=DTYPES[each["dtype"]]).view(-1, each["width"])
        for layer, each in packed.items()
    }
