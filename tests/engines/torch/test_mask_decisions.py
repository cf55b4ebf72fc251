"""A decision about a mask is repeated in the export, unless positions decided that are made of those of the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tallystick.engines.torch.capture.export import MaskDecisions

masking = pytest.importorskip("transformers.masking_utils")
ROW = torch.arange(4)[None]


def skips(mask: torch.Tensor | None) -> bool:
    return bool(masking._ignore_causal_mask_sdpa(mask, 4, 4, 0, 0))


def test_a_mask_that_was_left_out_is_left_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = MaskDecisions({"input_ids": ROW})
    with decisions.noted():
        assert masking.find_packed_sequence_indices(ROW) is None
        assert skips(None)
    monkeypatch.setattr(masking, "is_torchdynamo_exporting", lambda: True)
    monkeypatch.setattr(masking, "is_tracing", lambda *_: True)
    assert not skips(None)
    with decisions.repeated():
        assert masking.find_packed_sequence_indices(ROW) is None
        assert skips(None)
        assert not skips(None)  # a call more than was noted decides anew
    assert masking.find_packed_sequence_indices(ROW) is not None


def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "is_torchdynamo_exporting", lambda: True)
    monkeypatch.setattr(masking, "is_tracing", lambda *_: True)


@pytest.mark.parametrize(
    ("batch", "is_repeated"),
    [({"position_ids": ROW}, True), ({"position_ids": ROW + 3}, False), ({"attention_mask": ROW}, True)],
    ids=["positions", "positions-made-of-others", "padding"],
)
def test_a_decision_about_the_batch_is_repeated_and_one_about_what_is_made_of_it_is_not(
    batch: dict[str, Any], is_repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions, mask = MaskDecisions(batch), torch.ones(1, 4, dtype=torch.bool)
    with decisions.noted():
        masking.find_packed_sequence_indices(ROW)
        assert skips(mask)
    asked = [ROW, mask] if batch.get("position_ids") is ROW else [mask]
    assert len(decisions.masks) == len(asked)
    assert all(found is wanted for found, wanted in zip(decisions.masks, asked, strict=True))
    traced(monkeypatch)
    with decisions.repeated():
        assert (masking.find_packed_sequence_indices(ROW) is None) == is_repeated
        assert skips(mask)


def test_several_texts_in_a_row_have_a_mask_in_the_export_too(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = torch.tensor([[0, 1, 0, 1]])
    decisions = MaskDecisions({"position_ids": packed})
    with decisions.noted():
        assert masking.find_packed_sequence_indices(packed) is not None
    traced(monkeypatch)
    with decisions.repeated():
        assert masking.find_packed_sequence_indices(packed).tolist() == [[0, 0, 1, 1]]


def test_nothing_is_left_replaced_after_an_error() -> None:
    before = masking.find_packed_sequence_indices
    with pytest.raises(ValueError, match="stop"), MaskDecisions({}).noted():
        raise ValueError("stop")
    assert masking.find_packed_sequence_indices is before
