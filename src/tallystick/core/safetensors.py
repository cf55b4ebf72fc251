"""Safetensors files: a writer with one canonical form, and a strict reader.

Layout: eight bytes with the length N of the header, N bytes of JSON, and the bytes of the tensors without gaps.
A gap, or bytes after the last tensor, could hide a second document in the file; both are refused.
"""

from __future__ import annotations

import mmap
import os
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring as _quoted
from pathlib import Path
from typing import BinaryIO, Final, Self

import numpy as np

from tallystick.core.canonical_json import Json, encode, parse
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.files import file_size, write_atomically
from tallystick.core.tensors import DIMENSIONS_MAX, STORAGE, State, Tensor, byte_count

HEADER_BYTES_MAX: Final = 16 << 20
LENGTH_BYTES: Final = 8
ALIGNMENT: Final = 8
METADATA: Final = "__metadata__"


@dataclass(frozen=True)
class Placement:
    """Where a tensor lies in a file: bytes `begin` … `end − 1`, counted from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def encode_header(state: State) -> bytes:
    """The canonical header of a state: RFC 8785 JSON with sorted names, padded with spaces to a multiple of 8 bytes.

    Raises `MalformedError` for a name that a state may not have.
    """
    placed: dict[str, Placement] = {}
    position = 0
    for name in sorted(state):
        _check_name(name)
        tensor, end = state[name], position + state[name].nbytes
        placed[name] = Placement(tensor.dtype, tensor.shape, position, end)
        position = end
    return encode_placements(placed)


def encode_placements(placed: Mapping[str, Placement]) -> bytes:
    """The header of a file whose tensors lie at these places: RFC 8785 JSON, padded to a multiple of 8 bytes."""
    are_plain = all(map(str.isascii, placed))  # else RFC 8785 sorts otherwise than Python does
    header = _written(placed) if are_plain else encode({name: _entry(place) for name, place in placed.items()})
    return header + b" " * (-len(header) % ALIGNMENT)


def _written(placed: Mapping[str, Placement]) -> bytes:
    """As `encode` of the entries: formatted directly, because an opening has thousands of values."""
    return ("{" + ",".join([f"{_quoted(name)}:{_entry_text(placed[name])}" for name in sorted(placed)]) + "}").encode()


def _entry_text(placed: Placement) -> str:
    shape = ",".join(map(str, placed.shape))
    return f'{{"data_offsets":[{placed.begin},{placed.end}],"dtype":"{placed.dtype}","shape":[{shape}]}}'


def _entry(placed: Placement) -> Json:
    return {"data_offsets": [placed.begin, placed.end], "dtype": placed.dtype, "shape": list(placed.shape)}


def write_state(path: Path, state: State, *, durable: bool = True) -> None:
    """Write a state: the same tensors give the same bytes, and a crash leaves the old file or the new one.

    Without `durable` the call does not wait for the disk, and a power failure may leave a truncated file.

    Raises:
        MalformedError: a state may not have this name, or a boolean is neither 0 nor 1.
        UnavailableError: the file could not be written; the old file, if any, is still there.
    """
    header = encode_header(state)
    for name, tensor in state.items():
        check_booleans(name, tensor)

    def write(file: BinaryIO) -> None:
        file.write(len(header).to_bytes(LENGTH_BYTES, "little") + header)
        for name in sorted(state):
            file.write(state[name].data)

    write_atomically(path, write, durable=durable)


class StateFile:
    """A safetensors file, mapped into memory; a context manager.

    With `canonical`, only the bytes that `write_state` would write are accepted.

    Raises:
        MalformedError: the header or the layout is wrong, or the file is not canonical and has to be.
        UnavailableError: there is no such file.
    """

    def __init__(self, path: Path, *, header_bytes_max: int = HEADER_BYTES_MAX, canonical: bool = False) -> None:
        self._path = path
        file_size(path)
        try:
            with path.open("rb") as file:
                header = self._read_header(file, header_bytes_max)
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise UnavailableError(f"{path.name}: could not be read: {error.strerror}") from None
        if canonical:
            self._check_canonical(header)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors, sorted."""
        return tuple(sorted(self.specs))

    def tensor(self, name: str) -> Tensor:
        """One tensor, a view of the mapping; copy it to use it after the file is closed.

        Raises `UnavailableError` if the file holds no tensor of this name.
        """
        if name not in self.specs:
            raise UnavailableError(f"{self._path.name}: holds no tensor {_shown(name)}")
        spec = self.specs[name]
        data = memoryview(self._map)[self._start + spec.begin : self._start + spec.end]
        return Tensor(spec.dtype, spec.shape, data)

    def release(self, name: str, begin: int, end: int) -> None:
        """Release the memory pages under bytes `begin` … `end` of a tensor; a later access reads them again."""
        first = self._start + self.specs[name].begin + begin
        aligned = first - first % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, aligned, first + end - begin - aligned)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Views may outlive the block; the mapping closes with the last of them.
        del self._map

    def _read_header(self, file: BinaryIO, header_bytes_max: int) -> bytes:
        what, size = self._path.name, os.fstat(file.fileno()).st_size
        if size < LENGTH_BYTES:
            raise MalformedError(f"{what}: {size} bytes are too few for a safetensors file")
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if length > header_bytes_max:
            raise MalformedError(f"{what}: a header of {length} bytes, more than the {header_bytes_max} allowed")
        if LENGTH_BYTES + length > size:
            raise MalformedError(f"{what}: the header ends behind the file")
        header = file.read(length)
        self._start = LENGTH_BYTES + length
        self.specs = read_header(header, what, size - self._start)
        return header

    def _check_canonical(self, header: bytes) -> None:
        state = {name: self.tensor(name) for name in self.names}
        try:
            is_canonical = encode_header(state) == header
            for name, tensor in state.items():
                check_booleans(name, tensor)
        except MalformedError as error:
            raise MalformedError(f"{self._path.name}: {error}") from None
        if not is_canonical:
            raise MalformedError(f"{self._path.name}: not in canonical form (order, layout, metadata or padding)")


