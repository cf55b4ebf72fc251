"""Continuous batching: answers join and leave a running batch, whose cache is padded on the left."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import torch
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from tallystick.core.errors import TallyError, UnavailableError
from tallystick.engines.tokenizers import REFUSALS
from tallystick.engines.torch.generation.language_models import TorchLanguageModel
from tallystick.engines.torch.generation.layer_tap import LayerTap
from tallystick.engines.torch.generation.sampler import TorchSampler
from tallystick.formats.fingerprints import PUBLIC_SEED
from tallystick.recording.serving.jobs import BusyError, Failed, Job, Slot

# Keys and values of sequences of different lengths in one batch, padded on the left.

Layer = tuple[torch.Tensor, torch.Tensor]


class PaddedCache:
    """The KV cache of a batch; between forward passes, rows can be removed and added.

    `lengths` counts the tokens of each sequence. `cache` is what a model of transformers reads and extends: per layer,
    keys and values [rows, heads, longest, head width], each sequence at the end of its row.
    """

    def __init__(self) -> None:
        self.cache: Any = DynamicCache()
        self.lengths: list[int] = []

    def join(self, prefilled: Sequence[Any], lengths: Sequence[int]) -> None:
        """Append sequences as the last rows; each comes from its own cache with one row."""
        parts = [*([_layers(self.cache)] if self.lengths else []), *(_layers(each) for each in prefilled)]
        self.lengths += lengths
        longest = max(self.lengths)
        self.cache = DynamicCache([_stacked(same_layer, longest) for same_layer in zip(*parts, strict=True)])

    def keep(self, rows: Sequence[int]) -> None:
        """Keep `rows` in that order; drop the other rows and the padding that no row needs any more."""
        before = max(self.lengths, default=0)
        self.lengths = [self.lengths[row] for row in rows]
        if not rows:
            self.cache = DynamicCache()
            return
        spare = before - max(self.lengths)
        self.cache = DynamicCache(
            [(keys[list(rows), :, spare:], values[list(rows), :, spare:]) for keys, values in _layers(self.cache)]
        )

    def next_positions(self, device: str) -> torch.Tensor:
        """The position of each sequence's next token: I64 [rows, 1]."""
        return torch.tensor(self.lengths, device=device)[:, None]

    def next_mask(self, device: str) -> torch.Tensor:
        """The attention mask of the next pass, 1 where there is a token and 0 for padding: I64 [rows, longest + 1]."""
        longest = max(self.lengths)
        return (torch.arange(longest + 1, device=device) >= longest - self.next_positions(device)).long()

    def grow(self) -> None:
        """Count the token that a forward pass has added to every sequence."""
        self.lengths = [length + 1 for length in self.lengths]


def check_cache(cache: Any) -> None:
    """Raise `UnavailableError` unless every layer keeps all keys and values, so that rows can be padded and joined."""
    for number, layer in enumerate(cache.layers):
        if type(layer) is not DynamicLayer or not layer.is_initialized:
            raise UnavailableError(f"layer {number}: {type(layer).__name__} cannot be batched with other sequences")


def _layers(cache: Any) -> list[Layer]:
    return [(layer.keys, layer.values) for layer in cache.layers]


def _stacked(parts: Sequence[Layer], longest: int) -> Layer:
    keys, values = (
        torch.cat([pad(part[which], (0, 0, longest - part[which].shape[-2], 0)) for part in parts]) for which in (0, 1)
    )
    return keys, values


# Continuous batching: answers join and leave a running batch between two decode steps.
#
# A prompt is prefilled alone; then its keys and values join the batch, padded on the left. Every step feeds each row
# its last token, chooses the next token by the row's own sampler, and removes the rows that are finished.

FAILURES: Final = (TallyError, *REFUSALS)
STOPPING: Final = "the server is stopping"


