"""Digests every value of an execution, and writes those that are wanted into one file.

Digests take longer than many operators. So other threads compute them while the engine goes on, and values lie in the
file in the order in which they were given, whichever digest is ready first.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from tallystick.commitments.digests import Digest
from tallystick.graphs.engine import Arguments, Engine
from tallystick.graphs.graph import Node, Ref
from tallystick.judging.opening.values import value_name
from tallystick.tensors.appending import AppendedState
from tallystick.tensors.digest import GROUP_BYTES, tensor_digest
from tallystick.tensors.tensor import Tensor

SMALL_BYTES: Final = 1 << 17
"""A value of fewer bytes is digested in less time than it takes to hand it to another thread."""
WAITING_BYTES_MAX: Final = 32 << 20
"""The bytes of values that wait for their digests, or to be written; the engine waits where there are more.

More would keep the engine from taking the same memory again, and new memory has to be cleared first.
"""


class ValueNoting:
    """Watches an execution: `digests` are those of all values, and `file` receives those that are `wanted`, once each.

    A context manager. Everything is digested and written when its block ends.
    """

    def __init__(self, engine: Engine, file: AppendedState | None, wanted: Collection[Ref]) -> None:
        self.digests: dict[Ref, Digest] = {}
        self._engine, self._file, self._wanted = engine, file, frozenset(wanted)
        self._pool = ThreadPoolExecutor(os.cpu_count(), "digests")
        self._waiting: deque[tuple[Ref, Tensor, Callable[[], Digest]]] = deque()
        self._bytes = 0

    def __call__(self, node: Node, _arguments: Arguments, results: tuple[Any, ...]) -> None:
        """Note the results of a node: what `execute` calls."""
        for ref, spec, array in zip(node.outputs, node.results, results, strict=True):
            if ref is not None and spec is not None:
                self.note(ref, self._engine.unload(array, spec.dtype))

    def note(self, ref: Ref, tensor: Tensor) -> None:
        """Note one value, whose bytes nothing changes any more."""
        self._waiting.append((ref, tensor, self._digesting(tensor)))
        self._bytes += tensor.nbytes
        while self._bytes > WAITING_BYTES_MAX:
            self._finish_first()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while kind is None and self._waiting:
                self._finish_first()
        finally:
            self._pool.shutdown(cancel_futures=True)

    def _digesting(self, tensor: Tensor) -> Callable[[], Digest]:
        """What gives the digest of a value when its turn comes: now, on another thread, or then on all of them."""
        if tensor.nbytes > GROUP_BYTES:
            return partial(tensor_digest, tensor)
        if tensor.nbytes >= SMALL_BYTES:
            return self._pool.submit(tensor_digest, tensor, 1).result
        found = tensor_digest(tensor, 1)
        return lambda: found

    def _finish_first(self) -> None:
        ref, tensor, digesting = self._waiting.popleft()
        self._bytes -= tensor.nbytes
        found = digesting()
        self.digests[ref] = found
        if self._file is not None and ref in self._wanted and value_name(found) not in self._file:
            self._file.append(value_name(found), tensor)
