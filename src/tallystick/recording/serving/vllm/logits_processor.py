"""Canonical sampling in vLLM: the rows of a pass, their masks, and the logits of the canonical choice."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality  # type: ignore[import-not-found]
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor as SlotLogitsProcessor  # type: ignore[import-not-found]

from tallystick.core.errors import UnavailableError
from tallystick.engines.torch.generation.grammars import SchemaMasks, grammar_tokenizer
from tallystick.engines.torch.generation.language_models import load_tokenizer
from tallystick.engines.torch.generation.sampler import TorchSampler
from tallystick.formats.receipt import Sampler
from tallystick.recording.serving.vllm.asking import (
    GRAMMAR,
    LISTS,
    PENALTIES,
    check_settings,
    end_tokens_of,
    sampler_of,
    without,
)
from tallystick.recording.serving.vllm.start import check_start
from tallystick.verdicts.language_model import TokenMasks
from tallystick.verdicts.sampling.filters import Flags

# The masks of requests whose answers follow a schema, as their rows come, go and are fed again.
#
# vLLM's own backends of grammars make other masks, and no receipt could state them. These are those of the sampler's
# definition (`engines.torch.generation.grammars`), made from the schema in the request's extra arguments.

LOG: Final = logging.getLogger("vllm.tallystick")
Making = Callable[[str, tuple[int, ...]], TokenMasks]
"""Makes masks of a schema, under which an answer may end with these tokens."""


@dataclass
class GrammarRow:
    """The masks of one answer. Its tokens are what vLLM tells of it, or else those that were chosen here."""

    schema: str
    ends: tuple[int, ...]
    is_broken: bool = False
    _masks: TokenMasks | None = None
    _taken: int = 0
    _chosen: dict[int, int] = field(default_factory=dict)

    def allowed(self, position: int, told: Callable[[], Sequence[int]], make: Making) -> Flags | None:
        """BOOL[V], the tokens that may stand at `position`; None, and broken for good, where nobody can say.

        Nothing is raised inside of vLLM's engine: a request without masks gets no receipt.
        """
        try:
            if self._masks is None:
                self._masks = make(self.schema, self.ends)
            known = told()
            for place in range(self._taken, position):
                is_told = place < len(known) and known[place] >= 0
                token = known[place] if is_told else self._chosen.get(place)
                if token is None:
                    raise UnavailableError("vLLM does not give the tokens so far")
                self._masks.take(token)
                self._taken, self._chosen = place + 1, {}
            return self._masks.allowed()
        except UnavailableError as error:
            if not self.is_broken:
                LOG.warning("tallystick: an answer under a schema gets no receipt: %s", error)
            self.is_broken = True
            return None

    def choose(self, position: int, token: int) -> None:
        """Note the token that was chosen at a position; a part of a prompt gives one that a later one replaces."""
        self._chosen[position] = token


def masks_maker(directory: Any, vocabulary: int) -> Making:
    """Makes masks by the tokenizer in the model's directory; it is read when the first answer needs it."""

    @lru_cache(maxsize=4)
    def tokenizer(ends: tuple[int, ...]) -> Any:
        return grammar_tokenizer(load_tokenizer(Path(directory)), vocabulary, frozenset(ends))

    return lambda schema, ends: SchemaMasks(schema, tokenizer(ends))


# Which rows of a pass belong to requests that ask for canonical sampling, under each model runner of vLLM.
#
# The V1 runner tells its processors which rows of the batch were removed, added and moved. The V2 runner gives every
# request a slot, and says with every pass which slot stands in which row.
#
# Both apply some settings before a user's processor: V1 biases and allowed tokens, V2 penalties too. What is left to be
# applied is in the sampler of a row, so that all together is the sampler that the request states.


@dataclass(frozen=True)
class LogitsRow:
    """A row of logits from which a token is chosen.

    `slot` names the request to the model runner. `sampler` is what vLLM has not applied yet. `position` is the index of
    the token in the answer. `history` has prompt and answer so far, and is empty if no penalty is left to be applied.
    `grammar` has the masks of an answer that follows a schema, and `told` gives its tokens so far, as vLLM has them.
    """

    row: int
    slot: int
    sampler: Sampler
    position: int
    history: Sequence[int] = ()
    grammar: GrammarRow | None = None
    told: Callable[[], Sequence[int]] = tuple


