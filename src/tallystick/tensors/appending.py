"""Writes a safetensors file tensor by tensor: the tensors lie in the order in which they come.

The header stands first and names places that are known last. So room for the largest header that is possible is left at
the beginning, and the header is padded with spaces to fill it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tallystick.errors import UnavailableError
from tallystick.tensors.safetensors import (
    ALIGNMENT,
    LENGTH_BYTES,
    Placement,
    check_booleans,
    encode_placements,
)
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor

BUFFER_BYTES: Final = 1 << 20


class AppendedState:
    """A new safetensors file; a context manager, which writes the header unless the block fails.

    It takes tensors with names of `name_bytes` ASCII characters, at most one for each of `specs`. The same tensors in
    the same order give the same bytes. A crash leaves a file that no reader takes. Raises `UnavailableError` if the
    file cannot be written.
    """

    def __init__(self, path: Path, specs: Iterable[TensorSpec], name_bytes: int) -> None:
        self._name, self._placed, self._position = path.name, dict[str, Placement](), 0
        self._room = _header_bytes_max(tuple(specs), name_bytes)
        try:
            self._file = path.open("wb", buffering=BUFFER_BYTES)
            self._file.write(bytes(LENGTH_BYTES + self._room))
        except OSError as error:
            raise self._refused(error) from error

    def __contains__(self, name: str) -> bool:
        """Whether a tensor of this name was written."""
        return name in self._placed

    def append(self, name: str, tensor: Tensor) -> None:
        """Write a tensor behind the others, once under each name.

        Raises `MalformedError` if a boolean is neither 0 nor 1, `UnavailableError` if the file cannot be written.
        """
        assert name not in self._placed
        check_booleans(name, tensor)
        end = self._position + tensor.nbytes
        self._placed[name] = Placement(tensor.dtype, tensor.shape, self._position, end)
        self._position = end
        try:
            self._file.write(tensor.data)
        except OSError as error:
            raise self._refused(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._file as file:
                if kind is None:
                    header = encode_placements(self._placed)
                    file.seek(0)
                    file.write(self._room.to_bytes(LENGTH_BYTES, "little") + header.ljust(self._room))
        except OSError as failed:
            raise self._refused(failed) from failed

    def _refused(self, error: OSError) -> UnavailableError:
        return UnavailableError(f"{self._name}: could not be written: {error.strerror}")


def _header_bytes_max(specs: tuple[TensorSpec, ...], name_bytes: int) -> int:
    """The most bytes of a header for tensors of these specs, wherever they lie."""
    last = sum(spec.nbytes for spec in specs)
    size = len("{}") + sum(_entry_bytes(spec) for spec in specs) + len(specs) * (name_bytes + 2 * len(str(last)))
    return size + -size % ALIGNMENT


@lru_cache(maxsize=1 << 12)
def _entry_bytes(spec: TensorSpec) -> int:
    """The bytes of one entry without its name and its two offsets."""
    shape = ",".join(map(str, spec.shape))
    return len(f'"":{{"data_offsets":[,],"dtype":"{spec.dtype}","shape":[{shape}]}},')
