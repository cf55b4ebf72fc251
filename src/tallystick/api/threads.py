"""How many threads PyTorch computes with while a verifier works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tallystick.transcripts.environment import Environment

THREADS_MAX: Final = 256


@contextmanager
def threads_of(stated: Environment | None) -> Iterator[None]:
    """As many threads as an environment states, if there is one: a matter of speed, and of the last bits."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(before if stated is None else min(stated.threads, THREADS_MAX))
    try:
        yield
    finally:
        torch.set_num_threads(before)
