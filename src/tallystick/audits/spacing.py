"""How much of a tiny update float32 rounds away: a weight moves in steps of its own spacing.

Two honest replays whose updates agree to a millionth still round a few weights to different neighbours. Beside an
update of ordinary size this is negligible; in the first steps of a long warm-up it is most of the update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tallystick.tensors.tensor import Tensor

State = Mapping[str, Tensor]
SPACINGS = 0.5
"""How many spacings each weight may be off, in the root mean square over a tensor."""


def spacing_shares(start: State, replayed: State) -> tuple[float, float]:
    """Half a spacing of every weight over the update: of all weights together, and of the tensor it is largest in.

    A tensor that did not move at all is left out; so is an update of nothing.
    """
    pairs = [_spacing_and_move(start[name], replayed[name]) for name in replayed if name in start]
    spacing, move = (math.fsum(pair[place] for pair in pairs) for place in (0, 1))
    largest = max((a / b for a, b in pairs if b), default=0.0)
    return SPACINGS * math.sqrt(spacing / move) if move else 0.0, SPACINGS * math.sqrt(largest)


def _spacing_and_move(before: Tensor, after: Tensor) -> tuple[float, float]:
    if not after.dtype.startswith(("F", "BF")) or before.shape != after.shape:
        return 0.0, 0.0
    start, end = before.values(), after.values()
    with np.errstate(all="ignore"):
        spacing = np.square(np.spacing(np.abs(end)), dtype=np.float64).sum()
        move = np.square(end.astype(np.float64) - start).sum()
    usable = math.isfinite(spacing) and math.isfinite(move)
    return (float(spacing), float(move)) if usable else (0.0, 0.0)
