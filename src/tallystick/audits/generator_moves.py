"""What a run states of the generator from which dropout draws.

Words are drawn between steps too: by a loader that shuffles, by a validation. How many is the prover's word, and by it
masks could be chosen. So the report says where the generator was moved, and where it was given another seed.
"""

from __future__ import annotations

from collections.abc import Mapping

from tallystick.commitments.mt19937 import GOES_ON
from tallystick.tensors.tensor import Tensor


def described_moves(moves: Mapping[int, Tensor]) -> str:
    """The moves before steps, in words; each is I64 [2], a seed or -1 and how many words were skipped."""
    named = {index: tuple(move.array().ravel().tolist()) for index, move in sorted(moves.items())}
    skipped = [index for index, (seed, words) in named.items() if words and seed == GOES_ON]
    seeds = [f"{seed} before step {index}" for index, (seed, *_) in named.items() if seed != GOES_ON]
    begins = f"PyTorch's generator was moved on before {_steps(skipped)} of {len(named)} steps that were read"
    again = f", and given {len(seeds)} further seed{'s' if len(seeds) > 1 else ''} ({', '.join(seeds[:3])})"
    return begins + (again if seeds else "")


def _steps(indices: list[int]) -> str:
    return f"{len(indices)} (first step {indices[0]})" if indices else "none"
