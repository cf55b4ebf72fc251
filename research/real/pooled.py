#!/usr/bin/env python3
"""What the standard fingerprints of many answers show together of an output matrix in 8 bits by row.

Usage: python -m research.real.pooled MODEL ANSWERS [--dtype BF16] [--out FILE]

ANSWERS is a folder of honest answers that `research.real.serving` filled. Each is also given the logits of such a
matrix behind its own final norm. Answers of one stack are drawn at random until they have so many tokens. Of each
draw, the distance of the logits is found, and its ratio to that of the final norm, which drifts on the same stacks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from research.real.distances import HEADS, coarser, rows_of
from research.real.serving import read_answers
from tallystick.engines.torch.generation.language_models import TorchLanguageModel, load_language_model
from tallystick.formats.fingerprints import PUBLIC_SEED, standard_fingerprints
from tallystick.tally.calibration.answer_limits import Rows
from tallystick.tally.calibration.stacks import machine
from tallystick.verdicts.fingerprints import distances, logit_rows, make_fingerprint

Sums = npt.NDArray[np.float64]
"""Of each answer: tokens, and the squared distances of final norm, logits, and logits of the coarse matrix."""

DATA: Final = Path("docs/data/real_pooled.json")
TOKENS: Final = (32, 128, 512, 2048, 8192)
DRAWS: Final = 4000
SEED: Final = 7
STATISTICS: Final[Mapping[str, Callable[[Sums, int], float]]] = {
    "logits": lambda total, place: float(np.sqrt(total[place] / total[0])),
    "logits over final norm": lambda total, place: float(np.sqrt(total[place] / total[1])),
}


def main() -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--dtype", default="BF16", choices=("F32", "BF16", "F16"))
    parser.add_argument("--out", type=Path, default=DATA)
    options = parser.parse_args()
    model = load_language_model(options.model, options.dtype)
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for stack, sums in measured(model, options.answers):
        found[stack].append(sums)
    by_stack = {stack: np.array(each) for stack, each in sorted(found.items())}
    figures: dict[str, Any] = {"machine": machine(), "dtype": options.dtype}
    figures |= {"answers": sum(map(len, by_stack.values())), "draws": DRAWS}
    figures["stacks"] = {stack: _of_stack(each) for stack, each in by_stack.items()}
    figures["pools"] = {str(tokens): _of_pools([*by_stack.values()], tokens) for tokens in TOKENS}
    options.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def measured(model: TorchLanguageModel, folder: Path) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Of each answer its stack, its tokens, and the sums of its squared distances."""
    final = model.card.layers
    [settings] = standard_fingerprints(final, model.card.dtype, (final, final + 1))
    matrix = coarser(model, *HEADS["8 bits by row"])
    for number, answered in enumerate(read_answers(folder)):
        print(f"answer {number}, {len(answered.answer)} tokens", file=sys.stderr, flush=True)
        claimed, own = rows_of(model, answered)
        coarse = logit_rows((answered.rows[final] @ matrix.T).float().numpy(), PUBLIC_SEED)

        def squares(rows: Rows, layer: int, own: Rows = own) -> float:
            gaps = distances(make_fingerprint(rows, settings), own)
            return sum(each.tokens * each.distance**2 for each in gaps if each.layer == layer)

        sums = squares(claimed, final), squares(claimed, final + 1), squares({**claimed, final + 1: coarse}, final + 1)
        yield answered.stack, (float(len(answered.answer)), *sums)


def _of_stack(sums: Sums) -> dict[str, float]:
    """The distances of all answers of a stack together."""
    total = sums.sum(axis=0)
    final, logits, coarse = (round(float(np.sqrt(each / total[0])), 5) for each in total[1:])
    return {"answers": len(sums), "tokens": int(total[0]), "final": final, "logits": logits, "coarse": coarse}


def _of_pools(stacks: list[Sums], tokens: int) -> dict[str, Any]:
    """By statistic: quantiles of draws, and how often the coarse matrix lies beyond every honest draw."""
    rng, draws = np.random.default_rng(SEED), []
    for _ in range(DRAWS):
        sums = stacks[rng.integers(len(stacks))]
        order = rng.permutation(len(sums))
        draws.append(sums[order[: np.searchsorted(np.cumsum(sums[order, 0]), tokens) + 1]].sum(axis=0))
    shown = {}
    for name, statistic in STATISTICS.items():
        honest, coarse = (np.array([statistic(total, place) for total in draws]) for place in (2, 3))
        shown[name] = {
            "honest": [round(float(each), 4) for each in np.quantile(honest, (0.5, 0.999))],
            "coarse": [round(float(each), 4) for each in np.quantile(coarse, (0.001, 0.5))],
            "beyond": round(float((coarse > honest.max()).mean()), 3),
        }
    return shown


if __name__ == "__main__":
    sys.exit(main())
