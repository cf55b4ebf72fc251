"""Checks an opening against the published claim, and for a training against its spec.

An opening names a claim by its digest and contains a transcript. Only the claim itself shows whether this transcript,
and the graph of the opened operators, are the claimed ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from tallystick.core.digests import Digest
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor
from tallystick.formats.claims import Claim, InferenceClaim
from tallystick.formats.data.step_program import schedule_tensors
from tallystick.formats.openings import Opening, state_digest_of
from tallystick.formats.optimizers import GroupRule, rule_of_recipe
from tallystick.formats.records import CallRecord, StepRecord
from tallystick.formats.spec import Spec
from tallystick.programs.step_names import STEP_SLOT
from tallystick.verdicts.exact import LossBand
from tallystick.verdicts.verdict import AGREES, DIFFERS, Findings, require

LOSS = "loss"
SCHEDULE = "schedule."
WEIGHTS = ("weights.", "buffers.")
RATE_TOLERANCE = 1e-12
Read = Callable[[Mapping[str, Digest]], Mapping[str, Tensor]]
"""Returns those of the named values that are opened."""


@dataclass(frozen=True)
class Published:
    """A published claim, and for a training the spec that it names."""

    claim: Claim | InferenceClaim
    spec: Spec | None = None

    def check(self, notes: Findings, opening: Opening) -> None:
        """Note whether the opening belongs to this claim: digest, transcript, graph and model."""
        with notes.check("claim"):
            require(opening.claim == self.claim.identity, f"the opening belongs to the claim {opening.claim}")
            require(opening.transcript == self.claim.transcript, "the opening brings another transcript than the claim")
        if isinstance(self.claim, InferenceClaim):
            with notes.check("model"):
                require(self.claim.graph == opening.graph, f"the operators are those of {opening.graph}, another graph")
                weights = {name: named for name, named in opening.sources.items() if name.startswith(WEIGHTS)}
                is_same = state_digest_of(weights | opening.rest_before) == self.claim.weights
                require(is_same, "the operators read other weights")
        elif self.spec is not None:
            with notes.check("graph of the spec"):
                require(self.spec.identity == self.claim.spec, "this is not the spec that the claim names")
                record = opening.opened_record()  # which may name a graph of its own
                named = (record.graph if isinstance(record, StepRecord) else None) or self.spec.graph
                require(named == opening.graph, f"the operators are those of {opening.graph}, another graph")

    def check_step(self, notes: Findings, opening: Opening, record: StepRecord | CallRecord, read: Read) -> None:
        """Note whether loss and learning rates in the record are those of the step, as far as they are opened."""
        if self.spec is None or not isinstance(record, StepRecord):
            return
        loss = read({LOSS: opening.results[LOSS]} if LOSS in opening.results else {}).get(LOSS)
        if loss is not None:
            self._check_loss(notes, record, loss)
        self._check_rates(notes, opening, record, read)

    def _check_loss(self, notes: Findings, record: StepRecord, loss: Tensor) -> None:
        assert self.spec is not None  # `check_step` returns early without a spec
        where = f"step {record.index}"
        if loss.shape != ():
            notes.note(DIFFERS, LOSS, where, f"the loss is no number: a tensor of shape {list(loss.shape)}")
            return
        band = LossBand(self.spec.recorded.loss_decimals)
        notes.note(band.compare(record.loss, float(loss.values())), LOSS, where)

    def _check_rates(self, notes: Findings, opening: Opening, record: StepRecord, read: Read) -> None:
        stated = {name: named for name, named in opening.sources.items() if name.startswith(SCHEDULE)}
        rules = record.optimizer or self._rules()
        rates = record.learning_rates or (record.learning_rate,) * len(rules)
        wanted = schedule_tensors(rules, rates, _step_number(opening, record, read))
        opened = read(stated)
        for name in sorted(stated):
            agrees = name in wanted and _is_same(wanted[name], stated[name], opened.get(name))
            recorded = ", ".join(f"{rate:.6g}" for rate in rates)
            read_is, should_be = (_number(values.get(name)) for values in (opened, wanted))
            detail = (
                "" if agrees else f"{read_is} is read; at the recorded learning rate ({recorded}) it is {should_be}"
            )
            notes.note(replace(AGREES if agrees else DIFFERS, detail=detail), "learning rate", name)

    def _rules(self) -> tuple[GroupRule, ...]:
        assert self.spec is not None  # `check_step` returns early without a spec
        if self.spec.recipe is not None:
            return (rule_of_recipe(self.spec.recipe.optimizer),)
        return self.spec.optimizer or ()

    def not_checked(
        self, opening: Opening, record: StepRecord | CallRecord, is_opened: Callable[[Digest], bool]
    ) -> Iterator[str]:
        """What cannot be checked even with the claim, one line each."""
        if isinstance(record, CallRecord):
            return
        if self.spec is None:
            yield "whether the graph is the claimed one, and loss and learning rate those of the record: give the spec"
            return
        if record.graph is not None:
            yield "whether the graph of this step updates the weights as that of the spec does: audit the run"
        if not is_opened(opening.results.get(LOSS, opening.graph)):
            yield "whether the loss is that of the record: its value is not opened"


def _number(scalar: Tensor | None) -> str:
    return f"{float(scalar.values()):.6g}" if scalar is not None and scalar.shape == () else "no number"


def _is_same(wanted: Tensor, stated: Digest, opened: Tensor | None) -> bool:
    """Whether bytes are equal, or numbers nearly equal, because C libraries round powers differently."""
    if tensor_digest(wanted) == stated:
        return True
    if opened is None or (opened.dtype, opened.shape) != (wanted.dtype, wanted.shape):
        return False
    return math.isclose(float(opened.values()), float(wanted.values()), rel_tol=RATE_TOLERANCE, abs_tol=0.0)


def _step_number(opening: Opening, record: StepRecord, read: Read) -> int:
    """The step by the optimizer's own count, which may include steps from before the run."""
    names = {n: d for n, d in opening.sources.items() if n.startswith("optimizer.") and n.endswith(STEP_SLOT)}
    counts = {float(tensor.values()) for tensor in read(names).values() if tensor.shape == ()}
    finite = [count for count in counts if math.isfinite(count) and count >= 0]
    return int(max(finite)) + 1 if finite else record.index
