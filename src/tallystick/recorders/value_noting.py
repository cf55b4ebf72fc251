"""Digests every value of an execution, and writes those that are wanted into one file.

Digests take longer than many operators. So other threads compute them, and write, while the engine goes on. Values lie
in the file in the order in which they were given, whichever digest is ready first. A value that is a view of the bytes
of another one, such as its transpose's transpose, is not hashed again.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from tallystick.commitments.digests import Digest
from tallystick.commitments.tree import Hash
from tallystick.graphs.engine import Arguments, Engine, PlacesArrays
from tallystick.graphs.graph import Node, Ref
from tallystick.judging.opening.values import value_name
from tallystick.tensors.appending import AppendedState
from tallystick.tensors.digest import GROUP_BYTES, TensorDigest, digest_tensor
from tallystick.tensors.tensor import Tensor

BATCH_BYTES: Final = 4 << 20
BATCH_MAX: Final = 256
"""Values of so many bytes, or so many values, are handed to another thread at once: it takes time to wake one."""
WAITING_BYTES_MAX: Final = 32 << 20
"""The bytes of values that wait for their digests, or to be written; the engine waits where there are more.

More would keep the engine from taking the same memory again, and new memory has to be cleared first.
"""


@dataclass(frozen=True)
class _Noted:
    """A value, and the hashes of its chunks once they are computed: here, or where the same bytes were noted before."""

    ref: Ref
    tensor: Tensor
    chunks: list[Hash]
    is_new: bool

    def hash(self) -> None:
        if self.is_new:
            is_large = self.tensor.nbytes > GROUP_BYTES
            self.chunks.extend(digest_tensor(self.tensor, None if is_large else 1).chunks)

    def name(self) -> Digest:
        return TensorDigest(self.tensor.dtype, self.tensor.shape, tuple(self.chunks)).digest


class ValueNoting:
    """Watches an execution: `digests` are those of all values, and `file` receives those that are `wanted`, once each.

    A context manager. Everything is digested and written when its block ends.
    """

    def __init__(self, engine: Engine, file: AppendedState | None, wanted: Collection[Ref]) -> None:
        self.digests: dict[Ref, Digest] = {}
        self._engine, self._file, self._wanted = engine, file, frozenset(wanted)
        self._placing = engine if isinstance(engine, PlacesArrays) else None
        self._placed: dict[tuple[int, int], tuple[weakref.ref[Any], list[Hash]]] = {}
        self._sources: dict[Ref, tuple[int, list[Hash]]] = {}
        self._hashing = ThreadPoolExecutor(os.cpu_count(), "digests")
        self._writing = ThreadPoolExecutor(1, "values")
        self._batch: list[_Noted] = []
        self._batch_bytes = self._bytes = 0
        self._waiting: deque[tuple[int, Future[None]]] = deque()

    def __call__(self, node: Node, arguments: Arguments, results: tuple[Any, ...]) -> None:
        """Note the results of a node: what `execute` calls."""
        if self._sources:
            self._place_sources(node, arguments)
        for ref, spec, array in zip(node.outputs, node.results, results, strict=True):
            if ref is not None and spec is not None:
                tensor, own = self._engine.unload(array, spec.dtype), list[Hash]()
                chunks = self._at(array, tensor.nbytes, own)
                self._add(_Noted(ref, tensor, chunks, is_new=chunks is own))

    def note(self, ref: Ref, tensor: Tensor, known: TensorDigest | None = None) -> None:
        """Note an input of the execution, whose bytes nothing changes any more, with its digest if that is known."""
        found = _Noted(ref, tensor, list(known.chunks if known else ()), is_new=known is None)
        self._sources[ref] = tensor.nbytes, found.chunks
        self._add(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._hand_over()
                while self._waiting:
                    self._wait_for_first()
        finally:
            self._hashing.shutdown(cancel_futures=True)
            self._writing.shutdown(cancel_futures=True)

    def _place_sources(self, node: Node, arguments: Arguments) -> None:
        """Where the engine put the inputs that a node reads: some results are views of them."""
        for name, operand in node.operands.items():
            if isinstance(operand, str) and operand in self._sources:
                self._at(arguments[name], *self._sources.pop(operand))

    def _at(self, array: Any, size: int, own: list[Hash]) -> list[Hash]:
        """The hashes of the bytes of an array: those of an earlier value if they are the same bytes, else its `own`."""
        address = self._placing.place(array) if self._placing is not None else None
        if not address:
            return own
        found = self._placed.get((address, size))
        if found is not None and found[0]() is not None:  # an array that is still held has moved nowhere
            return found[1]
        self._placed[address, size] = (weakref.ref(array), own)
        return own

    def _add(self, noted: _Noted) -> None:
        self._batch.append(noted)
        self._batch_bytes += noted.tensor.nbytes
        if self._batch_bytes >= BATCH_BYTES or len(self._batch) >= BATCH_MAX:
            self._hand_over()
            while self._bytes > WAITING_BYTES_MAX and len(self._waiting) > 1:
                self._wait_for_first()

    def _hand_over(self) -> None:
        batch, size, self._batch, self._batch_bytes = self._batch, self._batch_bytes, [], 0
        hashed = self._hashing.submit(_hash_all, batch)
        self._waiting.append((size, self._writing.submit(self._finish, batch, hashed)))
        self._bytes += size

    def _wait_for_first(self) -> None:
        size, finished = self._waiting.popleft()
        self._bytes -= size
        finished.result()

    def _finish(self, batch: Sequence[_Noted], hashed: Future[None]) -> None:
        """Name the values of a batch and write them; batches are finished in their order."""
        hashed.result()
        for noted in batch:
            self.digests[noted.ref] = found = noted.name()
            if self._file is not None and noted.ref in self._wanted and value_name(found) not in self._file:
                self._file.append(value_name(found), noted.tensor)


def _hash_all(batch: Sequence[_Noted]) -> None:
    for noted in batch:
        noted.hash()
