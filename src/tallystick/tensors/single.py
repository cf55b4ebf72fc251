"""A file with one value: the bytes of `write_state`, written and read without a parser.

The spec of a value determines the header of its file. A reader that knows the spec, for example from a checked graph,
only compares the first bytes. A file that begins otherwise needs `StateFile`, which reports what is wrong with it.
"""

from __future__ import annotations

import os
import stat
from functools import lru_cache
from pathlib import Path
from typing import Final

from tallystick.commitments.encoding import encode
from tallystick.errors import UnavailableError
from tallystick.tensors.safetensors import ALIGNMENT, LENGTH_BYTES, write_state
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor

VALUE: Final = "value"
"""The one name in the file."""


def write_single(path: Path, tensor: Tensor) -> None:
    """Write a value into an existing folder; a crash may leave a truncated file.

    Raises what `write_state` raises.
    """
    if tensor.dtype == "BOOL":  # `write_state` checks that each byte is 0 or 1
        write_state(path, {VALUE: tensor}, durable=False)
        return
    try:
        with path.open("wb", buffering=0) as file:
            _write_whole(file.fileno(), memoryview(_head(TensorSpec.of(tensor))))
            _write_whole(file.fileno(), memoryview(tensor.data).cast("B"))
    except OSError as error:
        raise UnavailableError(f"{path.name}: could not be written: {error.strerror}") from error


def read_single(path: Path, spec: TensorSpec) -> Tensor | None:
    """The value of this spec in a file; `None` for booleans and for every file with other contents."""
    head = _head(spec)
    size = len(head) + spec.nbytes
    data = b"" if spec.dtype == "BOOL" else _read_file(path, size)
    is_whole = len(data) == size and data.startswith(head)
    return Tensor(spec.dtype, spec.shape, memoryview(data)[len(head) :]) if is_whole else None


def _read_file(path: Path, size: int) -> bytes:
    """The bytes of a regular file of this size; fewer bytes, or none, if there is no such file."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            return b""
        with path.open("rb", buffering=0) as file:
            return file.read(size)
    except OSError:
        return b""


def _write_whole(handle: int, data: memoryview) -> None:
    """Write until nothing is left: one system call may write only a part, and never more than 2 GiB."""
    while data:
        data = data[os.write(handle, data) :]


@lru_cache(maxsize=1 << 12)
def _head(spec: TensorSpec) -> bytes:
    """All bytes that `write_state` writes before those of the tensor."""
    header = encode({VALUE: {"data_offsets": [0, spec.nbytes], "dtype": spec.dtype, "shape": list(spec.shape)}})
    header += b" " * (-len(header) % ALIGNMENT)
    return len(header).to_bytes(LENGTH_BYTES, "little") + header
