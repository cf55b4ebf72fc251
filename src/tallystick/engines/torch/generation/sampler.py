"""Chooses tokens for rows of logits in PyTorch: the same tokens as `sampling.choose`.

On a CPU, each row is chosen by the NumPy code of `sampling.choose`. On another device, keys and filters are computed
there from the operators' definitions, while the host draws the random words. A few candidates per row come back to the
host, which decides exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from tallystick.core.errors import MalformedError, UsageError
from tallystick.engines.torch.kernels import TORCH
from tallystick.formats.receipt import Sampler
from tallystick.programs.operators.tally import fixed_point, sampling
from tallystick.programs.operators.tally.fixed_point import MASKED
from tallystick.programs.operators.values import Value, Values
from tallystick.programs.random_words import position_words
from tallystick.verdicts.sampling.choice import adjustment_of, check_form, check_places
from tallystick.verdicts.sampling.fast_choice import choose_fast
from tallystick.verdicts.sampling.filters import (
    FAR_BELOW,
    NONE_LEFT,
    NUMBERS,
    Flags,
    Plain,
    at_least_exp2,
    draw_gumbel,
    reach,
    threshold,
)

CANDIDATES: Final = 16
ALGEBRA: Final = Values(TORCH)
TENSORS: Final = Plain(torch.where)
Histories = Sequence[Sequence[int]]
Masks = Sequence[Flags | None]


class TorchSampler:
    """Chooses one token for each row, each with its own sampler."""

    def __init__(self, samplers: Sequence[Sampler]) -> None:
        self.samplers = tuple(samplers)
        for sampler in self.samplers:
            check_form(sampler)

    @torch.inference_mode()
    def choose(
        self, logits: torch.Tensor, positions: Sequence[int], histories: Histories, masks: Masks | None = None
    ) -> torch.Tensor:
        """The chosen token of each row, I64[rows] on the device of `logits`, which are floats[rows, V].

        `masks` are those of the grammars, BOOL[V] for each row whose sampler has one.
        Raises as `sampling.choose`, and `UsageError` unless there is one sampler for each row.
        """
        if len(self.samplers) != len(logits):
            raise UsageError(f"{len(self.samplers)} samplers for {len(logits)} rows of logits")
        check_places(tuple(logits.shape), positions, histories)
        choice = choose_on_host if logits.device.type == "cpu" else choose_on_device
        given = masks or [None] * len(logits)
        tokens = choice(logits.detach().float(), self.samplers, positions, histories, given)
        if NONE_LEFT in tokens:
            raise MalformedError(f"logits: row {tokens.index(NONE_LEFT)} leaves no token to choose")
        return torch.tensor(tokens, dtype=torch.int64, device=logits.device)


class CanonicalSampling:
    """A logits processor for `generate(do_sample=False)`: every logit becomes −∞ except that of the chosen token.

    `prompts` are the token ids of each row without padding; `width` is the width of `generate`'s padded input.
    """

    def __init__(self, samplers: Sequence[Sampler], prompts: Histories, width: int | None = None) -> None:
        self.sampler = TorchSampler(samplers)
        self.prompts = [list(prompt) for prompt in prompts]
        self.width = max(map(len, self.prompts), default=0) if width is None else width

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores F32[rows, V] of the tokens after `input_ids`, I64[rows, length]: 0 for the chosen token, else −∞."""
        answers = input_ids[:, self.width :].tolist()
        histories = [prompt + answer for prompt, answer in zip(self.prompts, answers, strict=True)]
        tokens = self.sampler.choose(scores, [len(answer) for answer in answers], histories)
        return torch.full_like(scores, -math.inf).scatter_(1, tokens[:, None], 0.0)


def choose_on_host(
    logits: torch.Tensor,
    samplers: Sequence[Sampler],
    positions: Sequence[int],
    histories: Histories,
    masks: Masks | None = None,
) -> list[int]:
    """Choose row by row in NumPy; −1 where no token is left."""
    rows = zip(logits.numpy(), samplers, positions, histories, masks or [None] * len(logits), strict=True)
    return [choose_fast(*row) for row in rows]


def choose_on_device(
    logits: torch.Tensor,
    samplers: Sequence[Sampler],
    positions: Sequence[int],
    histories: Histories,
    masks: Masks | None = None,
) -> list[int]:
    """Choose on the device of `logits`, rows with equal settings together; −1 where no token is left."""
    tokens = [NONE_LEFT] * len(logits)
    logits = _adjusted(logits, samplers, positions, histories, masks or [None] * len(logits))
    for settings, rows in _alike(samplers).items():
        places, pasts = [positions[row] for row in rows], [histories[row] for row in rows]
        keys = _keys(logits if len(rows) == len(logits) else logits[rows], settings, pasts)
        drawn = _drawn(keys, settings, [samplers[row].seed for row in rows], places)
        for row, token in zip(rows, drawn, strict=True):
            tokens[row] = token
    return tokens


