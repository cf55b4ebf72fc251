"""How long a dispute can take at most: the sum of all clocks and windows, so that none lives for ever."""

from __future__ import annotations

from tallystick.disputes.game.state import LEAVES_MAX, Rules, rounds


def bisection_moves(rules: Rules, sizes: tuple[int, ...]) -> int:
    """The most moves of a bisection through trees of these sizes, the claim's first: cut and choice, then the leaf."""
    return sum(2 * rounds(size, rules.ways) + 1 for size in sizes)


def longest(rules: Rules, sizes: tuple[int, ...] = (LEAVES_MAX, LEAVES_MAX), care: int = 0) -> int:
    """The most seconds of game time from contest to settlement.

    Args:
        rules: clocks and windows.
        sizes: of the trees that are cut, the claim's first.
        care: seconds until somebody makes a move that is due and that anybody may make.
    """
    bisecting = 2 * rules.clock + bisection_moves(rules, sizes) * rules.extension + care
    committee = 2 * rules.vote_window + rules.reveal_window + rules.appeal_window + 4 * care
    return bisecting + rules.referee_window + care + (rules.appeals + 1) * committee + care
