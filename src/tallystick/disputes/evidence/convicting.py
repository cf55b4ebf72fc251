"""Evidence in the prover's opening of the last operator that convicts at once, by a check of the coordinator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

import numpy as np

from tallystick.core.digests import prove_inclusion
from tallystick.core.errors import ProofError, RuleError
from tallystick.core.tensors import Tensor
from tallystick.disputes.evidence.view import view_of
from tallystick.disputes.game.game import CAST, PRODUCT, convict
from tallystick.disputes.game.moves import Evidence, RecordForm, TensorForm, ValueWriter
from tallystick.disputes.game.protocols import DisputeView
from tallystick.disputes.game.state import Dispute
from tallystick.formats.records import OperatorRecord
from tallystick.verdicts.leaf.bundling import WholeOpening

# Only evidence that a coordinator checks itself counts (`cheap`): a value that is read with other bytes than were
# given, a wrong conversion, or a wrong product, of small tensors. Every candidate is checked before it is sent. Most
# faults leave no such evidence, and need a ruling.

GROUNDS: Final[dict[str, Literal["cast", "product"]]] = {CAST: "cast", PRODUCT: "product"}
FORMS: Final = frozenset({"F32", "F64"})
BYTES_MAX, SIDES_MAX, INPUTS_MAX, OUTPUTS_MAX = 4096, 8, 16, 4
ELEMENTS_TRIED: Final = 8


def find_evidence(answered: DisputeView) -> Evidence | None:
    """Evidence about the opened operator that a coordinator accepts; `None` if there is none."""
    dispute = answered.dispute
    if dispute.level != 1 or dispute.ground != "leaf":
        return None
    try:
        view = view_of(answered)
        bundle = view.bundle(dispute.low)
    except ProofError:
        return None  # files that cannot be read need a ruling
    record = bundle.operator.record
    candidates = (*_edges(view.whole, dispute.low, record), *_values(record, bundle.values))
    return next((each for each in candidates if _convicts(dispute, each)), None)


def _edges(whole: WholeOpening, place: int, record: OperatorRecord) -> Iterator[Evidence]:
    """Evidence about operators that gave a value to this one: with other bytes, or later in the order."""
    for index, line in enumerate(whole.lines):
        writer = OperatorRecord.from_bytes(line, f"operator {index}")
        shared = writer.outputs.keys() & record.inputs.keys()
        is_small = _fits(writer) and _fits(record)
        if is_small and any(writer.outputs[ref] != record.inputs[ref] or index >= place for ref in shared):
            proof = tuple(each.hex() for each in prove_inclusion(whole.leaves, index, len(whole.lines)))
            written = ValueWriter(record=_form(writer), index=index, proof=proof)
            yield Evidence(ground="edge", record=_form(record), writer=written)


def _values(record: OperatorRecord, values: Mapping[str, Tensor]) -> Iterator[Evidence]:
    """Evidence about the elements of a conversion or product that are furthest from the exact values."""
    refs = (*sorted(record.inputs), *sorted(record.outputs))
    if record.operator not in GROUNDS or not all(_is_small(values.get(ref)) for ref in refs):
        return
    tensors = [values[ref] for ref in refs]
    forms = tuple(
        TensorForm.model_validate({"dtype": each.dtype, "shape": each.shape, "data": bytes(each.data).hex()})
        for each in tensors
    )
    for element in _furthest(tensors):
        yield Evidence(ground=GROUNDS[record.operator], record=_form(record), tensors=forms, element=element)


def _furthest(tensors: list[Tensor]) -> list[int]:
    """Flat places in the last tensor, those furthest from the product of the other tensors first."""
    *sources, result = (np.asarray(each.values(), np.float64) for each in tensors)
    with np.errstate(all="ignore"):
        exact = np.broadcast_to(np.prod(np.broadcast_arrays(*sources), axis=0), result.shape)
        off = np.nan_to_num(np.abs(exact - result) / np.abs(result), nan=-1.0)
    return [int(each) for each in np.argsort(-off, axis=None, kind="stable")[:ELEMENTS_TRIED]]


def _is_small(tensor: Tensor | None) -> bool:
    return (
        tensor is not None and tensor.dtype in FORMS and tensor.nbytes <= BYTES_MAX and len(tensor.shape) <= SIDES_MAX
    )


def _fits(record: OperatorRecord) -> bool:
    return len(record.inputs) <= INPUTS_MAX and len(record.outputs) <= OUTPUTS_MAX


def _form(record: OperatorRecord) -> RecordForm:
    inputs, outputs = (tuple(sorted(each.items())) for each in (record.inputs, record.outputs))
    return RecordForm(node=record.node, operator=record.operator, inputs=inputs, outputs=outputs)


def _convicts(dispute: Dispute, evidence: Evidence) -> bool:
    try:
        convict(dispute, evidence)
    except RuleError:
        return False
    return True