class BatchingEngine:
    """Generates answers on its own thread, at most `rows` at once, with at most `queue` waiting.

    Hidden rows of `layers` are delivered with each answer, logits at the entries that `seed` draws; with
    `keeps_prompts`, those of the prompt too.

    A failing request ends with `Failed`; the others go on. A failing step ends its requests, but not the engine.
    """

    def __init__(
        self,
        language_model: TorchLanguageModel,
        *,
        rows: int = 16,
        queue: int = 128,
        layers: Collection[int] = (),
        seed: str = PUBLIC_SEED,
        keeps_prompts: bool = False,
    ) -> None:
        self._language_model = language_model
        self._rows, self._queue = rows, queue
        self._tap = LayerTap(language_model.model, layers, seed=seed)
        self._keeps_prompts = keeps_prompts
        self._waiting: deque[Slot] = deque()
        self._active: list[Slot] = []
        self._cache = PaddedCache()
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="batching", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the current step, end every request with `Failed`, and end the thread."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether the engine still answers requests."""
        return self._thread.is_alive() and not self._is_stopping

    @property
    def load(self) -> tuple[int, int]:
        """The number of requests in the batch, and of those that wait."""
        return len(self._active), len(self._waiting)

    def submit(self, jobs: Sequence[Job]) -> list[Slot]:
        """Queue all jobs or none; raises `BusyError` if the queue is full and `UnavailableError` after the stop."""
        slots = [Slot(job, self._language_model) for job in jobs]
        with self._changed:
            if not self.is_alive:
                raise UnavailableError(STOPPING)
            if len(self._waiting) + len(slots) > self._queue:
                raise BusyError(f"{len(self._waiting)} requests are waiting already")
            self._waiting.extend(slots)
            self._changed.notify()
        return slots

    def cancel(self, slots: Sequence[Slot]) -> None:
        """Cancel requests: waiting ones now, those in the batch before the next step."""
        with self._changed:
            for slot in slots:
                slot.is_cancelled = True
                if slot in self._waiting:
                    self._waiting.remove(slot)

    def _run(self) -> None:
        try:
            with torch.inference_mode(), self._tap:
                while self._wait():
                    self._turn()
        finally:
            self._is_stopping = True
            for slot in [*self._active, *self._waiting]:
                slot.tell(Failed(STOPPING))

    def _turn(self) -> None:
        """Add waiting requests, do one step, remove finished ones; a failure ends the requests of this batch only."""
        try:
            self._take_in()
            self._step()
            self._let_go()
        except FAILURES as error:
            failed, self._active, self._cache = self._active, [], PaddedCache()
            self._tap.clear()
            for slot in failed:
                slot.fail(error)

    def _wait(self) -> bool:
        """Sleep until there is work; returns false when the engine stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._active or self._waiting or self._is_stopping)
        return not self._is_stopping

    def _take_in(self) -> None:
        """Prefill waiting requests until the batch is full, then add them to the cache together."""
        joined: list[tuple[Slot, Any]] = []
        while len(self._active) + len(joined) < self._rows and (slot := self._next()):
            try:
                cache = self._prefill(slot)
            except FAILURES as error:
                self._tap.clear()
                slot.fail(error)
                continue
            if slot.finish is None:
                joined.append((slot, cache))
            else:
                slot.hand_over()
        if joined:
            self._active += [slot for slot, _ in joined]
            self._cache.join([cache for _, cache in joined], [len(slot.job.prompt) for slot, _ in joined])

    def _next(self) -> Slot | None:
        with self._changed:
            return self._waiting.popleft() if self._waiting else None

    def _prefill(self, slot: Slot) -> Any:
        """The keys and values of a prompt; also chooses the first token of the answer."""
        cache = DynamicCache()
        ids = torch.tensor([slot.job.prompt], device=self._language_model.device)
        output = self._language_model.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        check_cache(cache)
        hidden = self._hidden()
        if self._keeps_prompts:
            slot.prompt_rows = {layer: states[0, :-1] for layer, states in hidden.items()}
        last = {layer: states[0, -1].clone() for layer, states in hidden.items()}
        logits = output.logits[:, -1]
        slot.add(self._choose([slot], logits)[0], last, (slot.job.id,), logits[0])
        return cache

    def _step(self) -> None:
        """Generate one token for every row."""
        if not self._active:
            return
        logits, hidden = self._decode()
        batched = tuple(slot.job.id for slot in self._active)
        for row, (slot, token) in enumerate(zip(self._active, self._choose_apart(logits), strict=True)):
            if token is not None:
                rows = {layer: states[row, -1] for layer, states in hidden.items()}
                slot.add(token, rows, batched, logits[row])

    def _decode(self) -> tuple[torch.Tensor, Mapping[int, torch.Tensor]]:
        """The logits [rows, vocabulary] after the last token of every row, and the hidden states [rows, 1, width]."""
        device = self._language_model.device
        output = self._language_model.model(
            input_ids=torch.tensor([slot.history[-1:] for slot in self._active], device=device),
            attention_mask=self._cache.next_mask(device),
            position_ids=self._cache.next_positions(device),
            past_key_values=self._cache.cache,
            use_cache=True,
        )
        self._cache.grow()
        return output.logits[:, -1], self._hidden()

    def _hidden(self) -> Mapping[int, torch.Tensor]:
        return self._tap.take() if self._tap.layers else {}

    def _choose_apart(self, logits: torch.Tensor) -> list[int | None]:
        """A token for every row; `None` for a row whose sampler fails, which ends only that request."""
        try:
            return [*self._choose(self._active, logits)]
        except FAILURES:
            return [self._choose_alone(slot, logits[row : row + 1]) for row, slot in enumerate(self._active)]

    def _choose_alone(self, slot: Slot, logits: torch.Tensor) -> int | None:
        try:
            return self._choose([slot], logits)[0]
        except FAILURES as error:
            slot.fail(error)
            return None

    def _choose(self, slots: Sequence[Slot], logits: torch.Tensor) -> list[int]:
        sampler = TorchSampler([slot.job.sampler for slot in slots])
        masks = [slot.mask() for slot in slots]
        tokens = sampler.choose(logits, [slot.length for slot in slots], [slot.history for slot in slots], masks)
        chosen: list[int] = tokens.tolist()
        return chosen

    def _let_go(self) -> None:
        """Deliver the answers that are finished or cancelled, and remove their rows."""
        leaving = [slot for slot in self._active if slot.is_cancelled or slot.is_over or slot.finish]
        if not leaving:
            return
        kept = [row for row, slot in enumerate(self._active) if slot not in leaving]
        self._active = [self._active[row] for row in kept]
        self._cache.keep(kept)
        for slot in leaving:
            slot.hand_over()
