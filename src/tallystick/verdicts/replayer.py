"""What a verifier replays steps with: its environment, and the interface of its trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tallystick.core.tensors import Tensor
from tallystick.formats.records import StateSummary

if TYPE_CHECKING:
    from pathlib import Path

    from tallystick.core.digests import Digest
    from tallystick.formats.data.rows import CommittedRows
    from tallystick.formats.data.samples import BatchPlan, Dataset
    from tallystick.formats.data.step_program import StepProgram
    from tallystick.formats.data.tokenizer import ReadEncoder, Tokenizer
    from tallystick.formats.spec import Environment, Origin, Spec


# The interface of the verifier's trainer; PyTorch implements it in `engines.torch.training`.


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


# What a verifier replays steps with: its environment, and how it builds replayers on it.


@dataclass(frozen=True)
class VerifierStack:
    """The verifier's own libraries and device.

    `replayer` builds a trainer from a recipe; `graph_replayer` replays from a step graph; `recipe_graph` captures the
    step of a recipe anew and returns its root; `train_bpe` trains a tokenizer anew; `read_encoder` reads one that was
    made elsewhere. An audit that needs one of them and has `None` leaves that check open. `corpus` is the
    verifier's own copy of the shards that a run was trained on, if there is one; `origin` are the weights that it is to
    begin with, by their names and with their digest. `made_again` compares rows with the conversations of a corpus.
    """

    environment: Environment
    replayer: Callable[[Spec, Dataset, BatchPlan], Replayer]
    graph_replayer: Callable[[Spec, StepProgram], Replayer] | None = None
    recipe_graph: Callable[[Spec], Digest] | None = None
    train_bpe: Callable[[str, int], Tokenizer] | None = None
    read_encoder: ReadEncoder | None = None
    corpus: Path | None = None
    origin: Origin | None = None
    made_again: Callable[[CommittedRows, Sequence[int]], None] | None = None
