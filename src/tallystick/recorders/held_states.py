"""The committed hidden states that can still be challenged: the latest ones, within a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from tallystick.errors import UnavailableError
from tallystick.workloads.hidden_states import CommittedStates

HELD_BYTES_MAX: Final = 1 << 30
HASH_BYTES: Final = 32


class HeldStates:
    """States by request, `bytes_max` bytes at most: the oldest go first, and what is larger alone is not held."""

    def __init__(self, bytes_max: int = HELD_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._held: OrderedDict[str, CommittedStates] = OrderedDict()
        self._bytes, self._lock = 0, threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def size_bytes(self) -> int:
        """The bytes held: of states, and of the hashes of their leaves."""
        return self._bytes

    def hold(self, request_id: str, states: CommittedStates) -> None:
        """Hold the states of a request in the place of what was held of it."""
        with self._lock:
            self._let_go(request_id)
            if _size(states) > self.bytes_max:
                return
            self._held[request_id] = states
            self._bytes += _size(states)
            while self._bytes > self.bytes_max:
                self._let_go(next(iter(self._held)))

    def of(self, request_id: str) -> CommittedStates:
        """The states of a request; raises `UnavailableError` if they are not held."""
        with self._lock:
            found = self._held.get(request_id)
        if found is None:
            raise UnavailableError(
                f"the hidden states of request {request_id} are not held: "
                f"only the latest are, up to {self.bytes_max} bytes"
            )
        return found

    def _let_go(self, request_id: str) -> None:
        states = self._held.pop(request_id, None)
        self._bytes -= 0 if states is None else _size(states)


def _size(states: CommittedStates) -> int:
    return states.size_bytes + HASH_BYTES * len(states.leaves)
