"""What one simulated world is like: rules, windows and the kinds of people in it, all drawn from one generator."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from tallystick.disputes.game.state import Rules

TREASURY: Final = 0
REFEREE, BEACON, PLANTER, GUARDIAN, KEEPER = range(1, 6)
RANDOM_MOVERS: Final = (6, 7)
MEMBERS: Final = range(10, 25)
PROVERS: Final = range(100, 200)
CHALLENGERS: Final = range(200, 400)


def party(number: int) -> str:
    """The name of a party."""
    return f"{number:064x}"


@dataclass(frozen=True)
class Delays:
    """Seconds that things take: how soon people act, and on a chain blocks, finality and the worst of censorship."""

    patience: int
    block: int = 0
    depth: int = 0
    censored: int = 0

    @property
    def is_chain(self) -> bool:
        """Whether moves wait for blocks and can be undone."""
        return self.block > 0

    @property
    def finality(self) -> int:
        """Until a block can no longer be undone."""
        return self.block * self.depth

    @property
    def answer(self) -> int:
        """From a turn's beginning until an honest answer stands for good, at worst.

        Seen when final, thought about, censored, put off by two blocks, undone by reorganisations, and final again.
        """
        if not self.is_chain:
            return 2 * self.patience + 2
        return 2 * self.patience + 4 * self.finality + self.censored + 8 * self.block


def draw_delays(chance: Random) -> Delays:
    """A local coordinator, or a chain."""
    patience = chance.choice((0, 3, 20))
    if chance.random() < 0.45:
        return Delays(patience)
    block, depth = chance.choice(((12, 7), (2, 12), (12, 2), (1, 64), (12, 64), (5, 1)))
    return Delays(patience, block, depth, censored=chance.choice((0, 0, 10 * block, 40 * block)))


def draw_rules(chance: Random, delays: Delays) -> Rules:
    """Rules whose windows are long enough for honest parties, by a factor that is small more often than not."""

    def window() -> int:
        return delays.answer * chance.choice((1, 1, 2, 3, 9)) + chance.randint(1, 30)

    members = chance.choice((0, 1, 2, 3, 5, 7, 9, 15))
    fee = chance.choice((0, 1, 7, 2_000))
    return Rules(
        prover_bond=chance.choice((10, 999, 1_000_000)) + 15 * fee,
        challenger_bond=chance.choice((0, 1, 150_000)),
        appeal_bond=chance.choice((0, 3, 100_000)),
        stake=fee * chance.choice((1, 2, 50)) + chance.choice((0, 1)),
        vote_fee=fee,
        reward=chance.choice((0, 1, 333, 500, 1000)),
        challenge_window=3 * window(),
        clock=window(),
        extension=window(),
        referee_window=window(),
        vote_window=window(),
        reveal_window=window(),
        appeal_window=window(),
        withdrawal_delay=8 * delays.answer + window(),
        pause_max=window(),
        pause_rest=window(),
        ways=chance.choice((2, 2, 3, 4, 5, 8, 16, 32)),
        committee=chance.choice((1, 2, 3, 3, 5, 7)),
        appeals=chance.choice((0, 1, 1, 2, 2)),
        members=tuple(party(number) for number in MEMBERS[:members]),
        referee=party(REFEREE) if chance.random() < 0.5 else None,
        beacon=party(BEACON) if chance.random() < 0.6 else None,
        planter=party(PLANTER) if chance.random() < 0.7 else None,
        guardian=party(GUARDIAN) if chance.random() < 0.5 else None,
        treasury=party(TREASURY),
    )
