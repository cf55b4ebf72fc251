"""What a verifier takes steps again with: its environment, and how it builds replayers on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tallystick.commitments.digests import Digest
    from tallystick.datasets.encoding import ReadEncoder
    from tallystick.datasets.order import BatchPlan
    from tallystick.datasets.rows import CommittedRows
    from tallystick.datasets.samples import Dataset
    from tallystick.datasets.tokenizer import Tokenizer
    from tallystick.transcripts.environment import Environment
    from tallystick.transcripts.spec import Spec
    from tallystick.workloads.origin import Origin
    from tallystick.workloads.program import StepProgram
    from tallystick.workloads.replayer import Replayer


@dataclass(frozen=True)
class VerifierStack:
    """The verifier's own libraries and device.

    `replayer` builds a trainer from a recipe; `graph_replayer` replays from a step graph; `recipe_graph` captures the
    step of a recipe anew and gives its root; `train_bpe` trains a tokenizer anew; `read_encoder` reads one that was
    made elsewhere. An audit that asks for one of them and finds `None` leaves that check open. `corpus` is the
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
