"""An answer in the making holds its own rows, and after it is handed over none."""

from __future__ import annotations

from typing import Any

import torch

from tallystick.formats.receipt import Sampler
from tallystick.recording.serving.jobs import FOLD, Job, JobResult, Slot

BATCH, WIDTH = 16, 8


def answered(language_model: Any, tokens: int) -> tuple[Slot, list[Any], list[torch.Tensor]]:
    """A slot after so many tokens of a batch, what was told, and the hidden states of every pass."""
    told: list[Any] = []
    slot = Slot(Job("r", (1, 2), 1000, Sampler(), told.append), language_model)
    passes = [torch.full((BATCH, 1, WIDTH), float(step)) for step in range(tokens)]
    slot.prompt_rows = {0: torch.ones(1, WIDTH)}
    for states in passes:
        slot.add(65, {0: states[3, -1]}, ("r",), states[3, -1])
    return slot, told, passes


def held_bytes(slot: Slot) -> int:
    """The bytes of all storages that the rows of a slot keep alive."""
    tensors = [each for rows in (*slot._folded, *slot._rows) for each in rows.values()]
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


def test_rows_keep_the_batch_alive_for_a_few_passes_only(language_model: Any) -> None:
    tokens = 8 * FOLD + 3
    slot, _, _ = answered(language_model, tokens)
    own = tokens * WIDTH * 4
    assert held_bytes(slot) <= own + FOLD * BATCH * WIDTH * 4 < own * BATCH / 2


def test_what_is_handed_over_is_whole_and_no_longer_held(language_model: Any) -> None:
    for tokens in (1, FOLD, 2 * FOLD + 5):
        slot, told, _ = answered(language_model, tokens)
        slot.hand_over()
        generated = told[-1]
        assert isinstance(generated, JobResult)
        assert generated.rows[0][:, 0].tolist() == [float(step) for step in range(tokens)]
        assert generated.prompt_rows[0].shape == (1, WIDTH)
        assert (held_bytes(slot), dict(slot.prompt_rows)) == (0, {})
