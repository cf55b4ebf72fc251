"""Safetensors files: written in one canonical way, read through one strict door.

Layout: eight bytes with the length N of the header, N bytes of JSON, and the bytes of the tensors without holes.
A hole or a tail could hide a second document in the file; both are refused.
"""

from __future__ import annotations

import json
import mmap
import os
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tallystick.commitments import Json, encode, parse
from tallystick.errors import MalformedError, UnavailableError
from tallystick.tensors.dtypes import STORAGE, item_size
from tallystick.tensors.tensor import State, Tensor

HEADER_BYTES_MAX: Final = 16 << 20
LENGTH_BYTES: Final = 8
ALIGNMENT: Final = 8
DIMENSIONS_MAX: Final = 64


@dataclass(frozen=True)
class TensorSpec:
    """Where a tensor lies in a file: dtype, shape, first byte and the byte behind the last, from the data's start."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def encode_header(state: State) -> bytes:
    """The canonical header of a state: RFC 8785 JSON in sorted order, padded with spaces to eight bytes."""
    entries: dict[str, Json] = {}
    position = 0
    for name in sorted(state):
        tensor, end = state[name], position + state[name].nbytes
        entries[name] = {"data_offsets": [position, end], "dtype": tensor.dtype, "shape": list(tensor.shape)}
        position = end
    header = encode(entries)
    return header + b" " * (-len(header) % ALIGNMENT)


def write_state(path: Path, state: State) -> None:
    """Write a state so that the same tensors give the same bytes, and a crash leaves the old file or the new one."""
    header = encode_header(state)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("wb") as file:
        file.write(len(header).to_bytes(LENGTH_BYTES, "little") + header)
        for name in sorted(state):
            file.write(state[name].data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


class StateFile:
    """A safetensors file over its mapping; a context manager.

    With `canonical`, only the bytes that `write_state` would write are accepted.

    Raises:
        MalformedError: the header or the layout is not what it must be.
        UnavailableError: there is no such file.
    """

    def __init__(self, path: Path, *, header_bytes_max: int = HEADER_BYTES_MAX, canonical: bool = False) -> None:
        self._path = path
        if not path.is_file():
            raise UnavailableError(f"{path.name}: not there, or not a file (looked in {path.parent})")
        size = path.stat().st_size
        if size < LENGTH_BYTES:
            raise MalformedError(f"{path.name}: {size} bytes are too few for a safetensors file")
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if length > header_bytes_max:
                raise MalformedError(f"{path.name}: a header of {length} bytes, more than the {header_bytes_max} allowed")
            if LENGTH_BYTES + length > size:
                raise MalformedError(f"{path.name}: the header ends behind the file")
            header = file.read(length)
            self._start = LENGTH_BYTES + length
            self.specs = read_header(header, path.name, size - self._start)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if canonical:
            self._check_canonical(header)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors, sorted."""
        return tuple(sorted(self.specs))

    def tensor(self, name: str) -> Tensor:
        """One tensor over the mapping; copy it to keep it beyond the file."""
        spec = self.specs[name]
        data = memoryview(self._map)[self._start + spec.begin : self._start + spec.end]
        return Tensor(spec.dtype, spec.shape, data)

    def release(self) -> None:
        """Give the pages that were read back to the system; they are read again when asked for."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Views handed out may outlive the block; the mapping then closes with the last of them.
        del self._map

    def _check_canonical(self, header: bytes) -> None:
        state = {name: self.tensor(name) for name in self.names}
        if encode_header(state) != header:
            raise MalformedError(f"{self._path.name}: not in canonical form (order, layout or padding)")
        for name, tensor in state.items():
            _check_canonical_name(name, self._path.name)
            if tensor.dtype == "BOOL" and set(bytes(tensor.data)) - {0, 1}:
                raise MalformedError(f"{self._path.name}: {name}: a boolean is neither 0 nor 1")


def read_state(path: Path, *, canonical: bool = False) -> dict[str, Tensor]:
    """All tensors of a file in memory of their own; raises what `StateFile` raises."""
    with StateFile(path, canonical=canonical) as file:
        return {name: file.tensor(name).copy() for name in file.names}


def read_header(header: bytes, what: str, data_bytes: int) -> dict[str, TensorSpec]:
    """The specs of a header over `data_bytes` bytes of tensors; raises `MalformedError` naming `what`."""
    if not header.startswith(b"{"):
        raise MalformedError(f"{what}: the header does not begin with {{")
    entries = parse(header.rstrip(b" "), what, bytes_max=len(header) + 1)
    assert isinstance(entries, dict)  # it begins with a brace and was parsed
    _check_metadata(entries.pop("__metadata__", {}), what)
    specs = {name: _read_spec(name, entry, what) for name, entry in entries.items()}
    _check_layout(specs, what, data_bytes)
    return specs


def _check_metadata(metadata: Json, what: str) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise MalformedError(f"{what}: __metadata__ maps strings to strings")


def _read_spec(name: str, entry: Json, what: str) -> TensorSpec:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise MalformedError(f"{what}: {name}: dtype, shape and data_offsets are needed, and nothing else")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in STORAGE:
        raise MalformedError(f"{what}: {name}: dtype {dtype!r} is unknown")
    sides, bounds = _naturals(shape, f"{what}: {name}: shape"), _naturals(offsets, f"{what}: {name}: data_offsets")
    if len(bounds) != 2 or bounds[0] > bounds[1]:
        raise MalformedError(f"{what}: {name}: data_offsets are no interval")
    needed = item_size(dtype)
    for side in sides:
        needed *= side
    if needed != bounds[1] - bounds[0]:
        raise MalformedError(f"{what}: {name}: {bounds[1] - bounds[0]} bytes for a tensor of {needed}")
    return TensorSpec(dtype, sides, bounds[0], bounds[1])


def _naturals(value: Json, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > DIMENSIONS_MAX:
        raise MalformedError(f"{what}: a list of at most {DIMENSIONS_MAX} numbers is needed")
    if not all(type(item) is int and item >= 0 for item in value):
        raise MalformedError(f"{what}: natural numbers are needed")
    return tuple(item for item in value if isinstance(item, int))


def _check_layout(specs: Mapping[str, TensorSpec], what: str, data_bytes: int) -> None:
    position = 0
    for name, spec in sorted(specs.items(), key=lambda item: (item[1].begin, item[1].end)):
        if spec.begin != position:
            problem = "overlaps the tensor before it" if spec.begin < position else "leaves a hole before it"
            raise MalformedError(f"{what}: {name}: {problem}")
        position = spec.end
    if position != data_bytes:
        raise MalformedError(f"{what}: {data_bytes} bytes of data where the header describes {position}")


def _check_canonical_name(name: str, what: str) -> None:
    if not name.isprintable() or unicodedata.normalize("NFC", name) != name or "/" in name or "\\" in name:
        raise MalformedError(f"{what}: the name {json.dumps(name)[:80]} is not one a state may have")
