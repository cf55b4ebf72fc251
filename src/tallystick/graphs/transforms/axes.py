"""Axes by what they count: sequences, tokens, keys, or something that has nothing to do with the length of a text.

A step of generation is read at sizes that no other number of the graph has as a factor, primes. A side is then a
product of such marks and of a plain number, and tells by itself what it counts: what a view merges stays readable, and
a 1 that is one token is another number than a 1 that is nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

Factors: TypeAlias = tuple[int, ...]
"""What one axis counts, the slowest first: marks, and plain numbers other than 1."""
FIRST_MARK: Final = 1009


@dataclass(frozen=True)
class StepSizes:
    """How many sequences, tokens fed, places in the cache and keys seen there are; or the marks for these numbers."""

    batch: int
    tokens: int
    past: int
    keys: int

    @property
    def all(self) -> tuple[int, int, int, int]:
        """The four numbers."""
        return (self.batch, self.tokens, self.past, self.keys)

    def translate(self, number: int, into: StepSizes) -> int:
        """`number`, a product of these marks and of plain numbers, with the other sizes in their place."""
        for mark, size in zip(self.all, into.all, strict=True):
            while number and number % mark == 0:
                number = number // mark * size
        return number

    def factors(self, side: int) -> Factors:
        """The marks in `side`, then what is left of it."""
        found: list[int] = []
        for mark in self.all:
            while side and side % mark == 0:
                side, found = side // mark, [*found, mark]
        return (*found, *(() if side == 1 else (side,)))


def choose_marks(numbers: Iterable[int]) -> StepSizes:
    """Four primes that divide none of `numbers`."""
    taken = {abs(number) for number in numbers if number}
    found: list[int] = []
    candidate = FIRST_MARK
    while len(found) < 4:
        if _is_prime(candidate) and all(number % candidate for number in taken):
            found.append(candidate)
        candidate += 2
    return StepSizes(*found)


def regrouped(axes: Sequence[Factors], shape: Sequence[int], marks: StepSizes) -> tuple[Factors, ...] | None:
    """What the axes of a row-major reshape to `shape` count; `None` where a mark would be cut or go out of order."""
    left = _joined([factor for axis in axes for factor in axis], marks)
    found = []
    for side in shape:
        taken: list[int] = []
        while side != 1 and left:
            shared = math.gcd(left[0], side)
            if shared == 1:
                return None
            taken, side = [*taken, shared], side // shared
            left = ([left[0] // shared] if left[0] != shared else []) + left[1:]
        if side != 1:
            return None
        found.append(tuple(_joined(taken, marks)))
    return None if left else tuple(found)


def _joined(factors: Iterable[int], marks: StepSizes) -> list[int]:
    """Neighbouring plain numbers as one."""
    found: list[int] = []
    for factor in factors:
        if found and factor not in marks.all and found[-1] not in marks.all:
            found[-1] *= factor
        elif factor != 1:
            found.append(factor)
    return found


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
