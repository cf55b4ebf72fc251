"""A file with one value, by its spec alone: the bytes of the general writer, and nothing else is taken for them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tallystick.errors import UnavailableError
from tallystick.tensors.safetensors import write_state
from tallystick.tensors.single import VALUE, read_single, write_single
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor

VALUES = {
    "a matrix": Tensor.of(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "a scalar": Tensor.of(np.array(3, np.int64)),
    "nothing": Tensor.of(np.zeros((0, 4), np.float16)),
    "bfloat16": Tensor.of(np.arange(4, dtype=np.uint16), "BF16"),
    "booleans": Tensor.of(np.array([True, False])),
}
MATRIX = VALUES["a matrix"]


@pytest.mark.parametrize("name", VALUES)
def test_it_writes_the_bytes_of_the_general_writer(name: str, tmp_path: Path) -> None:
    write_single(tmp_path / "one", VALUES[name])
    write_state(tmp_path / "general", {VALUE: VALUES[name]})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "general").read_bytes()


@pytest.mark.parametrize("name", VALUES)
def test_it_reads_what_was_written_but_for_booleans(name: str, tmp_path: Path) -> None:
    write_single(tmp_path / "one", VALUES[name])
    found = read_single(tmp_path / "one", TensorSpec.of(VALUES[name]))
    if name == "booleans":  # each byte has to be looked at
        assert found is None
    else:
        assert found is not None
        assert (TensorSpec.of(found), bytes(found.data)) == (TensorSpec.of(VALUES[name]), bytes(VALUES[name].data))


def test_any_other_file_is_left_to_the_general_reader(tmp_path: Path) -> None:
    write_single(tmp_path / "one", MATRIX)
    data, spec = (tmp_path / "one").read_bytes(), TensorSpec.of(MATRIX)
    write_state(tmp_path / "other name", {"valve": MATRIX})
    (tmp_path / "short").write_bytes(data[:-1])
    (tmp_path / "long").write_bytes(data + b"\0")
    (tmp_path / "other header").write_bytes(data.replace(b"F32", b"I32"))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("other name", "short", "long", "other header", "folder", "pipe", "nowhere"):
        assert read_single(tmp_path / name, spec) is None, name
    for other in (TensorSpec("F32", (3, 2)), TensorSpec("I32", (2, 3)), TensorSpec("F32", (2, 3, 1))):
        assert read_single(tmp_path / "one", other) is None, other
    assert read_single(tmp_path / "one", spec) is not None


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="one: could not be written"):
        write_single(tmp_path / "nowhere" / "one", MATRIX)
