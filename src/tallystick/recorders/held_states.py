"""A cache of committed hidden states for challenges: the latest in memory, older ones on disk if there is a place."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from tallystick.errors import UnavailableError
from tallystick.store.spilled_states import SpilledStates
from tallystick.workloads.hidden_states import CommittedStates

HELD_BYTES_MAX: Final = 1 << 30
HASH_BYTES: Final = 32


class HeldStates:
    """States by request, at most `bytes_max` bytes in memory; the oldest leave first, and larger states at once.

    What leaves goes to `spilled`, or is dropped.
    """

    def __init__(self, bytes_max: int = HELD_BYTES_MAX, spilled: SpilledStates | None = None) -> None:
        self.bytes_max, self._spilled = bytes_max, spilled
        self._held: OrderedDict[str, CommittedStates] = OrderedDict()
        self._bytes, self._lock = 0, threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def size_bytes(self) -> int:
        """The bytes in use, by states and by the hashes of their leaves."""
        return self._bytes

    def hold(self, request_id: str, states: CommittedStates) -> None:
        """Keep the states of a request, and drop earlier states of the same request."""
        leaving: list[tuple[str, CommittedStates]] = []
        with self._lock:
            self._drop(request_id)
            self._held[request_id] = states
            self._bytes += _size(states)
            if _size(states) > self.bytes_max:
                leaving.append(self._oldest(request_id))
            while self._bytes > self.bytes_max:
                leaving.append(self._oldest(next(iter(self._held))))
        self._spill(leaving)

    def of(self, request_id: str) -> CommittedStates:
        """The states of a request; raises `UnavailableError` if they were dropped or never kept."""
        with self._lock:
            states = self._held.get(request_id)
        if states is None and self._spilled is not None:
            states = self._spilled.of(request_id)
        if states is None:
            disk = "" if self._spilled is None else f" in memory and {self._spilled.bytes_max} on disk"
            raise UnavailableError(
                f"the hidden states of request {request_id} are not held: "
                f"only the latest are, up to {self.bytes_max} bytes{disk}"
            )
        return states

    def close(self) -> None:
        """Write what is in memory to disk, if there is a place for it, so that a restarted server has it."""
        if self._spilled is None:
            return
        with self._lock:
            leaving = [self._oldest(each) for each in [*self._held]]
        self._spill(leaving)
        self._spilled.close()

    def _oldest(self, request_id: str) -> tuple[str, CommittedStates]:
        states = self._held[request_id]
        self._drop(request_id)
        return request_id, states

    def _spill(self, leaving: list[tuple[str, CommittedStates]]) -> None:
        if self._spilled is not None:
            for request_id, states in leaving:
                self._spilled.take(request_id, states)

    def _drop(self, request_id: str) -> None:
        states = self._held.pop(request_id, None)
        self._bytes -= 0 if states is None else _size(states)


def _size(states: CommittedStates) -> int:
    return states.size_bytes + HASH_BYTES * len(states.leaves)
