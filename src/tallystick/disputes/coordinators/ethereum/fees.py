"""The offer of a transaction for its gas (EIP-1559), and how it is raised: pure arithmetic, in wei per gas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BASE_FEES_COVERED: Final = 2
"""A block's base fee grows by at most an eighth (EIP-1559), so twice the current fee is enough for five full blocks."""
RAISE_NUMERATOR: Final = 9
RAISE_DENOMINATOR: Final = 8
"""A replacement offers an eighth more in both numbers; nodes require at least a tenth more to replace the first."""
GWEI: Final = 10**9


@dataclass(frozen=True)
class GasOffer:
    """The maximum price of a unit of gas, and the tip in it for the block's proposer."""

    fee_max: int
    tip: int


@dataclass(frozen=True)
class FeeRules:
    """The limits of offers: at most `fee_max`, and a tip of at least `tip_min`."""

    fee_max: int = 500 * GWEI
    tip_min: int = 1


def first_offer(base_fee: int, tip_asked: int, rules: FeeRules) -> GasOffer:
    """An offer that the next blocks accept, if `fee_max` allows it."""
    tip = min(max(tip_asked, rules.tip_min), rules.fee_max)
    return GasOffer(min(BASE_FEES_COVERED * base_fee + tip, rules.fee_max), tip)


def raised(offer: GasOffer, base_fee: int, tip_asked: int, rules: FeeRules) -> GasOffer | None:
    """An offer that replaces `offer`; `None` if it would exceed `fee_max`."""
    market = first_offer(base_fee, tip_asked, rules)
    tip = max(_eighth_more(offer.tip), market.tip)
    higher = GasOffer(max(_eighth_more(offer.fee_max), market.fee_max, tip), tip)
    return higher if higher.fee_max <= rules.fee_max else None


def _eighth_more(amount: int) -> int:
    return -(-amount * RAISE_NUMERATOR // RAISE_DENOMINATOR)
