"""How often a committee rules wrongly."""

from __future__ import annotations

import math
from functools import lru_cache

from tallystick.disputes.economics.workload import Economy
from tallystick.disputes.game.rules import Rules


def sizes(rules: Rules, pool: int = 0) -> tuple[int, ...]:
    """The seats of the first committee and of each appeal's: m, 2m + 1, 4m + 3, … as far as the pool has members.

    The first committee is cut to the largest odd number that there are; empty for a pool of no use.
    """
    largest = min(rules.committee, pool or rules.committee)
    first = largest if largest % 2 else largest - 1
    wanted = ((first + 1) * 2**appeal - 1 for appeal in range(rules.appeals + 1))
    return tuple(seats for seats in wanted if 0 < seats <= (pool or seats))


@lru_cache(maxsize=1 << 14)
def wrong_majority(seats: int, honesty: float, pool: int = 0) -> float:
    """P(at least half of the seats are not honest).

    Binomial for a large pool, `pool` = 0: Σ_{i ≥ m/2} C(m, i) (1 − h)^i h^(m − i). Hypergeometric for a finite one,
    from which at least so many members are drawn without repetition; a broken number of honest ones is rounded down.
    At even sizes a tie counts as wrong. That half is what it takes to find wrongly, and also to block any finding.
    """
    if pool:
        return _hypergeometric(seats, math.floor(honesty * pool + 1e-9), pool)
    terms = (
        math.comb(seats, i) * (1 - honesty) ** i * honesty ** (seats - i) for i in range(-(-seats // 2), seats + 1)
    )
    return min(1.0, math.fsum(terms))


def wrong_rounds(economy: Economy) -> tuple[float, ...]:
    """How often each round alone rules wrongly; a pool without members always does."""
    work = economy.workload
    return tuple(wrong_majority(each, work.honesty, work.pool) for each in sizes(economy.rules, work.pool)) or (1.0,)


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
