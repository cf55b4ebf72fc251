"""What each axis counts: sequences, tokens, keys, or something that does not depend on the length of a text.

A step of generation is read with *marks* in place of these sizes: primes that divide no other number of the graph.
Every side is then a product of marks and of a plain number, so the side itself shows what the axis counts. This holds
after a view has merged axes, and a side of 1 for one token differs from any other side of 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

Factors: TypeAlias = tuple[int, ...]
"""What one axis counts, the slowest-varying factor first: marks, and plain numbers other than 1."""
FIRST_MARK: Final = 1009


@dataclass(frozen=True)
class StepSizes:
    """The numbers of sequences, of tokens fed, of places in the cache and of keys seen; or the marks for them."""

    batch: int
    tokens: int
    past: int
    keys: int

    @property
    def all(self) -> tuple[int, int, int, int]:
        """The four numbers."""
        return (self.batch, self.tokens, self.past, self.keys)

    def translate(self, number: int, into: StepSizes) -> int:
        """`number`, a product of these marks and of plain numbers, with each mark replaced by the size in `into`."""
        for mark, size in zip(self.all, into.all, strict=True):
            while number and number % mark == 0:
                number = number // mark * size
        return number

    def factors(self, side: int) -> Factors:
        """The marks that divide `side`, then the quotient."""
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
    """What the axes count after a row-major reshape to `shape`; `None` if it would split a mark or reorder marks."""
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
    """The factors with neighbouring plain numbers multiplied together."""
    found: list[int] = []
    for factor in factors:
        if found and factor not in marks.all and found[-1] not in marks.all:
            found[-1] *= factor
        elif factor != 1:
            found.append(factor)
    return found


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
