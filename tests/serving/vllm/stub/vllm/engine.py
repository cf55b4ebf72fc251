"""A batch of requests over a tiny model of position-wise blocks: rows come, go and change places as in vLLM.

Prompts are fed a few positions at a time. Behind the logits processors come penalty, temperature and draw.
"""

from __future__ import annotations

import importlib
import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from vllm.forward_context import AttentionMetadata, get_forward_context
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

VOCABULARY, WIDTH, LAYERS, CHUNK = 64, 16, 3, 4


@dataclass
class SamplingParams:
    """What a request asks for."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int = 16
    extra_args: dict[str, Any] | None = None


class Block(nn.Module):
    """Output and residual apart, to be added by the next."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        residual = hidden if residual is None else hidden + residual
        return torch.tanh(self.linear(residual)), residual


class Norm(nn.Module):
    """Adds, normalises, and gives the sum too."""

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = hidden + residual
        return total / total.norm(dim=-1, keepdim=True), total


class Model(nn.Module):
    """`model.embed`, `model.layers`, `model.norm`, and logits from chosen rows."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.model.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.model.norm = Norm()
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden, residual = self.model.embed(ids) + positions[:, None] * 0.01, None
        for block in self.model.layers:
            hidden, residual = block(hidden, residual)
        return self.model.norm(hidden, residual)[0]

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.head(hidden_states) * 8


@dataclass
class Row:
    """A request in the batch."""

    name: str
    params: SamplingParams
    prompt: list[int]
    answer: list[int] = field(default_factory=list)
    computed: int = 0

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.answer

    @property
    def is_over(self) -> bool:
        return len(self.answer) == self.params.max_tokens


class LLM:
    """Offline generation with at most `rows` requests at once."""

    def __init__(self, logits_processors: list[type], worker_extension_cls: str = "", rows: int = 3) -> None:
        torch.manual_seed(0)
        module, _, name = worker_extension_cls.rpartition(".")
        extension = getattr(importlib.import_module(module), name) if module else object
        self.model = Model().eval()
        self.worker = type("Worker", (extension,), {})()
        self.worker.model_runner = SimpleNamespace(model=self.model, input_batch=SimpleNamespace(req_ids=[]))
        self._types, self._limit, self._luck = logits_processors, rows, random.Random(1)
        self._processors = [each(None, torch.device("cpu"), False) for each in logits_processors]
        self._batch: list[Row] = []

    def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        """The results of a method of every worker."""
        return [getattr(self.worker, method)(*args)]

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], params: list[SamplingParams]) -> list[Any]:
        """Answers in the order of the prompts."""
        for kind in self._types:
            for each in params:
                kind.validate_params(each)
        rows = [Row(f"{number}", *asked) for number, asked in enumerate(zip(params, prompts, strict=True))]
        waiting = list(rows)
        while waiting or self._batch:
            self._update(waiting)
            if self._batch:
                self._step()
        return [self._output(row) for row in rows]

    def _update(self, waiting: list[Row]) -> None:
        """Remove what is over, add what waits in its place or behind, and let two rows change places."""
        removed = [index for index, row in enumerate(self._batch) if row.is_over]
        places, added, moved = list(removed), [], []
        slots: list[Row | None] = [None if row.is_over else row for row in self._batch]
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
        if len(slots) > 1 and self._luck.random() < 0.5:
            first, second = self._luck.sample(range(len(slots)), 2)
            slots[first], slots[second] = slots[second], slots[first]
            moved.append((first, second, MoveDirectionality.SWAP))
        self._batch = [row for row in slots if row is not None]
        changed = BatchUpdate(len(self._batch), removed, added, moved) if removed or added or moved else None
        for processor in self._processors:
            processor.update_state(changed)

    def _step(self) -> None:
        fed = [row.tokens[row.computed : row.computed + CHUNK] for row in self._batch]
        starts = [row.computed for row in self._batch]
        positions = [start + place for start, ids in zip(starts, fed, strict=True) for place in range(len(ids))]
        ends = torch.tensor([0, *map(len, fed)]).cumsum(0)
        get_forward_context().attn_metadata = {"layer": AttentionMetadata(ends.int())}
        self.worker.model_runner.input_batch.req_ids = [f"{row.name}-internal" for row in self._batch]
        hidden = self.model(torch.tensor([token for ids in fed for token in ids]), torch.tensor(positions))
        logits = self.model.compute_logits(hidden[ends[1:] - 1]).float()
        for processor in self._processors:
            logits = processor.apply(logits)
        for row, ids, scores in zip(self._batch, fed, logits, strict=True):
            row.computed += len(ids)
            if row.computed == len(row.tokens):
                row.answer.append(_drawn(scores, row))

    def _output(self, row: Row) -> Any:
        answer = SimpleNamespace(token_ids=row.answer, finish_reason="length", stop_reason=None)
        return SimpleNamespace(request_id=row.name, prompt_token_ids=row.prompt, outputs=[answer])


def _drawn(scores: torch.Tensor, row: Row) -> int:
    seen = torch.tensor(sorted(set(row.tokens)))
    penalty = row.params.repetition_penalty
    scores[seen] = torch.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
    if row.params.temperature == 0:
        return int(scores.argmax())
    return int(torch.multinomial(torch.softmax(scores / row.params.temperature, -1), 1))
