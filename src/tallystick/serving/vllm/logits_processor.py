"""Canonical sampling in vLLM: for requests that ask for it, every logit except that of the canonical choice becomes −∞.

vLLM's own steps after a logits processor (penalties, temperature, top-k, top-p, min-p, draw) can then choose only that
token. A request asks with `vllm_xargs: {"tally": 1}` and a seed; the sampler has the settings of the request. What
vLLM has applied before, which differs between its runners, is not applied again (`batches`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tallystick.frameworks.torch.generation.sampler import TorchSampler
from tallystick.sampling.adjusting import Flags
from tallystick.serving.vllm.batches import LogitsRow, RowBatch, SlotBatch, lengths_of
from tallystick.serving.vllm.grammar_rows import Making, masks_maker
from tallystick.serving.vllm.interface import BatchUpdate, LogitsContext, LogitsProcessor, SlotLogitsProcessor
from tallystick.serving.vllm.request_settings import check_settings
from tallystick.serving.vllm.start import check_start
from tallystick.transcripts.sampler import Sampler


class CanonicalLogitsProcessor(LogitsProcessor, SlotLogitsProcessor):  # type: ignore[misc]
    """A logits processor of vLLM (`--logits-processors`), for its V1 and its V2 model runner.

    Raises `ValueError` if vLLM is started with a setting under which no receipt would be true. `on_pass` is told the
    rows of every pass.
    """

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise `ValueError` for a request of canonical sampling whose settings are not supported."""
        check_settings(sampling_params)

    def __init__(self, vllm_config: Any, place: Any, is_pin_memory: bool | None = None) -> None:
        """`place` is the device under the V1 runner, and the buffers of requests under the V2 runner."""
        check_start(vllm_config)
        self.batch, self.slots = RowBatch(), None if is_pin_memory is not None else SlotBatch(place)
        self.on_pass: Callable[[Sequence[LogitsRow]], None] | None = None
        self._directory = vllm_config.model_config.model
        self._make: Making | None = None

    def is_argmax_invariant(self) -> bool:
        """False: this processor also makes greedy choices, and decides ties."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Apply changes of the V1 runner's batch."""
        if batch_update is not None:
            self.batch.update(batch_update)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Put a request in a slot of the V2 runner; return whether it asks for canonical sampling."""
        assert self.slots is not None
        return self.slots.add(req_idx, sampling_params)

    def apply(self, logits: torch.Tensor, ctx: LogitsContext | None = None) -> torch.Tensor:
        """Logits F[requests, V]; in rows that ask for it, −∞ everywhere except at the canonical choice."""
        rows = list(self.batch.rows() if self.slots is None else self.slots.rows(*lengths_of(ctx)))
        if not rows:
            return logits
        masks = [self._mask(row, logits.shape[1]) for row in rows]
        if self.on_pass is not None:
            self.on_pass([row for row in rows if row.grammar is None or not row.grammar.is_broken])
        places, sampler = [row.row for row in rows], TorchSampler([_usable(row) for row in rows])
        asked = logits if len(places) == len(logits) else logits[places]  # rows are in order: all of them need no copy
        chosen = sampler.choose(asked, [row.position for row in rows], [row.history for row in rows], masks)
        for row, token in zip(rows, chosen.tolist(), strict=True) if any(row.grammar for row in rows) else ():
            if row.grammar is not None:
                row.grammar.choose(row.position, token)
        if asked is logits:
            logits.fill_(-math.inf)
        else:
            logits[places] = -math.inf
        logits[places, chosen] = 0.0
        return logits

    def _mask(self, row: LogitsRow, vocabulary: int) -> Flags | None:
        if row.grammar is None:
            return None
        if self._make is None:
            self._make = masks_maker(self._directory, vocabulary)
        return row.grammar.allowed(row.position, row.told, self._make)


def _usable(row: LogitsRow) -> Sampler:
    """The sampler of a row, without a grammar whose masks are gone."""
    is_broken = row.grammar is not None and row.grammar.is_broken
    return row.sampler.model_copy(update={"grammar": None}) if is_broken else row.sampler
