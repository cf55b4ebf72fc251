"""Two model runners: one keeps rows of a batch, the other keeps slots. Both feed prompts a few positions at a time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from vllm.model import Model
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext

CHUNK, CONTEXT = 4, 64


@dataclass
class Row:
    """A request in the batch."""

    name: str
    params: Any
    prompt: list[int]
    answer: list[int] = field(default_factory=list)
    computed: int = 0
    limit: int = 0

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.answer

    @property
    def is_over(self) -> bool:
        return len(self.answer) == self.limit


class RunnerV1:
    """Tells its processors which rows of the batch were removed, added and moved."""

    def __init__(self, types: list[type], config: Any, limit: int) -> None:
        torch.manual_seed(0)
        self._model, self._limit, self.luck, self.device = Model().eval(), limit, random.Random(1), torch.device("cpu")
        self._processors = [each(config, self.device, False) for each in types]
        processors = SimpleNamespace(all=self._processors)
        self.input_batch = SimpleNamespace(req_ids=[], generators={}, logitsprocs=processors)
        self.query_start_loc = SimpleNamespace(gpu=torch.zeros(limit + 1, dtype=torch.int32))
        self.attn_groups = attention()
        self.batch: list[Row] = []

    def get_model(self) -> Model:
        return self._model

    def update(self, waiting: list[Row]) -> None:
        """Remove what is over, add what waits in its place or behind, and let two rows change places."""
        removed = [index for index, row in enumerate(self.batch) if row.is_over]
        places, added, moved = list(removed), [], []
        slots: list[Row | None] = [None if row.is_over else row for row in self.batch]
        while waiting and sum(row is not None for row in slots) < self._limit:
            index = places.pop(0) if places else len(slots)
            slots[index : index + 1] = [waiting.pop(0)]
            row = slots[index]
            added.append((index, row.params, row.prompt, row.answer))
        while None in slots:
            last = slots.pop()
            if last is not None:
                hole = slots.index(None)
                slots[hole] = last
                moved.append((len(slots), hole, MoveDirectionality.UNIDIRECTIONAL))
        if len(slots) > 1 and self.luck.random() < 0.5:
            first, second = self.luck.sample(range(len(slots)), 2)
            slots[first], slots[second] = slots[second], slots[first]
            moved.append((first, second, MoveDirectionality.SWAP))
        self.batch = [row for row in slots if row is not None]
        changed = BatchUpdate(len(self.batch), removed, added, moved) if removed or added or moved else None
        for processor in self._processors:
            processor.update_state(changed)

    def preempt(self) -> Row | None:
        """Take a request out of the batch, to be fed again with what it has answered; its list of tokens is a new one.

        As vLLM, it goes with the changes that are told before the next pass.
        """
        if not (able := [index for index, row in enumerate(self.batch) if not row.is_over]):
            return None
        index = self.luck.choice(able)
        row = self.batch[index]
        self.batch[index] = Row(row.name, row.params, row.prompt, row.answer, row.computed, len(row.answer))
        return Row(row.name, row.params, row.prompt, list(row.answer), 0, row.limit)

    def step(self) -> None:
        fed, ends, hidden = passed(self._model, self.batch, self.query_start_loc.gpu)
        self.input_batch.req_ids = [row.name for row in self.batch]
        self.input_batch.generators = dict.fromkeys(range(len(self.batch)))
        logits = self._model.compute_logits(hidden[ends]).float()
        for row, scores in zip(self.batch, logits, strict=True):
            shift(scores, row.params)
        for processor in self._processors:
            logits = processor.apply(logits)
        for row, scores in zip(self.batch, logits, strict=True):
            penalise(scores, row)
        choose(self.batch, fed, logits)
        self._model.compute_logits(hidden[: len(self.batch)])  # as for probabilities of prompts


class RunnerV2:
    """Gives every request a slot, and tells its processors with every pass which slot stands in which row."""

    def __init__(self, types: list[type], config: Any, limit: int) -> None:
        torch.manual_seed(0)
        self._model, self.luck, self.device = Model().eval(), random.Random(1), torch.device("cpu")
        self.req_states = SimpleNamespace(
            index_to_req_id={},
            prompt_len=SimpleNamespace(np=np.zeros(limit, np.int32)),
            all_token_ids=SimpleNamespace(gpu=torch.zeros(limit, CONTEXT, dtype=torch.int32)),
        )
        self._processors = [each(config, self.req_states) for each in types]
        self.sampler = SimpleNamespace(logits_processors=self._processors)
        self.input_buffers = SimpleNamespace(query_start_loc=torch.zeros(limit + 1, dtype=torch.int32))
        self.attn_groups = attention()
        self._free, self._slots = list(range(limit)), dict[str, int]()
        self.batch: list[Row] = []

    def get_model(self) -> Model:
        return self._model

    def update(self, waiting: list[Row]) -> None:
        """Free the slots of what is over, and give slots to what waits; rows stand in another order every time."""
        for row in [row for row in self.batch if row.is_over]:
            self._leave(row)
        while waiting and self._free:
            row = waiting.pop(0)
            slot = self._slots[row.name] = self._free.pop()
            self.req_states.index_to_req_id[slot] = row.name
            self.req_states.prompt_len.np[slot] = len(row.prompt)
            for processor in self._processors:
                processor.add_request(slot, row.params)
            self.batch.append(row)
        self.luck.shuffle(self.batch)

    def preempt(self) -> Row | None:
        if not (able := [row for row in self.batch if not row.is_over]):
            return None
        self._leave(row := self.luck.choice(able))
        return Row(row.name, row.params, row.prompt, list(row.answer), 0, row.limit)

    def step(self) -> None:
        fed, ends, hidden = passed(self._model, self.batch, self.input_buffers.query_start_loc)
        slots = [self._slots[row.name] for row in self.batch]
        for slot, row in zip(slots, self.batch, strict=True):
            self.req_states.all_token_ids.gpu[slot, : len(row.tokens)] = torch.tensor(row.tokens, dtype=torch.int32)
        lengths = [row.computed + len(ids) for row, ids in zip(self.batch, fed, strict=True)]
        context = LogitsContext(np.array(slots), np.array(lengths))
        logits = self._model.compute_logits(hidden[ends]).float().clone()
        for row, scores in zip(self.batch, logits, strict=True):
            shift(scores, row.params)
            penalise(scores, row)
        for processor in self._processors:
            logits = processor.apply(logits, context)
        choose(self.batch, fed, logits)

    def _leave(self, row: Row) -> None:
        self.batch.remove(row)
        self._free.append(self._slots.pop(row.name))


def attention() -> list[list[Any]]:
    return [[SimpleNamespace(backend=SimpleNamespace(get_name=lambda: "STUB_ATTN"))]]


def passed(model: Model, batch: list[Row], starts: torch.Tensor) -> tuple[list[list[int]], torch.Tensor, torch.Tensor]:
    """The tokens that a pass feeds of each request, the last position of each, and the states of all positions."""
    fed = [row.tokens[row.computed : row.computed + CHUNK] for row in batch]
    ends = torch.tensor([0, *map(len, fed)]).cumsum(0)
    starts[: len(ends)], starts[len(ends) :] = ends.int(), int(ends[-1])
    positions = [row.computed + place for row, ids in zip(batch, fed, strict=True) for place in range(len(ids))]
    return fed, ends[1:] - 1, model(torch.tensor([token for ids in fed for token in ids]), torch.tensor(positions))


def choose(batch: list[Row], fed: list[list[int]], logits: torch.Tensor) -> None:
    """Draw the tokens of the requests that are fed whole."""
    for row, ids, scores in zip(batch, fed, logits, strict=True):
        row.computed += len(ids)
        if row.computed == len(row.tokens):
            row.answer.append(drawn(scores, row))


def shift(scores: torch.Tensor, params: Any) -> None:
    """Biases, and −∞ for tokens that are not allowed."""
    for token, bias in (params.logit_bias or {}).items():
        scores[token] += bias
    if params.allowed_token_ids:
        scores[[token for token in range(len(scores)) if token not in params.allowed_token_ids]] = -torch.inf


def penalise(scores: torch.Tensor, row: Row) -> None:
    """The repetition penalty, then those for tokens of the answer."""
    seen, penalty = torch.tensor(sorted(set(row.tokens))), row.params.repetition_penalty
    scores[seen] = torch.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
    times = torch.bincount(torch.tensor(row.answer, dtype=torch.int64), minlength=len(scores))
    scores -= row.params.frequency_penalty * times + row.params.presence_penalty * (times > 0)


def drawn(scores: torch.Tensor, row: Row) -> int:
    if row.params.temperature == 0:
        return int(scores.argmax())
    return int(torch.multinomial(torch.softmax(scores / row.params.temperature, -1), 1))
