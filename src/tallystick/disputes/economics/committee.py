"""How often a committee rules wrongly."""

from __future__ import annotations

import math
from functools import lru_cache

from tallystick.disputes.economics.workload import Economy
from tallystick.disputes.rules import Rules


def sizes(rules: Rules) -> tuple[int, ...]:
    """The seats of the first committee and of each appeal's: m, 2m + 1, 4m + 3, …"""
    return tuple((rules.committee + 1) * 2**appeal - 1 for appeal in range(rules.appeals + 1))


@lru_cache(maxsize=1 << 14)
def wrong_majority(seats: int, honesty: float, pool: int = 0) -> float:
    """P(at least half of the seats are not honest).

    Binomial for a large pool, `pool` = 0: Σ_{i ≥ m/2} C(m, i) (1 − h)^i h^(m − i). Hypergeometric for a finite one,
    from which members are drawn without repetition; a broken number of honest members is rounded down, and who does
    not fit into the pool is not drawn. At even sizes a tie counts as wrong.
    """
    if pool:
        return _hypergeometric(min(seats, pool), math.floor(honesty * pool + 1e-9), pool)
    terms = (math.comb(seats, i) * (1 - honesty) ** i * honesty ** (seats - i) for i in range(-(-seats // 2), seats + 1))
    return min(1.0, math.fsum(terms))


def wrong_rounds(economy: Economy) -> tuple[float, ...]:
    """How often each round alone rules wrongly."""
    work = economy.workload
    return tuple(wrong_majority(seats, work.honesty, work.pool) for seats in sizes(economy.rules))


def wrong(economy: Economy) -> float:
    """How often a dispute ends wrongly where each side appeals when it loses: the last round decides alone."""
    return (1 - economy.workload.certain) * wrong_rounds(economy)[-1]


def wrong_if_the_honest_cannot_appeal(rounds: tuple[float, ...]) -> float:
    """1 − Π (1 − w_k): the other side appeals until a round errs."""
    return 1 - math.prod(1 - each for each in rounds)


def wrong_if_only_the_honest_appeal(rounds: tuple[float, ...]) -> float:
    """Π w_k: all rounds err."""
    return math.prod(rounds)


def _hypergeometric(seats: int, honest: int, pool: int) -> float:
    corrupt = pool - honest
    ways = (math.comb(corrupt, i) * math.comb(honest, seats - i) for i in range(-(-seats // 2), seats + 1))
    return sum(ways) / math.comb(pool, seats)
