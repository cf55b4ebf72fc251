"""Which rows of a pass belong to requests that ask for canonical sampling, under each model runner of vLLM.

The V1 runner tells its processors which rows of the batch were removed, added and moved. The V2 runner gives every
request a slot, and says with every pass which slot stands in which row.

Both apply some settings before a user's processor: V1 biases and allowed tokens, V2 penalties too. What is left to be
applied is in the sampler of a row, so that all together is the sampler that the request states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tallystick.errors import UnavailableError
from tallystick.serving.vllm.grammar_rows import GrammarRow
from tallystick.serving.vllm.interface import BatchUpdate, MoveDirectionality
from tallystick.serving.vllm.request_settings import GRAMMAR, LISTS, PENALTIES, end_tokens_of, sampler_of, without
from tallystick.transcripts.sampler import Sampler


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


class RowBatch:
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


class SlotBatch:
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
