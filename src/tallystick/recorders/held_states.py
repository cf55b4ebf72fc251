"""A cache of committed hidden states for challenges: the latest ones, up to a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from tallystick.errors import UnavailableError
from tallystick.workloads.hidden_states import CommittedStates

HELD_BYTES_MAX: Final = 1 << 30
HASH_BYTES: Final = 32


class HeldStates:
    """States by request, at most `bytes_max` bytes. The oldest are dropped first; larger states are not kept at all."""

    def __init__(self, bytes_max: int = HELD_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
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
        with self._lock:
            self._drop(request_id)
            if _size(states) > self.bytes_max:
                return
            self._held[request_id] = states
            self._bytes += _size(states)
            while self._bytes > self.bytes_max:
                self._drop(next(iter(self._held)))

    def of(self, request_id: str) -> CommittedStates:
        """The states of a request; raises `UnavailableError` if they were dropped or never kept."""
        with self._lock:
            states = self._held.get(request_id)
        if states is None:
            raise UnavailableError(
                f"the hidden states of request {request_id} are not held: "
                f"only the latest are, up to {self.bytes_max} bytes"
            )
        return states

    def _drop(self, request_id: str) -> None:
        states = self._held.pop(request_id, None)
        self._bytes -= 0 if states is None else _size(states)


def _size(states: CommittedStates) -> int:
    return states.size_bytes + HASH_BYTES * len(states.leaves)
