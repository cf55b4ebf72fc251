"""How often a committee rules wrongly."""

from __future__ import annotations

import math
from functools import lru_cache

from tallystick.disputes.economics.workload import Economy
from tallystick.disputes.game.rules import Rules


def sizes(rules: Rules, pool: int = 0) -> tuple[int, ...]:
    """The sizes of the first committee and of each appeal's: m, 2m + 1, 4m + 3, … while the pool has enough members.

    The first committee has at most the largest odd number of members in the pool. The result is empty if there are
    none. `pool` = 0 is a pool without limit.
    """
    largest = min(rules.committee, pool or rules.committee)
    first = largest if largest % 2 else largest - 1
    wanted = ((first + 1) * 2**appeal - 1 for appeal in range(rules.appeals + 1))
    return tuple(seats for seats in wanted if 0 < seats <= (pool or seats))


@lru_cache(maxsize=1 << 14)
def wrong_majority(seats: int, honesty: float, pool: int = 0) -> float:
    """P(at least half of the seats are not honest).

    Binomial for a large pool, `pool` = 0: Σ_{i ≥ m/2} C(m, i) (1 − h)^i h^(m − i). Hypergeometric for a finite pool,
    which has at least `seats` members and is drawn from without repetition; the number of honest members is rounded
    down. A tie counts as wrong, because half of the votes can block any finding.
    """
    if pool:
        return _hypergeometric(seats, math.floor(honesty * pool + 1e-9), pool)
    terms = (
        math.comb(seats, i) * (1 - honesty) ** i * honesty ** (seats - i) for i in range(-(-seats // 2), seats + 1)
    )
    return min(1.0, math.fsum(terms))


def wrong_rounds(economy: Economy) -> tuple[float, ...]:
    """The probability that each round alone rules wrongly; 1 for a pool without members."""
    work = economy.workload
    return tuple(wrong_majority(each, work.honesty, work.pool) for each in sizes(economy.rules, work.pool)) or (1.0,)


def wrong(economy: Economy) -> float:
    """The probability that a dispute ends wrongly if each side appeals when it loses: the last round decides alone."""
    return (1 - economy.workload.certain) * wrong_rounds(economy)[-1]


def wrong_if_the_honest_cannot_appeal(rounds: tuple[float, ...]) -> float:
    """1 − Π (1 − w_k), the probability that some round errs: the other side appeals until one does."""
    return 1 - math.prod(1 - each for each in rounds)


def wrong_if_only_the_honest_appeal(rounds: tuple[float, ...]) -> float:
    """Π w_k, the probability that all rounds err."""
    return math.prod(rounds)


def _hypergeometric(seats: int, honest: int, pool: int) -> float:
    corrupt = pool - honest
    ways = (math.comb(corrupt, i) * math.comb(honest, seats - i) for i in range(-(-seats // 2), seats + 1))
    return sum(ways) / math.comb(pool, seats)
