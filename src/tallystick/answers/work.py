"""Upper limits on the work and memory that a receipt takes besides the one pass, from its counts alone.

An *operation* is one look at one number, about a nanosecond of one core. Counts are upper limits: they are those of the
answer that costs most, since who makes a receipt chooses its tokens. What they are measured against:
`benchmarks/sampler_verify.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from tallystick.transcripts.model_card import ModelCard
from tallystick.transcripts.receipt import Fingerprint, Receipt
from tallystick.transcripts.sampler import Sampler

FLOAT_BYTES: Final = 4
GREEDY: Final = 8
"""Looks at each logit of a row, where the largest is chosen."""
DRAWN: Final[Mapping[str, int]] = {"gumbel": 400, "cdf": 200, "unknown": 200}
"""Looks at each logit of a row whose token is not plainly the choice: its noise, its order, its weights."""
LIKELIHOODS: Final = 200
"""Looks at each logit for probabilities besides margins."""
REMEMBERED: Final = 4
"""Looks at each token of a history, for the repetition penalty."""
SORTED: Final = 64
"""Looks at each number of a block that is ordered by size."""
SIGNS: Final = 16
"""Looks at each random sign."""
AT_ONCE: Final = 4
"""Products of a matrix that take the time of one look."""


def operations(receipt: Receipt, card: ModelCard) -> int:
    """What the tokens and the fingerprints of a receipt take, besides the pass."""
    rows, prompt = receipt.answer.tokens.count, receipt.request.prompt.count
    found = rows * card.vocabulary * _looks(receipt.sampler)
    if receipt.sampler.repetition_penalty != 1.0:
        found += rows * (prompt + rows) * REMEMBERED
    return found + sum(_summary(each, card.width) for each in receipt.fingerprints)


def memory(receipt: Receipt, card: ModelCard, layers: Collection[int]) -> int:
    """The bytes of the logits of the answer, and of the hidden states of `layers`.

    A layer is held for all that is fed, whichever rows are compared.
    """
    rows, prompt = receipt.answer.tokens.count, receipt.request.prompt.count
    return FLOAT_BYTES * (rows * card.vocabulary + len(layers) * (prompt + rows) * card.width)


def _looks(sampler: Sampler) -> int:
    return GREEDY if sampler.is_greedy else DRAWN[sampler.form] + LIKELIHOODS


def _summary(fingerprint: Fingerprint, width: int) -> int:
    """The rows under their signs; or the largest of each block, and a polynomial at each of them."""
    rows, numbers = fingerprint.tokens, fingerprint.width
    if fingerprint.method == "projection":
        layer = rows * width * (1 + numbers // AT_ONCE) + SIGNS * numbers * (rows + width)
    else:
        layer = SORTED * rows * width + AT_ONCE * numbers * numbers * -(-rows // fingerprint.block)
    return layer * len(fingerprint.layers)
