"""Whether opened operators are those of a recorded call.

Graph, weights and inputs have to be exact. Outputs may differ as far as honest kernels do.
"""

from __future__ import annotations

from typing import Final

from tallystick.audits.inference import Calls
from tallystick.disputes.evidence.drift import Leeway, deviation
from tallystick.disputes.evidence.view import OpeningView, require_claim
from tallystick.errors import ProofError
from tallystick.judging.findings import require
from tallystick.transcripts.opening import state_digest_of
from tallystick.transcripts.record import CallRecord
from tallystick.workloads.names import BATCH

WEIGHTS: Final = ("weights.", "buffers.")


def check_call(calls: Calls, view: OpeningView) -> None:
    """Raise `ProofError` unless the opened operators are those of a claimed call."""
    opening, claim = view.opening, calls.claim
    record = opening.opened_record()
    if not isinstance(record, CallRecord):
        raise ProofError("the opened record is no call")
    require_claim(opening, claim, claim.graph)
    weights = {name: found for name, found in opening.sources.items() if name.startswith(WEIGHTS)}
    require(state_digest_of(weights | opening.rest_before) == claim.weights, "the operators read other weights")
    given = {name.removeprefix(BATCH): found for name, found in opening.sources.items() if name.startswith(BATCH)}
    require(state_digest_of(given) == record.inputs, f"the operators read other inputs than call {record.index}")
    if state_digest_of(opening.results) != record.outputs:
        _check_outputs(calls, view, record)


def _check_outputs(calls: Calls, view: OpeningView, record: CallRecord) -> None:
    """Compare outputs with other bits than the recorded ones: another kernel is allowed, another model is not."""
    recorded = calls.outputs(record)
    require(recorded.keys() == view.opening.results.keys(), "the operators give other outputs than were recorded")
    leeway = Leeway.of(view.graph.nodes, view.cuts.specs)
    given = {output.name: output.value for output in view.graph.outputs}
    for name, opened in view.results(recorded).items():
        far = deviation(recorded[name], opened, leeway, given[name])
        require(far <= 1.0, f"{name} of call {record.index} lies {far:.3g} tolerances from the recorded one")
