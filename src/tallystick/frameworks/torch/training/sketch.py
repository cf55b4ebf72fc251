"""Sketches of a live model, with one transfer from its device.

The sketch is the `Projection` of DESIGN §6, summed in float64: matrix–vector products over blocks of a weight tensor,
reading the weights once. In float64 the settings of the training loop (TF32, autocast, reduced precision) have no
effect, and rounding does not grow with the model.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tallystick.tolerances.projection import Projection
from tallystick.transcripts.summary import encode_sketch

BLOCK = {"cpu": 1 << 20}
BLOCK_ELSEWHERE = 1 << 24
"""Elements converted at a time: as many as fit the CPU's cache; on a GPU, enough to keep it busy."""


class Sketcher:
    """Projects the weights of one model repeatedly; the signs are drawn once."""

    def __init__(self, projection: Projection, weights: Mapping[str, torch.Tensor]) -> None:
        self._width = projection.width
        self._sketched = [
            _SketchedTensor(projection, name, weights[name])
            for name in sorted(weights)
            if weights[name].is_floating_point()
        ]

    @torch.no_grad()
    def sketch(self) -> str:
        """The projection of the current weights: `width` little-endian float32 values in base64."""
        parts = [tensor.sketch() for tensor in self._sketched]
        total = torch.stack(parts).sum(0) if parts else torch.zeros(self._width)
        return encode_sketch(total.cpu().numpy().astype("<f4").tobytes())


class _SketchedTensor:
    """One weight tensor viewed as rows of `width`, and one sign per row, a byte each."""

    def __init__(self, projection: Projection, name: str, weight: torch.Tensor) -> None:
        self._weight, self._width = weight, projection.width
        signs = projection.signs(name, -(-weight.numel() // self._width))
        self._signs = torch.from_numpy(signs).to(weight.device)
        self._rows = max(1, BLOCK.get(weight.device.type, BLOCK_ELSEWHERE) // self._width)

    def sketch(self) -> torch.Tensor:
        """Signs · rows, float64[width]."""
        flat = self._weight.detach().reshape(-1)
        whole = flat.numel() - flat.numel() % self._width
        total = torch.zeros(self._width, dtype=torch.float64, device=flat.device)
        rows = flat[:whole].view(-1, self._width)
        for first in range(0, len(rows), self._rows):
            block = slice(first, min(first + self._rows, len(rows)))
            total += self._signs[block].double() @ rows[block].double()
        if rest := flat.numel() - whole:
            total[:rest] += self._signs[-1] * flat[whole:].double()
        return total
