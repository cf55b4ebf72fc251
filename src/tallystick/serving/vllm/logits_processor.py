"""Canonical sampling in vLLM: for requests that ask for it, every logit except that of the canonical choice becomes −∞.

vLLM's own steps after a logits processor (penalties, temperature, top-k, top-p, min-p, draw) can then choose only that
token. A request asks with `vllm_xargs: {"tally": 1}` and a seed; the sampler has the settings of the request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tallystick.errors import MalformedError, UnavailableError
from tallystick.frameworks.torch.generation.sampler import TorchSampler
from tallystick.serving.vllm.interface import BatchUpdate, LogitsProcessor, MoveDirectionality
from tallystick.transcripts.sampler import Sampler

ASKS: Final = "tally"


@dataclass(frozen=True)
class Row:
    """A request in the batch; `answer` is vLLM's own list, which grows with every token."""

    sampler: Sampler
    prompt: Sequence[int] | None
    answer: Sequence[int]

    @property
    def history(self) -> list[int]:
        """Prompt and answer so far, empty without a repetition penalty; `UnavailableError` if they are unknown."""
        if self.sampler.repetition_penalty == 1.0:
            return []
        if self.prompt is None or any(token < 0 for token in self.answer):
            raise UnavailableError("the tokens so far are not known: run vLLM without asynchronous scheduling")
        return [*self.prompt, *self.answer]


class CanonicalLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """A logits processor of vLLM V1 (`vllm.logits_processors`)."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise `ValueError` for a request of canonical sampling whose settings are not supported."""
        sampler_of(sampling_params)

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, Row] = {}

    def is_argmax_invariant(self) -> bool:
        """False: this processor also makes greedy choices, and decides ties."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Apply changes of the batch in vLLM's order: rows removed, added, moved."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, params, prompt, answer in batch_update.added:
            sampler = sampler_of(params)
            self._rows.pop(index, None)
            if sampler is not None:
                self._rows[index] = Row(sampler, prompt, answer)
        for source, target, direction in batch_update.moved:
            self._move(source, target, direction == MoveDirectionality.SWAP)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits F[requests, V]; in rows that ask for it, −∞ everywhere except at the canonical choice."""
        if not self._rows:
            return logits
        indices = sorted(self._rows)
        rows = [self._rows[index] for index in indices]
        sampler = TorchSampler([row.sampler for row in rows])
        chosen = sampler.choose(logits[indices], [len(row.answer) for row in rows], [row.history for row in rows])
        logits[indices] = torch.full_like(logits[indices], -math.inf).scatter_(1, chosen[:, None], 0.0)
        return logits

    def _move(self, source: int, target: int, is_swap: bool) -> None:
        moved, replaced = self._rows.pop(source, None), self._rows.pop(target, None)
        if moved is not None:
            self._rows[target] = moved
        if is_swap and replaced is not None:
            self._rows[source] = replaced


def sampler_of(params: Any) -> Sampler | None:
    """The sampler of a request's `SamplingParams`, `None` if it does not ask; `ValueError` for wrong settings."""
    if not (params.extra_args or {}).get(ASKS):
        return None
    if params.seed is None:
        raise ValueError("tally: canonical sampling needs a seed")
    fields = {name: float(getattr(params, name)) for name in ("temperature", "top_p", "min_p", "repetition_penalty")}
    try:
        return Sampler.from_json({**fields, "top_k": max(0, params.top_k), "seed": params.seed}, "tally")
    except MalformedError as error:
        raise ValueError(str(error)) from None
