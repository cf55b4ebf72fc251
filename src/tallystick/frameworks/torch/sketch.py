"""Summaries of a live model, taken without leaving its device more often than once.

The sketch is the `Projection` of DESIGN §6 in float32: one matrix–vector product per weight tensor, one read of
the weights. On one stack it is reproduced bit for bit; elsewhere it agrees with the NumPy definition to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from tallystick.tolerances import Projection
from tallystick.transcripts import encode_sketch


class Sketcher:
    """Projects the weights of one model again and again; the signs are drawn once."""

    def __init__(self, projection: Projection, weights: Mapping[str, torch.Tensor]) -> None:
        self._width = projection.width
        self._weights = [weights[name] for name in sorted(weights) if weights[name].is_floating_point()]
        self._signs = [
            torch.from_numpy(np.asarray(projection.signs(name, self._rows(weights[name])), np.float32)).to(
                weights[name].device
            )
            for name in sorted(weights)
            if weights[name].is_floating_point()
        ]

    @torch.no_grad()
    def sketch(self) -> str:
        """The projection of the current weights: `width` little-endian float32 values in base64."""
        parts = [self._project(weight, signs) for weight, signs in zip(self._weights, self._signs, strict=True)]
        total = torch.stack(parts).sum(0, dtype=torch.float64).to(torch.float32)
        return encode_sketch(total.cpu().numpy().astype("<f4").tobytes())

    def _rows(self, weight: torch.Tensor) -> int:
        return -(-weight.numel() // self._width)

    def _project(self, weight: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
        flat = weight.detach().reshape(-1).float()
        whole = flat.numel() - flat.numel() % self._width
        part = signs[: whole // self._width] @ flat[:whole].view(-1, self._width)
        if whole < flat.numel():
            part[: flat.numel() - whole] += signs[-1] * flat[whole:]
        return part