@dataclass(frozen=True)
class BatchRow:
    """A request in the batch of the V1 runner; `answer` is vLLM's own list, which grows with every token."""

    sampler: Sampler
    prompt: Sequence[int] | None
    answer: Sequence[int]
    grammar: GrammarRow | None = None

    @property
    def history(self) -> list[int]:
        """Prompt and answer so far, empty without penalties; `UnavailableError` if they are unknown."""
        if without(self.sampler, PENALTIES) == self.sampler:
            return []
        if self.prompt is None or any(token < 0 for token in self.answer):
            raise UnavailableError("a penalty needs all tokens so far, and vLLM does not give them")
        return [*self.prompt, *self.answer]


class _RowBatch:
    """The requests in the batch of the V1 runner, by row."""

    def __init__(self) -> None:
        self._rows: dict[int, BatchRow] = {}

    def update(self, changes: BatchUpdate) -> None:
        """Apply changes of the batch in vLLM's order: rows removed, added, moved."""
        for index in changes.removed:
            self._rows.pop(index, None)
        for index, params, prompt, answer in changes.added:
            sampler = sampler_of(params)
            self._rows.pop(index, None)
            if sampler is not None:
                self._rows[index] = BatchRow(without(sampler, LISTS), prompt, answer, grammar_row(params))
        for source, target, direction in changes.moved:
            self._move(source, target, direction == MoveDirectionality.SWAP)

    def rows(self) -> Iterator[LogitsRow]:
        """The rows of the pass by number.

        A part of a prompt gives a row too, at the position of the token that follows the whole prompt.
        """
        for index, row in sorted(self._rows.items()):
            position, told = len(row.answer), partial(tuple, row.answer)
            yield LogitsRow(index, index, row.sampler, position, row.history, row.grammar, told)

    def _move(self, source: int, target: int, is_swap: bool) -> None:
        moved, replaced = self._rows.pop(source, None), self._rows.pop(target, None)
        if moved is not None:
            self._rows[target] = moved
        if is_swap and replaced is not None:
            self._rows[source] = replaced


class _SlotBatch:
    """The requests of the V2 runner by slot; `states` are the buffers that the runner shares with its processors."""

    def __init__(self, states: Any) -> None:
        self._states = states
        self._samplers: dict[int, Sampler] = {}
        self._grammars: dict[int, GrammarRow] = {}

    def add(self, slot: int, params: Any) -> bool:
        """Put a request in a slot, in place of the one that was there; return whether it asks."""
        self._samplers.pop(slot, None)
        self._grammars.pop(slot, None)
        sampler = sampler_of(params)
        if sampler is not None:
            self._samplers[slot] = without(sampler, (*LISTS, *PENALTIES))
            if (grammar := grammar_row(params)) is not None:
                self._grammars[slot] = grammar
        return sampler is not None

    def rows(self, slots: Sequence[int], lengths: Sequence[int]) -> Iterator[LogitsRow]:
        """The rows of a pass, of which row i is the request in slot i; `lengths` has its tokens so far.

        A row that ends inside the prompt chooses no token and is left out.
        """
        for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
            position = length - int(self._states.prompt_len.np[slot])
            if slot in self._samplers and position >= 0:
                told = partial(self._answer, slot, position)
                yield LogitsRow(row, slot, self._samplers[slot], position, (), self._grammars.get(slot), told)

    def _answer(self, slot: int, length: int) -> list[int]:
        """The tokens of an answer so far, from the runner's buffer."""
        first = int(self._states.prompt_len.np[slot])
        tokens: list[int] = self._states.all_token_ids.gpu[slot, first : first + length].tolist()
        return tokens


def grammar_row(params: Any) -> GrammarRow | None:
    """The masks of a request whose answer follows a schema, before the first of them is made."""
    extra = params.extra_args or {}
    return GrammarRow(extra[GRAMMAR[1]], end_tokens_of(extra) or ()) if GRAMMAR[1] in extra else None


def lengths_of(context: Any) -> tuple[list[int], list[int]]:
    """The slots of a pass of the V2 runner, and the number of tokens of each; one row of logits for each request."""
    slots = np.asarray(context.idx_mapping_np).tolist()
    return slots, np.asarray(context.seq_lens_upper_bound_np)[: len(slots)].tolist()


# Canonical sampling in vLLM: for requests that ask for it, every logit except that of the canonical choice becomes −∞.
#
# vLLM's own steps after a logits processor (penalties, temperature, top-k, top-p, min-p, draw) can then choose only
# that token. A request asks with `vllm_xargs: {"tally": 1}` and a seed; the sampler has the settings of the request.
# What vLLM has applied before, which differs between its runners, is not applied again (`batches`).


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
        self.batch, self.slots = _RowBatch(), None if is_pin_memory is not None else _SlotBatch(place)
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
