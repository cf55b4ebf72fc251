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
        self._sketched = [
            _SketchedTensor(projection, name, weights[name])
            for name in sorted(weights)
            if weights[name].is_floating_point()
        ]

    @torch.no_grad()
    def sketch(self) -> str:
        """The projection of the current weights: `width` little-endian float32 values in base64."""
        parts = [tensor.sketch() for tensor in self._sketched]
        total = torch.stack(parts).sum(0, dtype=torch.float64).to(torch.float32)
        return encode_sketch(total.cpu().numpy().astype("<f4").tobytes())


class _SketchedTensor:
    """One weight tensor seen as rows of `width`, and the signs of the rows.

    The view is kept from step to step, because optimizers write in place, and taken anew where the weight has moved.
    """

    def __init__(self, projection: Projection, name: str, weight: torch.Tensor) -> None:
        self._weight, self._width = weight, projection.width
        signs = projection.signs(name, -(-weight.numel() // self._width))
        self._signs = torch.from_numpy(np.asarray(signs, np.float32)).to(weight.device)
        self._whole_signs = self._signs[: weight.numel() // self._width]
        self._take_view()

    def sketch(self) -> torch.Tensor:
        """Signs · rows, float32[width]."""
        if self._address != self._weight.data_ptr():
            self._take_view()
        rows, rest = self._views if self._is_view else self._split()
        part = self._whole_signs @ rows
        if len(rest):
            part[: len(rest)] += self._signs[-1] * rest
        return part

    @torch.no_grad()
    def _take_view(self) -> None:
        self._address = self._weight.data_ptr()
        self._is_view = self._weight.is_contiguous() and self._weight.dtype == torch.float32
        self._views = self._split()

    def _split(self) -> tuple[torch.Tensor, torch.Tensor]:
        flat = self._weight.detach().reshape(-1).float()
        whole = flat.numel() - flat.numel() % self._width
        return flat[:whole].view(-1, self._width), flat[whole:]