def _adjusted(
    logits: torch.Tensor, samplers: Sequence[Sampler], positions: Sequence[int], histories: Histories, masks: Masks
) -> torch.Tensor:
    """As `adjusted_row` of `sampling.choice`, for each row whose sampler changes logits; the argument stays."""
    rows = [row for row, sampler in enumerate(samplers) if sampler.adjustments]
    logits = logits.clone() if rows else logits
    for row in rows:
        found = adjustment_of(samplers[row], positions[row], histories[row], logits.shape[1], masks[row])
        tokens, offsets, out = (torch.from_numpy(each).to(logits.device) for each in vars(found).values())
        if len(tokens):
            plain = sampling.plain_logits(ALGEBRA, Value(logits[row, tokens], "F32")).array
            logits[row, tokens] = (plain + offsets).float()
        logits[row, out] = -math.inf
    return logits


def _alike(samplers: Sequence[Sampler]) -> Mapping[Sampler, list[int]]:
    """The rows with equal settings, ignoring seeds."""
    found: dict[Sampler, list[int]] = {}
    for row, sampler in enumerate(samplers):
        found.setdefault(sampler.model_copy(update={"seed": 0}), []).append(row)
    return found


def _keys(logits: torch.Tensor, sampler: Sampler, histories: Histories) -> torch.Tensor:
    x = Value(logits, "F32")
    if sampler.repetition_penalty != 1.0:
        seen = Value(_seen(logits, histories), "BOOL")
        x = sampling.repetition_penalty(ALGEBRA, x, seen, sampler.repetition_penalty)
    keys = sampling.scale_logits(ALGEBRA, x, sampler.temperature)
    if not sampler.is_greedy:
        keys = sampling.keep_top_k(ALGEBRA, keys, sampler.top_k)
        keys = sampling.keep_top_p(ALGEBRA, keys, sampler.top_p) if sampler.top_p < 1.0 else keys
        keys = sampling.keep_min_p(ALGEBRA, keys, sampler.min_p) if sampler.min_p > 0.0 else keys
    return keys.array  # type: ignore[no-any-return]


def _seen(logits: torch.Tensor, histories: Histories) -> torch.Tensor:
    seen = np.zeros(tuple(logits.shape), np.bool_)
    for row, history in zip(seen, histories, strict=True):
        row[np.asarray(history, np.int64)] = True
    return torch.from_numpy(seen).to(logits.device)


def _drawn(keys: torch.Tensor, sampler: Sampler, seeds: Sequence[int], positions: Sequence[int]) -> list[int]:
    if sampler.is_greedy:
        return sampling.select_largest(ALGEBRA, Value(keys, "I64")).array.tolist()  # type: ignore[no-any-return]
    width = 1 if sampler.form == "cdf" else keys.shape[1]
    words = np.stack([position_words(*place, width) for place in zip(seeds, positions, strict=True)])
    return _by_sums(keys, words[:, 0].tolist()) if sampler.form == "cdf" else _by_noise(keys, words)


def _by_sums(keys: torch.Tensor, words: Sequence[int]) -> list[int]:
    sums = torch.cumsum(fixed_point.exp2(TENSORS, keys), 1)
    totals = sums[:, -1].tolist()
    edges = [threshold(word, total) for word, total in zip(words, totals, strict=True)]
    found = torch.searchsorted(sums, torch.tensor(edges, device=keys.device)[:, None], right=True)[:, 0].tolist()
    return [token if total else NONE_LEFT for token, total in zip(found, totals, strict=True)]


def _by_noise(keys: torch.Tensor, words: Any) -> list[int]:
    """As `draw_gumbel`: the device finds the smallest v / 2^key of each row, the host decides among them."""
    held = torch.from_numpy(words).to(keys.device, non_blocking=True)
    bits = at_least_exp2(torch.clamp(keys, min=FAR_BELOW))
    ratios = fixed_point.uniform(TENSORS, held) / bits.view(torch.float64)
    ratios = torch.where(keys == MASKED, math.inf, ratios)
    least, tokens = torch.topk(ratios, min(CANDIDATES, keys.shape[1]), largest=False)
    found = torch.stack([tokens, keys.gather(1, tokens), held.gather(1, tokens), least.view(torch.int64)], 2).tolist()
    return [_decided(row, candidates, keys, words) for row, candidates in enumerate(found)]


def _decided(row: int, candidates: Sequence[Sequence[int]], keys: torch.Tensor, words: Any) -> int:
    """The token with the largest score among candidates [token, key, word, ratio], sorted by ratio, ascending."""
    ratios = np.array([ratio for *_, ratio in candidates]).view(np.float64)
    if ratios[0] == math.inf:
        return NONE_LEFT
    scored = [(key + fixed_point.gumbel(NUMBERS, candidates[0][2]), -token) for token, key, *_ in candidates[:1]]
    able = ratios <= reach(scored[0][0])
    if able.all() and len(ratios) < keys.shape[1]:
        return draw_gumbel(keys[row].cpu().numpy(), words[row])
    others = [each for each, is_able in zip(candidates[1:], able[1:], strict=True) if is_able]
    scored += [(key + fixed_point.gumbel(NUMBERS, word), -token) for token, key, word, _ in others]
    return -max(scored)[1]
