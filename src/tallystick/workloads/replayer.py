"""The interface of the verifier's trainer; PyTorch implements it in `frameworks.torch.training`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.summary import StateSummary


@dataclass(frozen=True)
class ReplayedStep:
    """What one replayed step gave: mean loss, gradient norm before clipping, mean and RMS of the logits, summaries."""

    loss: float
    gradient_norm: float | None
    activation: tuple[float, float] | None
    summary: StateSummary


class Replayer(Protocol):
    """A trainer of the verifier's own, rebuilt from the spec."""

    def initial_state(self) -> Mapping[str, Tensor]:
        """The seeded state before the first step."""
        ...

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`; raises `MalformedError` when it is not a state of this spec."""
        ...

    def step(self, index: int) -> ReplayedStep:
        """Take step `index` on the batch that the spec determines."""
        ...

    def state(self) -> Mapping[str, Tensor]:
        """The full state now."""
        ...
