"""Distances between the hidden states of two producers, for every class of limits at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.answers.fingerprints import MEDIAN_FROM
from tallystick.tensors.safetensors import read_state
from tallystick.tolerances.fingerprints.making import encode_numbers
from tallystick.tolerances.fingerprints.residues import relative_gaps
from tallystick.tolerances.fingerprints.settings import PUBLIC_SEED
from tallystick.tolerances.fingerprints.signs import direction_signs, position_signs

Numbers: TypeAlias = npt.NDArray[np.float64]
WIDTHS: Final = {32: (4, 15), 8: (4, 7, 15, 30), 4: (7, 13, 30), 1: (60, 120)}
"""The widths that have limits of their own, by bits."""
WIDEST: Final = 120
BLOCKS: Final = (1, 8, 32)
STRIDE: Final = 8
"""Shorter blocks are taken from every eighth token on: their neighbours say little that is new."""
DEPTHS: Final = (0, 2, math.inf)
"""Up to which layers there are limits of their own: rounding adds up from layer to layer."""
DIRECT: Final = 0
"""Stands for rows compared as they are, where a number of bits stands otherwise."""


class Class(NamedTuple):
    """What has limits of its own: bits, least width and least tokens of a block; rows as they are have no width."""

    bits: int
    width: int
    tokens: int


class Depth(NamedTuple):
    """A class in the layers up to `layer_max`, or in all."""

    kind: Class
    layer_max: float


CLASSES: Final = (
    *(Class(bits, width, tokens) for tokens in BLOCKS for bits, widths in WIDTHS.items() for width in widths),
    *(Class(DIRECT, 0, tokens) for tokens in BLOCKS),
)


@dataclass(frozen=True)
class Computed:
    """The rows of all answers by one producer, one model and one dtype, one answer after the other."""

    rows: Mapping[int, npt.NDArray[np.float32]]
    counts: tuple[int, ...]

    @classmethod
    def read(cls, path: Path, counts: Sequence[int]) -> Computed:
        """What a process of the study has written."""
        rows = {int(name): tensor.array() for name, tensor in read_state(path).items()}
        return cls(dict(sorted(rows.items())), tuple(counts))

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first row of every answer."""
        return tuple(int(start) for start in np.cumsum((0, *self.counts[:-1])))

    def answer(self, number: int) -> dict[int, npt.NDArray[np.float32]]:
        """The rows [tokens, d] of one answer by layer."""
        start = self.starts[number]
        return {layer: each[start : start + self.counts[number]] for layer, each in self.rows.items()}

    def summaries(self, layer: int, block: int) -> tuple[Numbers, Numbers]:
        """The numbers [blocks, largest width] and norms of all full blocks; fewer numbers are the first of these."""
        if (layer, block) not in self._summaries:
            self._summaries[layer, block] = self._summarise(layer, block)
        return self._summaries[layer, block]

    @cached_property
    def _summaries(self) -> dict[tuple[int, int], tuple[Numbers, Numbers]]:
        return {}

    def _summarise(self, layer: int, block: int) -> tuple[Numbers, Numbers]:
        places, positions = self.blocks(block)
        rows, width = self.rows[layer].astype(np.float64), WIDEST
        signed = rows @ direction_signs(PUBLIC_SEED, layer, width, rows.shape[1]).astype(np.float64)
        signs = position_signs(PUBLIC_SEED, layer, width, 0, max(self.counts))
        numbers = np.einsum("bik,bik->bk", signed[places], signs[positions].astype(np.float64))
        return numbers, np.sqrt(np.square(rows[places]).sum(axis=(1, 2)))

    def blocks(self, block: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Rows [blocks, block] of full blocks, and the places of these tokens in their answers."""
        firsts = [
            (start + first, first)
            for start, count in zip(self.starts, self.counts, strict=True)
            for first in range(0, count - block + 1, max(block, STRIDE))
        ]
        pairs = np.array(firsts, np.int64).reshape(-1, 2)
        return pairs[:, :1] + np.arange(block), pairs[:, 1:] + np.arange(block)

    def owners(self, block: int) -> npt.NDArray[np.int64]:
        """Which answer every full block belongs to."""
        found = [len(range(0, count - block + 1, max(block, STRIDE))) for count in self.counts]
        return np.repeat(np.arange(len(self.counts)), found)


@dataclass(frozen=True)
class Seen:
    """Blocks compared, the largest distance of one, and the largest median of an answer's."""

    blocks: int = 0
    largest: float = 0.0
    typical: float = 0.0

    def __add__(self, other: Seen) -> Seen:
        return Seen(self.blocks + other.blocks, max(self.largest, other.largest), max(self.typical, other.typical))


def compare_pair(claimed: Computed, own: Computed, answers: int) -> dict[Depth, Seen]:
    """What the first `answers` answers show in every class, over the layers that both have."""
    return {depth: seen for each in CLASSES for depth, seen in _seen(each, claimed, own, answers).items()}


def distances_of(each: Class, claimed: Computed, own: Computed) -> Iterator[tuple[int, Numbers]]:
    """Layer, and the distance of every full block."""
    for layer in sorted(set(claimed.rows) & set(own.rows)):
        if each.bits == DIRECT:
            places, _ = own.blocks(each.tokens)
            gaps = np.square(claimed.rows[layer].astype(np.float64) - own.rows[layer]).sum(axis=1)
            sizes = np.square(own.rows[layer].astype(np.float64)).sum(axis=1)
            yield layer, np.sqrt(gaps[places].sum(axis=1) / sizes[places].sum(axis=1))
            continue
        numbers, norms = claimed.summaries(layer, each.tokens)
        coded = encode_numbers(numbers[:, : each.width], norms, each.bits)
        mine, own_norms = own.summaries(layer, each.tokens)
        yield layer, relative_gaps(coded, mine[:, : each.width], own_norms, each.bits)


def _seen(each: Class, claimed: Computed, own: Computed, answers: int) -> dict[Depth, Seen]:
    owners = own.owners(each.tokens)
    is_asked = owners < answers
    if not is_asked.any():
        return {}
    found = {layer: distance[is_asked] for layer, distance in distances_of(each, claimed, own)}
    by_depth = {Depth(each, deepest): [found[layer] for layer in found if layer <= deepest] for deepest in DEPTHS}
    return {depth: _of_layers(layers, owners[is_asked]) for depth, layers in by_depth.items()}


def _of_layers(found: list[Numbers], owners: npt.NDArray[np.int64]) -> Seen:
    together = np.concatenate(found)
    medians = [*_medians(together, np.tile(owners, len(found))), *(m for one in found for m in _medians(one, owners))]
    return Seen(together.size, float(together.max()), max(medians, default=0.0))


def _medians(found: Numbers, owners: npt.NDArray[Any]) -> Iterator[float]:
    order = np.argsort(owners, kind="stable")
    _, starts = np.unique(owners[order], return_index=True)
    for group in np.split(found[order], starts[1:]):
        if group.size >= MEDIAN_FROM:
            yield float(np.median(group))
