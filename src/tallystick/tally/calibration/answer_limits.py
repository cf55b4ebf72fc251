"""How far honest rows, tokens and logits lie from a verifier's own, and the limits that follow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.audits.answers.limits import MarginBin, MeasuredModels, Place, RowLimits, TokenLimits
from tallystick.formats.receipt import Sampler
from tallystick.programs.operators.tally import fixed_point
from tallystick.programs.random_words import words_at
from tallystick.tally.calibration.drift import round_up
from tallystick.verdicts.evidence import clopper_pearson
from tallystick.verdicts.sampling.fast_path import USUAL_REACH
from tallystick.verdicts.sampling.filters import ARRAYS
from tallystick.verdicts.sampling.margin import margins

# Limits on the distance of honest rows, from rows of the same tokens that honest stacks computed.

Rows: TypeAlias = Mapping[int, npt.NDArray[np.floating[Any]]]
"""Hidden states and logits by layer, each [tokens, width], as a fingerprint summarises them."""
RUNS: Final = (1, 8, 32, 128)
"""The lengths of runs of tokens that have limits of their own: short runs vary more."""
BLOCK: Final = 32
"""Longer runs are compared in blocks of this many tokens, as those of the standard fingerprints are."""
MARGIN: Final = {"F32": 8.0, "BF16": 1.5, "F16": 1.5}
"""How far limits lie above the largest honest distance: precisions of 16 bits leave little room below the cheats."""
LEAST: Final = {"F32": 1e-5, "BF16": 1e-4, "F16": 1e-5}
"""No limit is set lower: another machine may always differ in a last bit that no stack here differed in."""


class Class(NamedTuple):
    """Rows that have limits of their own: runs of `tokens` at a place; of blocks, those up to `layer_max`."""

    place: Place
    layer_max: int
    tokens: int


@dataclass(frozen=True)
class SeenRuns:
    """How many runs were compared, and the largest distance of one."""

    runs: int = 0
    largest: float = 0.0

    def __add__(self, other: SeenRuns) -> SeenRuns:
        return SeenRuns(self.runs + other.runs, max(self.largest, other.largest))


def compare_answer(claimed: Rows, own: Rows, final: int) -> dict[Class, SeenRuns]:
    """What one answer shows, from rows of the layers that both have; `final` is the layer number of the final norm."""
    runs: dict[Class, SeenRuns] = {}
    for layer in sorted(set(claimed) & set(own)):
        place: Place = "block" if layer < final else "final" if layer == final else "logits"
        for tokens in RUNS:
            distances = distances_of_runs(claimed[layer], own[layer], tokens)
            if distances.size:
                runs[Class(place, layer if place == "block" else 0, tokens)] = SeenRuns(
                    distances.size, float(distances.max())
                )
    return runs


def distances_of_runs(
    claimed: npt.NDArray[np.floating[Any]], own: npt.NDArray[np.floating[Any]], tokens: int
) -> npt.NDArray[np.float64]:
    """The distance of every full run of `tokens` rows, one after the other: F64[runs]."""
    count, block = len(own) // tokens, min(tokens, BLOCK)
    rows = count * tokens
    gaps = np.square(claimed[:rows].astype(np.float64) - own[:rows]).sum(axis=1).reshape(-1, block).sum(axis=1)
    sizes = np.square(own[:rows].astype(np.float64)).sum(axis=1).reshape(-1, block).sum(axis=1)
    return np.asarray(np.sqrt((gaps / sizes).reshape(count, tokens // block).mean(axis=1)))


def add_up(answers: Iterable[Mapping[Class, SeenRuns]]) -> dict[Class, SeenRuns]:
    """What several answers show."""
    total: dict[Class, SeenRuns] = {}
    for answer in answers:
        for kind, seen in answer.items():
            total[kind] = total.get(kind, SeenRuns()) + seen
    return total


def at_depths(seen: Mapping[Class, SeenRuns], layers: int) -> dict[Class, SeenRuns]:
    """The same runs, those of a block at the next of the `depths_of` a model of `layers` blocks."""
    depths = depths_of(layers)
    return add_up(
        {kind._replace(layer_max=min(d for d in depths if d >= kind.layer_max)): runs} for kind, runs in seen.items()
    )


def depths_of(layers: int) -> tuple[int, ...]:
    """The blocks up to which limits hold: sixths of the depth, that of the standard fingerprints, and the last one.

    >>> depths_of(30)
    (0, 5, 10, 15, 20, 25, 29)
    """
    return tuple(sorted({*range(0, layers, max(1, layers // 6)), layers // 3, layers - 1}))


def row_limits(seen: Mapping[Class, SeenRuns], models: MeasuredModels) -> tuple[RowLimits, ...]:
    """Limits for `models` from what honest answers showed: the largest distance times `MARGIN`.

    Those of a block hold for all blocks before it, so they are at least as large as the limits of those.
    """
    limits = []
    for kind in sorted(seen):
        below = [other for other in seen if other[::2] == kind[::2] and other.layer_max <= kind.layer_max]
        total = sum((seen[other] for other in below), SeenRuns())
        allowed = max(LEAST[models.dtype], MARGIN[models.dtype] * total.largest)
        limits.append(
            RowLimits(
                **models.model_dump(),
                place=kind.place,
                tokens=kind.tokens,
                layer_max=kind.layer_max if kind.place == "block" else None,
                largest=round_up(allowed),
                honest=total.runs,
                honest_largest=round_up(total.largest),
            )
        )
    return tuple(limits)


# How far honest tokens and logits lie from a verifier's own, and the limits that follow (`docs/evidence.md`).

Reals = npt.NDArray[np.float64]
HONEST: Final = 1e-3
"""The rate of honest tokens beyond the tie band, as in `SamplerRule.honest`."""
RIVALS: Final = 5
"""The tokens of a row whose gap to the choice is looked at."""
GAPS: Final = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
"""Edges of the bins of gaps, in units of the drift that was measured."""
TRIALS: Final = 50
"""A bin with fewer rivals says too little to set a limit."""
TOKEN_MARGIN: Final = {"F32": 8.0, "BF16": 1.25, "F16": 1.25}
LEAST_TOKENS: Final = {"F32": 1e-5, "BF16": 1e-3, "F16": 1e-4}
"""No drift is set lower: another machine may always differ in a last bit that no stack here differed in."""


@dataclass(frozen=True)
class SeenTokens:
    """What one answer shows: the margin of each token; the gaps of its rivals and which of them were chosen; the drift.

    Margins and gaps are in logits, F64. `variances` are those of the drift of a row's largest logits, F64[tokens].
    """

    margins: Reals
    gaps: Reals
    chosen: npt.NDArray[np.bool_]
    variances: Reals


def observe(
    own: Any, prompt: Sequence[int], answer: Sequence[int], sampler: Sampler, claimed: Any, entries: Any
) -> SeenTokens:
    """Compare an answer with the verifier's logits `own`, F32[n, V]; `claimed` are the provider's at `entries`."""
    places = np.arange(len(answer))
    histories = [[*prompt, *answer[:place]] for place in range(len(answer))]
    drift = np.asarray(claimed, np.float64) - np.take_along_axis(own, entries, 1)
    token_margins = margins(own, answer, sampler, places.tolist(), histories, USUAL_REACH)
    gaps, chosen = _rivals(own, np.asarray(answer), sampler, entries)
    return SeenTokens(token_margins, gaps, chosen, drift.var(axis=1))


def token_limits(seen: Sequence[SeenTokens], models: MeasuredModels) -> TokenLimits:
    """The limits that these answers bear out for `models`."""
    token_margins, dispersion = np.concatenate([answer.margins for answer in seen]), _dispersion(seen)
    rms = _drift(seen, models.dtype)
    differing = upper(int((token_margins > 0.0).sum()), len(token_margins), dispersion)
    mismatches = min(0.5, max(HONEST, 2.0 * differing))
    band = rms * max(4.0, math.log(mismatches / HONEST))
    edges = [round_up(band * part) for part in (0.0, 0.25, 0.5, 0.75, 1.0)]
    bins = [MarginBin(margin=m, tokens=len(token_margins), beyond=int((token_margins > m).sum())) for m in edges]
    return TokenLimits(
        **models.model_dump(),
        band=round_up(band),
        mismatches=round_up(mismatches),
        rms=round_up(rms),
        largest=float(token_margins.max()),
        bins=tuple(bins),
    )


def upper(successes: int, trials: int, dispersion: float = 1.0) -> float:
    """The upper bound of a rate at 99 %, one-sided; of trials that vary together, only a part counts."""
    trials = max(1, int(trials / dispersion))
    return clopper_pearson(min(trials, math.ceil(successes / dispersion)), trials, 0.98)[1]


def _rivals(own: Any, answer: npt.NDArray[np.int64], sampler: Sampler, entries: Any) -> tuple[Reals, Any]:
    """Gaps of the best rivals to the verifier's choice among `entries`, and which are the answer; none with filters."""
    if sampler.top_p < 1.0 or sampler.top_k or sampler.min_p or sampler.repetition_penalty != 1.0:
        return np.zeros(0), np.zeros(0, np.bool_)
    rows = np.repeat(np.arange(len(answer)), entries.shape[1])
    scores = np.take_along_axis(own, entries, 1).astype(np.float64)
    if not sampler.is_greedy:
        noise = fixed_point.gumbel(ARRAYS, words_at(sampler.seed, rows, entries.ravel())).reshape(entries.shape)
        scores = scores + sampler.temperature * math.log(2.0) * noise / fixed_point.ONE
    order = np.argsort(-scores, axis=1)[:, : RIVALS + 1]
    scores, tokens = np.take_along_axis(scores, order, 1), np.take_along_axis(entries, order, 1)
    return (scores[:, :1] - scores[:, 1:]).ravel(), (tokens[:, 1:] == answer[:, None]).ravel()


