"""A claim about recorded calls of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from tallystick.audits.inference import Calls
from tallystick.commitments.digests import Digest
from tallystick.disputes.evidence.calls import doubt_calls, require_disputable, unseen_in_calls
from tallystick.disputes.evidence.claim_statement import Levels, OpenQuestion, Recomputation
from tallystick.disputes.evidence.gathering import gather_whole
from tallystick.disputes.evidence.opened_call import check_call
from tallystick.disputes.evidence.rulings import Ruled
from tallystick.disputes.evidence.traces import (
    CallSource,
    RecordTrace,
    records_of,
    require_within_bounds,
    torch_engine,
)
from tallystick.disputes.evidence.view import OpeningView, supplied
from tallystick.disputes.game.protocols import Doubt
from tallystick.graphs.engine import Engine
from tallystick.judging.fault import Fault
from tallystick.store.inference import InferenceDirectory
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.claim import Log


@dataclass
class CallsStatement:
    """Recorded calls of a model; implements `ClaimStatement`."""

    run: InferenceDirectory
    is_whole: bool = field(default=False, init=False)
    levels: ClassVar[Levels] = 2
    questions_of_records: ClassVar[tuple[OpenQuestion, ...]] = ()

    @property
    def tree(self) -> Log:
        """See `ClaimStatement`."""
        return self.run.claim().transcript

    @cached_property
    def calls(self) -> Calls:
        """The calls of the directory, with every digest rechecked; raises `ProofError`."""
        return gather_whole(self.run)

    @cached_property
    def weights(self) -> Mapping[str, tuple[Tensor, Digest]]:
        """The claimed weights by name, each with its digest: views of the file, which nobody changes.

        Raises `UnavailableError` without a file, `ProofError` for other weights.
        """
        tensors, digests = self.calls.digested_weights(mapped=True)
        return {name: (tensors[name], each.digest) for name, each in digests.entries}

    @property
    def known(self) -> Mapping[Digest, Tensor]:
        """See `ClaimStatement`."""
        return {name: tensor for tensor, name in self.weights.values()}

    def require_whole(self) -> None:
        """See `ClaimStatement`; reads weights, inputs and outputs too."""
        if self.is_whole:
            return
        with supplied():
            assert self.weights is not None  # reading raises
            for record in self.calls.records:
                self.calls.inputs(record)
                self.calls.outputs(record)
        self.is_whole = True

    def require_disputable(self) -> None:
        """See `ClaimStatement`; the graph has to accept every call."""
        require_disputable(self.calls)

    def trace(self, work: Path, engine: Engine | None = None, device: str = "cpu") -> RecordTrace:
        """See `ClaimStatement`."""
        own = engine or torch_engine(device)
        require_within_bounds(own.name)
        return RecordTrace(records_of(self.run), work, own, CallSource(lambda: self.calls))

    def check(self, view: OpeningView) -> tuple[OpenQuestion, ...]:
        """See `ClaimStatement`; no question stays open."""
        check_call(self.calls, view)
        return ()

    def doubt(self, own: Recomputation) -> Doubt | None:
        """See `ClaimStatement`."""
        self.require_whole()
        weights = {name: tensor for name, (tensor, _) in self.weights.items()}
        return doubt_calls(self.calls, own.engine, own.work, weights)

    def unseen(self, own: Recomputation) -> tuple[str, ...]:
        """See `ClaimStatement`."""
        weights = {name: tensor for name, (tensor, _) in self.weights.items()}
        return (*own.work.remarks, *unseen_in_calls(self.calls, own.engine, weights))

    def rule_record(self, line: bytes, device: str | None) -> Ruled:
        """See `ClaimStatement`."""
        return Fault.PROVER, "a call has operators, and the prover did not open them"
