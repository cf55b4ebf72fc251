"""The weights that a training begins with, where they come from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tallystick.commitments.digests import Digest
from tallystick.tensors.digest import state_digest
from tallystick.tensors.tensor import State


@dataclass(frozen=True)
class Origin:
    """Weights under the names that their model gives them, and the directory that holds them.

    `rest` is what else a run ended with: its last state without the weights, under the names of the state.
    """

    path: Path
    weights: State
    rest: State = field(default_factory=dict)

    @cached_property
    def digest(self) -> Digest:
        """The state digest of the weights: what `tally import-model` and `tally digest` print and a claim names."""
        return state_digest(self.weights)
