"""Rounds and bytes of a dispute against the size of the graph and the number of children of a partition.

One record of a run of 1,024 is contested, and one of the V operators below it is wrong; the script plays the moves of
both parties through the game, each checked by its rules, with the fault at places drawn at random. A round is a
partition and a choice. The moves are those from the contest to the reveal; the ruling comes on top. Beside the bytes
of the moves as documents stand the bytes of the same moves as calls of the contract, a board's attestation included.
In brackets stand the least and the most over the places; these are counts, and the same on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from statistics import mean

from benchmarks.dispute_script import SIZES, WAYS, Script
from benchmarks.figure import Figure
from benchmarks.measure import Interval
from tallystick.disputes.coordinators.ethereum.encoding import encode_move
from tallystick.disputes.game.moves import Move
from tallystick.disputes.game.state import Rules, rounds

PROVER, CHALLENGER, TREASURY = (f"0x{number:040x}" for number in (1, 2, 3))
PLACES = 40
ATTESTATION = bytes(65)


def figures(quick: bool) -> Iterator[Figure]:
    for size in SIZES[: 2 if quick else None]:
        for ways in WAYS:
            yield of_cell(size, ways, 4 if quick else PLACES)


def of_cell(size: int, ways: int, count: int) -> Figure:
    """Rounds and bytes of disputes over graphs of one size with one number of children."""
    places = random.Random(size).sample(range(size), count)
    played = [_played(size, ways, place) for place in places]
    taken = [float(sum(move.kind == "partition" for move in moves)) for moves in played]
    what = f"rounds, V = {size:,}, N = {ways}"
    details = {
        "size": size,
        "ways": ways,
        "most rounds there can be": rounds(size, ways),
        "moves": spread([float(len(moves)) for moves in played]),
        "bytes of moves": spread([float(sum(len(move.to_bytes()) for move in moves)) for moves in played]),
        "bytes of calls": spread(
            [float(sum(len(encode_move(move, ATTESTATION)) for move in moves)) for moves in played]
        ),
        "largest move": max(len(move.to_bytes()) for moves in played for move in moves),
    }
    return Figure(f"dispute_rounds: {size}/{ways}", what, spread(taken), count, "count", unit="", details=details)


def _played(size: int, ways: int, place: int) -> list[Move]:
    """The moves of one dispute but for the claim, which stands with or without it."""
    script = Script(Rules(treasury=TREASURY, ways=ways), PROVER, CHALLENGER, size, place)
    return list(script.moves())[1:]


def spread(values: Sequence[float]) -> Interval:
    """The mean, the least and the most."""
    return Interval(mean(values), min(values), max(values))
