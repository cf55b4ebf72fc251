"""Rows of hidden states and logits from which the tokens of running requests are chosen, until a receipt needs them.

Rows are in host memory, in one tensor for each layer with a fixed number of rows. Every pass adds the rows of all its
requests with one copy. A request's rows are taken when it has finished, or dropped; if there is no space for new rows,
the request whose rows were added longest ago loses its rows first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from tallystick.core.errors import UnavailableError

HELD_BYTES_MAX: Final = 1 << 30
"""The memory for rows, if nothing else is asked for."""
PLACE_BYTES: Final = 1 << 12
"""What a row counts where no layer is recorded."""
Rows = Mapping[int, torch.Tensor]


@dataclass(frozen=True)
class Staged:
    """Rows that are on their way to host memory, and where they go; `is_there` is an event of the device."""

    slots: torch.Tensor
    rows: Rows
    is_there: Any = None

    @classmethod
    def of(cls, slots: Sequence[int], rows: Rows) -> Staged:
        """Start the copy of `rows` by layer [len(slots), width]; on CUDA nothing waits for it here."""
        if not any(each.is_cuda for each in rows.values()):
            return cls(torch.tensor(slots), {layer: each.cpu() for layer, each in rows.items()})
        held = {layer: torch.empty_like(each, device="cpu", pin_memory=True) for layer, each in rows.items()}
        for layer, each in rows.items():
            held[layer].copy_(each, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return cls(torch.tensor(slots), held, event)


@dataclass
class HiddenRows:
    """At most `bytes_max` bytes of rows of the requests that run."""

    bytes_max: int = HELD_BYTES_MAX
    _held: dict[int, torch.Tensor] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)
    _requests: OrderedDict[str, list[int]] = field(default_factory=OrderedDict)
    _largest: dict[str, int] = field(default_factory=dict)
    _staged: Staged | None = None

    @property
    def requests(self) -> tuple[str, ...]:
        """The requests of which rows are held."""
        return tuple(self._requests)

    def largest(self, request: str) -> int:
        """The largest batch of a pass that added to the rows of a request; raises `UnavailableError` without rows."""
        if request not in self._largest:
            raise UnavailableError(f"request {request}: no rows are held")
        return self._largest[request]

    def add(self, requests: Sequence[str], positions: Sequence[int], rows: Rows, batch: int | None = None) -> None:
        """Add the rows of a pass by layer [len(requests), width]: `positions` has the index of each in its answer.

        `batch` is the number of requests in the pass, if others were in it too.

        A row at a position that is held already takes its place: the parts of a prompt come before the row that counts,
        and a preempted request is fed again. A row behind one that is not held is of a request that was taken or
        dropped; it is left out.
        """
        self._land()
        if not self._free and not self._requests:
            self._reserve(rows)
        asked = enumerate(zip(requests, positions, strict=True))
        slots = {place: self._slot(*each) for place, each in asked if self._begins_or_continues(*each)}
        kept = [place for place in slots if requests[place] in self._requests]
        for name in {requests[place] for place in kept}:
            self._largest[name] = max(self._largest.get(name, 1), batch or len(requests))
        if kept:
            chosen = rows if len(kept) == len(requests) else {layer: each[kept] for layer, each in rows.items()}
            self._staged = Staged.of([slots[place] for place in kept], chosen)

    def take(self, request: str, tokens: int) -> dict[int, torch.Tensor]:
        """The first rows [tokens, width] by layer of a request, which is then dropped.

        Raises `UnavailableError` if some are missing.
        """
        self._land()
        slots = self._requests.get(request, [])
        if len(slots) < tokens:
            raise UnavailableError(f"request {request}: {len(slots)} rows are held for {tokens} tokens")
        places = torch.tensor(slots[:tokens])
        found = {layer: each[places] for layer, each in self._held.items()}
        self.drop(request)
        return found

    def drop(self, request: str) -> None:
        """Free the rows of a request; does nothing if there are none."""
        self._land()
        self._free += reversed(self._requests.pop(request, []))
        self._largest.pop(request, None)

    def _begins_or_continues(self, request: str, position: int) -> bool:
        if position == 0:
            self._requests.setdefault(request, [])
        return request in self._requests and position <= len(self._requests[request])

    def _slot(self, request: str, position: int) -> int:
        """Where the row of a request goes. A later row of the same pass may drop this request to have space."""
        self._requests.move_to_end(request)
        slots = self._requests[request]
        if position == len(slots):
            if not self._free:
                self.drop(next(iter(self._requests)))
            slots.append(self._free.pop())
        return slots[position]

    def _reserve(self, rows: Rows) -> None:
        size = sum(each.shape[1] * each.element_size() for each in rows.values()) or PLACE_BYTES
        count = max(1, self.bytes_max // size)
        self._held = {layer: torch.empty((count, each.shape[1]), dtype=each.dtype) for layer, each in rows.items()}
        self._free = list(range(count - 1, -1, -1))

    @torch.inference_mode()
    def _land(self) -> None:
        """Put the rows of the last pass in their places."""
        if self._staged is None:
            return
        staged, self._staged = self._staged, None
        if staged.is_there is not None:
            staged.is_there.synchronize()
        for layer, each in staged.rows.items():
            self._held[layer].index_copy_(0, staged.slots, each)