def _drift(seen: Sequence[SeenTokens], dtype: str) -> float:
    """The drift for which 1 / (1 + exp(gap / drift)) lies above the rate of rivals chosen, in every bin with one."""
    measured = math.sqrt(float(np.concatenate([answer.variances for answer in seen]).mean()))
    gaps, chosen = (np.concatenate([getattr(answer, name) for answer in seen]) for name in ("gaps", "chosen"))
    drifts = [LEAST_TOKENS[dtype], TOKEN_MARGIN[dtype] * measured]
    for low, high in pairwise(GAPS):
        inside = (gaps >= low * measured) & (gaps < high * measured)
        if inside.sum() >= TRIALS and chosen[inside].any():
            bound = upper(int(chosen[inside].sum()), int(inside.sum()))
            drifts += [low * measured / math.log(1.0 / bound - 1.0)] if bound < 0.5 else []
    return max(drifts)


def _dispersion(seen: Sequence[SeenTokens]) -> float:
    """How much more mismatches vary from answer to answer than independent ones would; at least 1."""
    counts = np.array([(answer.margins > 0.0).sum() for answer in seen], np.float64)
    tokens = np.array([len(answer.margins) for answer in seen], np.float64)
    rate = counts.sum() / tokens.sum()
    expected = float((tokens * rate * (1.0 - rate)).sum())
    return max(1.0, float(np.square(counts - tokens * rate).sum()) / expected) if expected else 1.0
