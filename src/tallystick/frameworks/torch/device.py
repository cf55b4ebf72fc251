"""Whether a device that somebody asked for is here."""

from __future__ import annotations

from typing import Final

import torch

from tallystick.errors import UnavailableError, UsageError

DEVICES: Final = ("cpu", "cuda")


def require_device(device: str) -> None:
    """Raise `UsageError` for a device that is neither cpu nor cuda, `UnavailableError` for one that is not here."""
    if device not in DEVICES:
        raise UsageError(f"--device {device}: cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        why = "PyTorch sees no GPU" if torch.version.cuda else f"torch {torch.__version__} is built without CUDA"
        raise UnavailableError(f"--device cuda: there is no such device here ({why}); --device cpu computes without it")
