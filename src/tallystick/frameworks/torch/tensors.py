"""Converts tensors of PyTorch to tensors of canonical bytes, and back."""

from __future__ import annotations

import numpy as np
import torch

from tallystick.tensors.tensor import Tensor


def to_tensor(value: torch.Tensor) -> Tensor:
    """A tensor of canonical bytes; shares memory with `value` if that is contiguous on the CPU."""
    held = value.detach().cpu().contiguous()
    if held.dtype == torch.bfloat16:
        return Tensor.of(held.view(torch.int16).numpy().view("<u2"), "BF16")
    return Tensor.of(held.numpy())


def from_tensor(tensor: Tensor) -> torch.Tensor:
    """A new PyTorch tensor that holds the same bytes."""
    array = np.array(tensor.array(), copy=True)
    if tensor.dtype == "BF16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
