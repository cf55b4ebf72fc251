"""Compares the first state of a training with the weights from which its spec says it begins.

A tensor of the origin is sought among the weights and buffers of the state under its own name: behind a prefix that all
of them share (a module around the model), and through the layers that `peft` puts around a weight. The state must hold
it in the state's own precision, widened exactly or rounded to nearest even.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from tallystick.core.tensors import State, Tensor, in_dtype

HELD: Final = ("weights.", "buffers.")
LAYERS: Final = frozenset({"base_layer", "original_module"})
COPIES: Final = "modules_to_save"
"""In a name, the adapter's name follows."""


@dataclass(frozen=True)
class FirstWeights:
    """How a state stands to an origin.

    `places` are the tensors of the state that were compared, each with what it should hold; `differing` are those of
    them that hold something else. `missing` are tensors of the origin that the state has nowhere. `added` are weights
    of the state that the origin does not know, without those that are zero throughout.
    """

    places: Mapping[str, Tensor]
    differing: tuple[str, ...]
    missing: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether the state holds every tensor of the origin."""
        return not self.differing and not self.missing


def compare_first_weights(state: State, weights: State) -> FirstWeights:
    """Compare a whole state with the `weights` of an origin."""
    places = find_places(state, weights)
    expected = {place: weights[name] for name, where in places.items() for place in where}
    differing = tuple(place for place in sorted(expected) if not holds(state[place], expected[place]))
    known = [weights[name] for name in places]
    missing = (name for name in sorted(weights.keys() - places.keys()) if not _is_tied(weights[name], known))
    added = (name for name in sorted(state.keys() - expected.keys()) if name.startswith(HELD[0]))
    return FirstWeights(
        expected, differing, tuple(missing), tuple(name for name in added if np.any(state[name].array()))
    )


def find_places(names: Collection[str], wanted: Collection[str]) -> dict[str, list[str]]:
    """Where the names of an origin stand among those of a state; names that stand nowhere are left out."""
    places: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.startswith(HELD):
            _, _, own = name.partition(".")
            for alias in {own, plain_name(own)}:
                places.setdefault(alias, []).append(name)
    prefix = _prefix(places, wanted)
    return {name: places[prefix + name] for name in sorted(wanted) if prefix + name in places}


def plain_name(name: str) -> str:
    """The name that a weight has without `peft`."""
    parts = iter(name.split("."))
    kept = []
    for part in parts:
        if part == COPIES:
            next(parts, None)
        elif part not in LAYERS:
            kept.append(part)
    return ".".join(kept)


def holds(tensor: Tensor, wanted: Tensor) -> bool:
    """Whether a tensor is the wanted one in its own precision, bit for bit."""
    if tensor.shape != wanted.shape:
        return False
    same = in_dtype(wanted, tensor.dtype)
    return same is not None and _equal(same, tensor)


def _prefix(places: Collection[str], wanted: Collection[str]) -> str:
    """What stands before most of the wanted names; the shortest of several."""
    names = frozenset(wanted)
    counts = Counter(place[:start] for place in places for start in _starts(place) if place[start:] in names)
    return max(sorted(counts, key=len), key=lambda prefix: counts[prefix], default="")


def _starts(name: str) -> Iterator[int]:
    yield 0
    yield from (at + 1 for at, character in enumerate(name) if character == ".")


def _is_tied(tensor: Tensor, others: Collection[Tensor]) -> bool:
    """Whether a tensor is another one under a second name."""
    alike = (other for other in others if (other.dtype, other.shape) == (tensor.dtype, tensor.shape))
    return any(_equal(tensor, other) for other in alike)


def _equal(one: Tensor, other: Tensor) -> bool:
    return np.array_equal(np.frombuffer(one.data, np.uint8), np.frombuffer(other.data, np.uint8))
