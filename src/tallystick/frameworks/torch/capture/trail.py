"""What a capture tells about the part of the model that runs; nobody listens unless module paths are wanted.

`module_trail` listens, for those who record. A verifier needs the graph alone, which is the same without it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch
from torch import fx

LOSS: Final = "loss"
UPDATE: Final = "update of "
CLIPPING: Final = "gradient norm"


class Trail:
    """Is told which part of the model runs, and forgets it: no node has a module."""

    def kept(self) -> AbstractContextManager[None]:
        """Keep the modules of the nodes that are traced inside."""
        return nullcontext()

    def enter(self, path: str) -> None:
        """From now on, `path` runs."""

    def follow(self, loss: torch.Tensor) -> None:
        """The gradient of `loss` is taken next."""

    def mark_call(self, call: torch.nn.Module) -> None:
        """Make `call`, an exported call of the model, tell its modules while it runs."""

    def mark_step(self, step: fx.GraphModule) -> None:
        """Make `step`, a traced step, tell its modules again when it is traced once more."""

    def module_of(self, node: fx.Node) -> str:
        """The module of a traced node; empty if it is not known."""
        return ""


NO_TRAIL: Final = Trail()
