"""Committed hidden states on disk, for challenges that come when memory was needed for newer answers.

A request has two files: `<id>.safetensors` with the states and `<id>.json` with the commitment, written last. A thread
of its own writes, so that no answer waits for the disk. What is read is committed to again: states that do not give the
root are gone, and so are those that the disk had no room for.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tallystick.documents.files import read_document, write_atomically
from tallystick.errors import MalformedError, UnavailableError, UsageError
from tallystick.tensors.safetensors import read_state, write_state
from tallystick.transcripts.receipt import StatesCommitment
from tallystick.workloads.hidden_states import CommittedStates, commit_states

WAITING_BYTES_MAX: Final = 256 << 20
"""The most bytes that wait to be written; what comes on top of them is not kept."""
STATES: Final = ".safetensors"
STATEMENT: Final = ".json"
LOG: Final = logging.getLogger("tallystick.serving")


class SpilledStates:
    """States by request in a folder, at most `bytes_max` bytes; the oldest are deleted first, also those found there.

    Raises `UsageError` if the folder cannot be used.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self.folder, self.bytes_max = folder, bytes_max
        self._lock, self._pool = threading.Lock(), ThreadPoolExecutor(1, "states")
        self._waiting: dict[str, CommittedStates] = {}
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._has_warned = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._find()
        except OSError as error:
            raise UsageError(f"{folder}: states cannot be kept there: {error.strerror}") from None
        self._make_room()

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum(self._sizes.values())

    def take(self, request_id: str, states: CommittedStates) -> None:
        """Have states written soon; returns at once."""
        with self._lock:
            waiting = sum(each.size_bytes for each in self._waiting.values())
            if self._waiting and waiting + states.size_bytes > WAITING_BYTES_MAX:
                self._warn("the disk is slower than the answers")
                return
            self._waiting[request_id] = states
        self._pool.submit(self._write, request_id, states)

    def of(self, request_id: str) -> CommittedStates | None:
        """The states of a request; None if they are not there, or are not what was committed to."""
        with self._lock:
            if request_id in self._waiting:
                return self._waiting[request_id]
            if request_id not in self._sizes:
                return None
        try:
            return self._read(request_id)
        except (UnavailableError, MalformedError, UsageError, OSError) as error:
            LOG.warning("the states of %s in %s are lost: %s", request_id, self.folder, error)
            return None

    def close(self) -> None:
        """Wait until everything is written."""
        self._pool.shutdown()

    def _write(self, request_id: str, states: CommittedStates) -> None:
        path, statement = self._path(request_id, STATES), self._path(request_id, STATEMENT)
        try:
            if states.size_bytes <= self.bytes_max:
                write_state(path, {f"layer.{layer}": each for layer, each in states.states.items()}, durable=False)
                write_atomically(statement, states.statement.to_bytes(), durable=False)
                with self._lock:
                    self._sizes[request_id] = path.stat().st_size + statement.stat().st_size
                self._make_room()
        except (UnavailableError, OSError) as error:
            self._delete(request_id)
            self._warn(str(error))
        finally:
            with self._lock:
                self._waiting.pop(request_id, None)

    def _read(self, request_id: str) -> CommittedStates:
        place = self._path(request_id, STATEMENT)
        stated = StatesCommitment.from_bytes(read_document(place), place.name)
        held = read_state(self._path(request_id, STATES))
        if set(held) != {f"layer.{layer}" for layer in stated.layers}:
            raise MalformedError("not the layers of the commitment")
        rows = {layer: held[f"layer.{layer}"] for layer in stated.layers}
        found = commit_states(rows, stated.layers, stated.block, prompt=stated.prompt)
        if found.statement != stated:
            raise MalformedError("not the states of the commitment")
        return found

    def _find(self) -> None:
        """What an earlier server left; files without their other half are deleted."""
        pairs = {path.stem: path for path in self.folder.glob(f"*{STATEMENT}")}
        for path in self.folder.glob(f"*{STATES}"):
            if path.stem not in pairs:
                path.unlink()
        for name in sorted(pairs, key=lambda each: pairs[each].stat().st_mtime_ns):
            states = self._path(name, STATES)
            if states.is_file():
                self._sizes[name] = pairs[name].stat().st_size + states.stat().st_size
            else:
                pairs[name].unlink()

    def _make_room(self) -> None:
        while self.size_bytes > self.bytes_max:
            self._delete(next(iter(self._sizes)))

    def _delete(self, request_id: str) -> None:
        with self._lock:
            self._sizes.pop(request_id, None)
        for suffix in (STATEMENT, STATES):
            self._path(request_id, suffix).unlink(missing_ok=True)

    def _path(self, request_id: str, suffix: str) -> Path:
        return self.folder / f"{request_id}{suffix}"

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            LOG.warning("states of old answers are not kept in %s and cannot be challenged: %s", self.folder, reason)
        self._has_warned = True
