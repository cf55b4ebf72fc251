"""What a verifier takes steps again with: its environment, and how it builds replayers on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.commitments.digests import Digest
    from tallystick.datasets.order import BatchPlan
    from tallystick.datasets.samples import Dataset
    from tallystick.datasets.tokenizer import Tokenizer
    from tallystick.transcripts.environment import Environment
    from tallystick.transcripts.spec import Spec
    from tallystick.workloads.program import StepProgram
    from tallystick.workloads.replayer import Replayer


@dataclass(frozen=True)
class VerifierStack:
    """The verifier's own libraries and device.

    `replayer` builds a trainer from a recipe; `graph_replayer` replays from a step graph; `recipe_graph` captures the
    step of a recipe anew and gives its root; `train_bpe` trains a tokenizer anew. An audit that asks for one of the
    last three and finds `None` leaves that check open.
    """

    environment: Environment
    replayer: Callable[[Spec, Dataset, BatchPlan], Replayer]
    graph_replayer: Callable[[Spec, StepProgram], Replayer] | None = None
    recipe_graph: Callable[[Spec], Digest] | None = None
    train_bpe: Callable[[str, int], Tokenizer] | None = None
