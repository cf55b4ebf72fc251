"""A provider of the tiny model with four customers, and a policy for short answers."""

from __future__ import annotations

from typing import Any

import pytest

TEXTS = ("stick", "halves", "split", "match")


@pytest.fixture(scope="session")
def scene(language_model: Any, one_thread: None) -> Any:
    """Honest answers of sixteen tokens, fingerprints of every eight in first block, final norm and logits."""
    from research.inference.forgeries import four_bits
    from tallystick.audits.answers.limits import SamplerRule
    from tallystick.audits.answers.policy import ReceiptPolicy
    from tallystick.formats.fingerprints import FingerprintSettings
    from tests.support.attacks.receipts.scene import Wishes, make_scene
    from tests.support.limits import rule_of

    policy = ReceiptPolicy(sampler=SamplerRule(dishonest=0.3, beta=0.05), fingerprints=rule_of(1e-4))
    final = language_model.card.layers
    prints = (FingerprintSettings(layers=(0, final, final + 1), block=8),)
    return make_scene(language_model, four_bits(language_model), Wishes(TEXTS, 16, "and so: ", prints), policy)
