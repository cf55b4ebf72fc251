"""A claim as it was published: what the opened loss of a step has to be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor
from tallystick.formats.openings import Opening
from tallystick.formats.records import StepRecord
from tallystick.formats.spec import Spec
from tallystick.verdicts.opening.published import LOSS, Published
from tallystick.verdicts.verdict import Findings


def objections(loss: Tensor) -> list[str]:
    """What is objected to in a step that recorded a loss of 2.5 and opens `loss`."""
    spec = cast(Spec, SimpleNamespace(recorded=SimpleNamespace(loss_decimals=4), recipe=None, optimizer=None))
    opening: Any = SimpleNamespace(results={LOSS: tensor_digest(loss)}, sources={})
    record = StepRecord.model_construct(index=3, loss=2.5, learning_rate=0.1, learning_rates=None)
    notes = Findings()
    Published(cast(Any, None), spec).check_step(
        notes, cast(Opening, opening), record, lambda names: dict.fromkeys(names, loss)
    )
    return [finding.detail for finding in notes.seen if not finding.agrees]


def test_the_opened_loss_is_the_recorded_one() -> None:
    assert objections(Tensor.of(np.float32(2.5).reshape(()))) == []


@pytest.mark.parametrize("value", [2.51, np.inf, np.nan])
def test_another_loss_is_objected_to(value: float) -> None:
    assert len(objections(Tensor.of(np.asarray(value, np.float32)))) == 1


@pytest.mark.parametrize("shape", [(1,), (2,), (0,), (1, 1)])
def test_a_loss_that_is_no_number_is_objected_to_and_crashes_nobody(shape: tuple[int, ...]) -> None:
    assert "no number" in objections(Tensor.of(np.full(shape, 2.5, np.float32)))[0]
