"""Upper limits on the work and memory of a receipt in addition to the one pass, from its counts alone.

An *operation* is one access to one number, about a nanosecond of one core. The counts are those of the most expensive
answer, because the maker of a receipt chooses its tokens. `benchmarks/sampler_verify.py` measures against them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from tallystick.tolerances.fingerprints.logits import ENTRIES_MAX
from tallystick.transcripts.model_card import ModelCard
from tallystick.transcripts.receipt import Fingerprint, Receipt

FLOAT_BYTES: Final = 4
GREEDY: Final = 8
"""Operations per logit of a row whose largest logit is chosen."""
DRAWN: Final[Mapping[str, int]] = {"gumbel": 400, "cdf": 200, "unknown": 200}
"""Operations per logit of a row whose token fails the fast path: noise, sorting, weights."""
LIKELIHOODS: Final = 200
"""Operations per logit for probabilities, in addition to margins."""
ADJUSTED: Final = 12
"""Operations per logit of a row that penalties, biases and masks change first."""
REMEMBERED: Final = 4
"""Operations per token of a history, for the repetition penalty."""
SORTED: Final = 64
"""Operations per number of a block that is sorted."""
SIGNS: Final = 16
"""Operations per random sign."""
AT_ONCE: Final = 4
"""Multiplications of a matrix product in the time of one operation."""


def operations(receipt: Receipt, card: ModelCard) -> int:
    """The operations for the tokens and the fingerprints of a receipt, in addition to the pass."""
    rows, prompt, sampler = receipt.answer.tokens.count, receipt.request.prompt.count, receipt.sampler
    per_logit = GREEDY if sampler.is_greedy else DRAWN[sampler.form] + LIKELIHOODS
    total = rows * card.vocabulary * per_logit
    if sampler.repetition_penalty != 1.0:
        total += rows * (prompt + rows) * REMEMBERED
    if sampler.adjustments:
        total += rows * (ADJUSTED * card.vocabulary + rows * REMEMBERED)
    return total + sum(_summary(each, card) for each in receipt.fingerprints)


def memory(receipt: Receipt, card: ModelCard, layers: Collection[int]) -> int:
    """The bytes of the answer's logits and of the hidden states of `layers`.

    A layer is held for all tokens that are fed, whichever rows are compared.
    """
    rows, prompt = receipt.answer.tokens.count, receipt.request.prompt.count
    copies = 2 if receipt.sampler.adjustments else 1
    return FLOAT_BYTES * (copies * rows * card.vocabulary + len(layers) * (prompt + rows) * card.width)


def _summary(fingerprint: Fingerprint, card: ModelCard) -> int:
    """Operations of one fingerprint: the product with signs; or, for TOPLOC, sorting and one polynomial per block."""
    rows, numbers, width = fingerprint.tokens, fingerprint.width, max(card.width, ENTRIES_MAX)
    if fingerprint.method == "projection":
        layer = rows * width * (1 + numbers // AT_ONCE) + SIGNS * numbers * (rows + width)
    else:
        layer = SORTED * rows * width + AT_ONCE * numbers * numbers * -(-rows // fingerprint.block)
    return layer * len(fingerprint.layers)