def read_state(path: Path, *, canonical: bool = False) -> dict[str, Tensor]:
    """Copies of all tensors of a file; raises what `StateFile` raises."""
    with StateFile(path, canonical=canonical) as file:
        return {name: file.tensor(name).copy() for name in file.names}


def read_header(header: bytes, what: str, data_bytes: int) -> dict[str, Placement]:
    """The placements in the header of a file with `data_bytes` of tensors; raises `MalformedError` naming `what`."""
    if not header.startswith(b"{"):
        raise MalformedError(f"{what}: the header does not begin with {{")
    entries = parse(header.rstrip(b" "), what, bytes_max=len(header) + 1)
    assert isinstance(entries, dict)  # it begins with a brace and was parsed
    _check_metadata(entries.pop(METADATA, {}), what)
    specs = {name: _read_spec(name, entry, what) for name, entry in entries.items()}
    _check_layout(specs, what, data_bytes)
    return specs


def _check_metadata(metadata: Json, what: str) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise MalformedError(f"{what}: __metadata__ maps strings to strings")


def _read_spec(name: str, entry: Json, what: str) -> Placement:
    what = f"{what}: {_shown(name)}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise MalformedError(f"{what}: dtype, shape and data_offsets are needed, and nothing else")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in STORAGE:
        raise MalformedError(f"{what}: dtype {str(dtype)[:40]!a} is unknown")
    sides, bounds = _naturals(shape, f"{what}: shape"), _naturals(offsets, f"{what}: data_offsets")
    if len(bounds) != 2 or bounds[0] > bounds[1]:
        raise MalformedError(f"{what}: data_offsets are no interval")
    try:
        needed = byte_count(dtype, sides)
    except MalformedError as error:
        raise MalformedError(f"{what}: {error}") from None
    if needed != bounds[1] - bounds[0]:
        raise MalformedError(f"{what}: {bounds[1] - bounds[0]} bytes for a tensor of {needed}")
    return Placement(dtype, sides, bounds[0], bounds[1])


def _naturals(value: Json, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > DIMENSIONS_MAX:
        raise MalformedError(f"{what}: a list of at most {DIMENSIONS_MAX} numbers is needed")
    if not all(type(item) is int and item >= 0 for item in value):
        raise MalformedError(f"{what}: natural numbers are needed")
    return tuple(item for item in value if isinstance(item, int))


def _check_layout(specs: Mapping[str, Placement], what: str, data_bytes: int) -> None:
    position = 0
    for name, spec in sorted(specs.items(), key=lambda item: (item[1].begin, item[1].end)):
        if spec.begin != position:
            problem = "overlaps the tensor before it" if spec.begin < position else "leaves a hole before it"
            raise MalformedError(f"{what}: {_shown(name)}: {problem}")
        position = spec.end
    if position != data_bytes:
        raise MalformedError(f"{what}: {data_bytes} bytes of data where the header describes {position}")


def _check_name(name: str) -> None:
    is_plain = name.isprintable() and unicodedata.normalize("NFC", name) == name
    if not is_plain or "/" in name or "\\" in name or name == METADATA:
        raise MalformedError(f"the name {_shown(name)} is not one a state may have")


def check_booleans(name: str, tensor: Tensor) -> None:
    """Raise `MalformedError` if a boolean of the tensor is neither 0 nor 1."""
    if tensor.dtype == "BOOL" and np.any(np.frombuffer(tensor.data, np.uint8) > 1):
        raise MalformedError(f"{_shown(name)}: a boolean is neither 0 nor 1")


def _shown(name: str) -> str:
    """A name as at most 80 characters of printable ASCII: the file it comes from is not trusted."""
    return ascii(name if len(name) <= 80 else name[:79] + "…")
